"""A law: the attention weights that transfer compares are the weights that a head's memories imply. Transfer computes them as
outputs for unit values, with gradients for the student's parameters; ``composer.model.implicit_attention`` computes them as
gradients with respect to values. Each head is in a model with random parameters.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from composer.graph.composition import HeadSpec
from composer.graph.program import HeadInputs
from composer.model.head import Head
from composer.model.head_visits import visiting_heads
from composer.model.implicit_attention import implicit_attention
from composer.training.student import without_weights
from composer.training.transfer import attention_weights, heads_output
from tests.composer.training.by_hand import attention_of, make_lesson
from tests.composer.training.runs import rows_of, small_llama, student_of, whole
from tests.covers import some
from tests.laws.cases import complete, covering, every_head

LENGTH = 21
PLAIN: dict[str, Any] = {"position": "rope", "feature_map": "elu", "memory": [{"kind": "window", "size": 5}, "state"]}
OWN = {
    "convolved values": complete(PLAIN | {"conv": {"kernel": 3, "inputs": ["q", "k", "v"]}}),
    "convolved values, SiLU": complete(PLAIN | {"conv": {"kernel": 3, "inputs": ["k", "v"], "activation": "silu"}}),
    "learned pairs above a window": complete(
        {"position": "rope", "memory": ["meta", {"kind": "window", "size": 5, "evict": "drop"}]}
    ),
}
HEADS = every_head() | OWN
SOURCE = functools.cache(small_llama)
"""One for all students, which leave it as it is."""
COMPARED = {name: head for name, head in HEADS.items() if without_weights(head) is None}


def spec_of(head: HeadSpec) -> dict[str, Any]:
    return {"compose": 1, "name": "case", "head": head.model_dump(mode="json", exclude_none=True)}


@pytest.mark.parametrize("name", some(COMPARED, covering() | OWN.keys()))
def test_transfer_compares_the_weights_that_memories_imply(name: str) -> None:
    student, batch = student_of(SOURCE(), spec_of(COMPARED[name])), whole(rows_of(LENGTH, lengths=(LENGTH,)))
    attention, target = attention_of(student, 1), make_lesson(torch.randn(1, LENGTH, 32, dtype=torch.float64), batch)
    heard: list[tuple[Head, HeadInputs]] = []
    with torch.no_grad(), visiting_heads(student, lambda _layer, _name, head, call: heard.append((head, call))):
        heads_output(attention, target, "torch")
    (head, call), actual = heard[0], attention_weights(attention, target, "torch")
    wanted = implicit_attention(head, call, range(LENGTH), "torch").total()
    torch.testing.assert_close(actual, wanted.float(), rtol=0, atol=1e-6)


def test_more_than_30_heads_are_compared() -> None:
    assert {"convolved values", "convolved values, SiLU", "learned pairs above a window"} <= COMPARED.keys()
    assert len(COMPARED) > 30
