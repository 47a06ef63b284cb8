"""A prefill of every part of the causal specs is one graph for torch.compile and torch.export."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.composer.model.models import CAUSAL
from tests.composer.model.shared_layers import covering, dealt, layers_of, printed_of
from tests.covers import some

pytestmark = pytest.mark.long

SMALL = {"lola": ["head.memory.0.size=4", "head.memory.1.size=3"], "lolcats-terraced": ["head.memory.0.size=4"]}
EXPORTED = ["lolcats-terraced", "lola", "gated-delta", "latte-macchiato"]
"""Specs with every kind of memory that changes with each token: a window, a cache, a state, a corrected state, latents."""
ALL = layers_of([*EXPORTED, *CAUSAL], lambda name: SMALL.get(name, []))
FIRST = dict(islice(ALL.items(), len(EXPORTED)))
LAYERS = FIRST | covering(ALL)
PARTS = dealt(FIRST) | dealt({name: layer for name, layer in LAYERS.items() if name not in FIRST})
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
    model, ids = Logits(composer.build({spec!r}, llama(num_hidden_layers={count}))), tokens(2, 11)
    # Strict export is the compiler's one graph, and that graph run through autograd's tracer.
    one = torch.export.export(model, (ids,), strict=True).module() if {exported} else None
    one = one or torch.compile(model, fullgraph=True, backend="eager", dynamic=False)
    found = one(ids)
    torch.testing.assert_close(found, model(ids), rtol=1e-9, atol=1e-9)
    print("compared")
"""
"""Nothing has run before the call that is compiled: the heads' graphs are lowered within it, and are no part of what it makes."""


@pytest.mark.parametrize("part", some(PARTS, list(PARTS)[:1]))
def test_a_prefill_is_one_graph(part: str) -> None:
    assert printed_of(PARTS[part], PROGRAM, exported=part == next(iter(PARTS))) == "compared"


def test_the_compiled_layers_are_a_part_of_all_distinct_layers() -> None:
    assert len(CAUSAL) > 20
    assert len(EXPORTED) < len(LAYERS) < len(ALL)
    assert {*SMALL, *EXPORTED} <= set(CAUSAL)
