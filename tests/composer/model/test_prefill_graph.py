"""A prefill of every causal spec of the package is one graph: torch.compile breaks it nowhere, torch.export takes it."""

from __future__ import annotations

import pytest

from tests.composer.model.models import CAUSAL
from tests.composer.programs import printed_behind_composer

SMALL = {"lola": ["head.memory.0.size=4", "head.memory.1.size=3"], "lolcats-terraced": ["head.memory.0.size=4"]}
LAYERS = dict.fromkeys(("alternating-delta", "hybrid", "mixed-heads", "gdn-hybrid", "kda-hybrid", "hypenet"), 2)
EXPORTED = ["softmax", "lolcats", "lolcats-terraced", "lola", "lawcat", "gated-delta", "latte-macchiato"]
PROGRAM = """
    import torch
    import composer
    from tests.composer.model.models import llama, tokens

    class Logits(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model(ids, use_cache=False).logits

    torch.set_grad_enabled(False)
    model, ids = Logits(composer.build({spec!r}, llama(num_hidden_layers={layers}), overrides={small})), tokens(2, 11)
    # Strict export is the compiler's one graph, and that graph run through autograd's tracer.
    one = torch.export.export(model, (ids,), strict=True).module() if {exported} else None
    one = one or torch.compile(model, fullgraph=True, backend="eager", dynamic=False)
    found = one(ids)
    torch.testing.assert_close(found, model(ids), rtol=1e-9, atol=1e-9)
    print("compared")
"""
"""Nothing has run before the call that is compiled: the heads' graphs are lowered within it, and are no part of what it makes."""


@pytest.mark.parametrize("spec", CAUSAL)
def test_a_prefill_is_one_graph(spec: str) -> None:
    """In a process of its own: in this one, shapes are checked at every call, which no compiler looks through."""
    how = {"layers": LAYERS.get(spec, 1), "small": SMALL.get(spec, []), "exported": spec in EXPORTED}
    assert printed_behind_composer(PROGRAM.format(spec=spec, **how)) == "compared"


def test_none_is_left_out() -> None:
    assert len(CAUSAL) > 20
    assert {*SMALL, *LAYERS, *EXPORTED} <= set(CAUSAL)
