"""A step of decode is one graph: torch.compile finds nothing in it that it would have to leave to Python or to wait for."""

from __future__ import annotations

import pytest

from composer.spec.loading import load_spec
from tests.composer.model.models import CAUSAL
from tests.composer.programs import printed_behind_composer

BOTH = ["softmax", "lolcats", "lola", "lawcat", "gated-delta", "latte-macchiato"]
"""Those that cover the kinds of memory."""
TWO = ["alternating-delta", "gdn-hybrid", "kda-hybrid", "hypenet"]
"""Those whose layers differ."""
PROGRAM = """
    import torch
    import composer
    from tests.composer.model.models import llama, tokens

    torch.set_grad_enabled(False)
    source = llama(num_hidden_layers={layers}, hidden_size=32, intermediate_size=32)
    model = composer.build({spec!r}, source, overrides={small})
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=False)
    for batch, column in {calls}:
        ids = tokens(batch, column + 1)
        caches = [model(ids[:, :column], use_cache=True).past_key_values for _ in range(2)]
        found = compiled(ids[:, column:], past_key_values=caches[0]).logits
        expected = model(ids[:, column:], past_key_values=caches[1]).logits
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
        print("compared")
"""
"""At column 10 a chunk of a terraced window of 5 begins, and another one falls. The first step of all is one that is compiled."""


@pytest.mark.parametrize("name", CAUSAL)
def test_a_step_of_decode_is_one_graph(name: str) -> None:
    """Of every causal spec that is shipped, of four rows, and of one for those that cover the kinds of memory.

    In a process of its own: in this one, shapes are checked at every call, which no compiler looks through.
    """
    spec = load_spec(name)
    heads = {"head": spec.head} | {f"heads.{key}": head for key, head in spec.heads.items()}
    small = [
        f"{where}.memory.{index}.size={5 if memory.bounded else 12}"
        for where, head in heads.items()
        for index, memory in enumerate(head.memory if head else ())
        if hasattr(memory, "size")
    ]
    calls = [(1, 9), (4, 10)] if name in BOTH else [(4, 10)]
    code = PROGRAM.format(spec=name, small=small, calls=calls, layers=2 if name in TWO else 1)
    assert printed_behind_composer(code).split() == ["compared"] * len(calls)


def test_none_is_left_out() -> None:
    assert {"lolcats-terraced", *BOTH, *TWO} <= set(CAUSAL)
