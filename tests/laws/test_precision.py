"""Law 6 at long lengths: the error from parameters in bfloat16 is no larger at 4,096 tokens than at the start. The comparison
has unrounded parameters in float64. A rounded frequency, or logarithm of a decay, would give an error that grows with every
token.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from blocks.catalogue import CATALOGUE
from blocks.legend import Shape
from composer.graph.composition import HeadSpec
from composer.laws.bounds import LENGTH, assert_errors_do_not_grow, errors
from composer.model.head import PartModule
from tests.covers import some
from tests.laws.cases import SMALL, build_head, coarse, every_head, every_part, inputs, steady

PAIR = SMALL.shape(2)
"""Two heads that share a key head."""
HEADS: dict[str, tuple[HeadSpec, Shape]] = {name: (head, PAIR) for name, head in every_head().items()}
BOTH_WAYS = {name: (head, replace(PAIR, both_ways=True)) for name, head in every_head("bidirectional").items()}
HEADS |= BOTH_WAYS


ADDING = {name for name in every_part() if name.partition(":")[0] in {"memory", "gate", "rate", "position", "value position"}}
"""Parts that add up numbers over the tokens, or rotate by them."""


@pytest.mark.parametrize("name", some(HEADS, ADDING | BOTH_WAYS.keys()))
def test_errors_do_not_grow_with_position(name: str) -> None:
    spec, shape = HEADS[name]
    assert_errors_do_not_grow(coarse(steady(spec)), shape)


def test_rounded_frequencies_fail_the_law() -> None:
    spec, shape = HEADS["value position: vapor"]
    head = build_head(spec, shape)
    narrow = copy.deepcopy(head).bfloat16()
    with torch.no_grad():
        for name, parameter in narrow.named_parameters():
            if name.endswith("frequency"):
                parameter.copy_(parameter.bfloat16())
    early, late = errors(head, narrow, shape)
    assert late > 10 * early + 0.05


@pytest.mark.parametrize("kind", [kind for kind, gate in CATALOGUE["gate"].items() if "bias" in gate.model_fields])
def test_slow_gates_in_bfloat16_are_accurate_over_4096_tokens(kind: str) -> None:
    """A bias of 8.3, in bfloat16 8.3125, lets a state last for tens of thousands of tokens: log α adds up, and so do its errors."""
    part = CATALOGUE["gate"][kind].model_validate({"bias": 8.3})
    shape = replace(SMALL.shape(4), features=4, state_heads=4)
    gate = PartModule(part, part.parameters(shape)).double()
    gate.fill(torch.Generator().manual_seed(0))
    hidden = inputs(shape, 1, LENGTH).hidden.to(torch.bfloat16)
    with torch.no_grad():
        expected = gate(part.log_decay, hidden.double(), shape).sum(1)
        actual = gate.bfloat16()(part.log_decay, hidden, shape).sum(1, dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=0.005, atol=0)
