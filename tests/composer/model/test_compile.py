"""A step of decode is one graph: torch.compile finds nothing in it that it would have to leave to Python or to wait for."""

from __future__ import annotations

import pytest

from composer.spec.loading import load_spec
from tests.composer.model.models import CAUSAL
from tests.composer.model.together import dealt, layers_of, printed_of

PROGRAM = """
    import torch
    import composer
    from tests.composer.model.models import llama, tokens

    torch.set_grad_enabled(False)
    model = composer.build({spec!r}, llama(num_hidden_layers={count}))
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=False)
    for rows, column in ((4, 10), (1, 9)):
        ids = tokens(rows, column + 1)
        caches = [model(ids[:, :column], use_cache=True).past_key_values for _ in range(2)]
        found = compiled(ids[:, column:], past_key_values=caches[0]).logits
        expected = model(ids[:, column:], past_key_values=caches[1]).logits
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    print("compared")
"""
"""The first step of all is one that is compiled. At column 10 a chunk of a terraced window of 5 begins, another falls."""


def small(name: str) -> list[str]:
    """Memories that overflow."""
    spec = load_spec(name)
    heads = {"head": spec.head} | {f"heads.{key}": head for key, head in spec.heads.items()}
    return [
        f"{where}.memory.{index}.size={5 if memory.bounded else 12}"
        for where, head in heads.items()
        for index, memory in enumerate(head.memory if head else ())
        if hasattr(memory, "size")
    ]


PARTS = dealt(layers_of(CAUSAL, small))


@pytest.mark.parametrize("part", PARTS)
def test_a_step_of_decode_is_one_graph(part: str) -> None:
    """Of every causal spec that is shipped, of four rows and of a row alone."""
    assert printed_of(PARTS[part], PROGRAM) == "compared"


def test_none_is_left_out() -> None:
    assert {"softmax", "lolcats", "lolcats-terraced", "lola", "lawcat", "gated-delta", "latte-macchiato"} <= set(CAUSAL)
