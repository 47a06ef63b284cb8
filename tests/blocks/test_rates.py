"""A rate is the sigmoid of a projection times its largest value for each head, or one constant."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from blocks.part import Per
from blocks.rates import RATES, Fixed, Learned, RateConfig
from tests.blocks.support import ALIKE, GROUPED, ONE_KEY, SHAPE_NAMES, SHAPES, assert_derivatives, close, drawn, random, started

RATE = TypeAdapter(RateConfig)


@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
@pytest.mark.parametrize("per", get_args(Per))
@pytest.mark.parametrize("largest", [1, 2])
def test_a_learned_rate_is_a_sigmoid_of_the_hidden_state(largest: int, per: str, shape: Any) -> None:
    part = Learned.model_validate({"largest": largest, "per": per})
    parameters, hidden = drawn(part, shape), random(2, 3, 6)
    heads = shape.heads if per == "query_head" else shape.key_heads
    assert part.heads(shape) == heads
    assert {name: fresh.shape for name, fresh in part.parameters(shape).items()} == {"weight": (heads, 6), "bias": (heads,)}
    rate = part.rate(parameters, hidden, shape)
    assert rate.shape == (2, 3, heads)
    for batch, token, head in torch.ones(2, 3, heads).nonzero().tolist():
        logit = (hidden[batch, token] * parameters["weight"][head]).sum() + parameters["bias"][head]
        close(rate[batch, token, head], largest / (1 + (-logit).exp()))


@pytest.mark.parametrize("largest", [1, 2])
def test_learned_rates_are_between_0_and_their_largest_value(largest: int) -> None:
    part = Learned.model_validate({"largest": largest})
    rate = part.rate(drawn(part, GROUPED, torch.float32), 1e4 * random(4, 50, 6, dtype=torch.float32), GROUPED)
    assert rate.isfinite().all()
    assert rate.min() == 0
    assert rate.max() == largest


def test_a_missing_bias_equals_a_bias_of_0() -> None:
    part = RATE.validate_python({"kind": "learned", "bias": False})
    parameters, hidden = drawn(part, GROUPED), random(2, 3, 6)
    assert parameters.keys() == {"weight"}
    zero = {"bias": torch.zeros(part.heads(GROUPED), dtype=torch.float64)}
    assert torch.equal(part.rate(parameters, hidden, GROUPED), Learned().rate(parameters | zero, hidden, GROUPED))
    assert RATE.validate_python({"kind": "learned", "bias": 0}).parameters(GROUPED).keys() == {"weight", "bias"}


def test_learned_rates_start_at_the_sigmoid_of_their_bias() -> None:
    """For a hidden state of 0 the rate is σ(b), by default half of the largest rate."""
    for bias, start in ((0.0, 0.5), (3.0, 1 / (1 + math.exp(-3.0)))):
        part = Learned(bias=bias)
        parameters = started(part, GROUPED)
        assert parameters["bias"].tolist() == [bias] * 4
        assert len(parameters["weight"].unique()) == 24, "the weights are random"
        nothing = torch.zeros(1, 2, 6, dtype=torch.float64)
        close(part.rate(parameters, nothing, GROUPED), torch.full((1, 2, 4), start, dtype=torch.float64))


def test_gradients_of_rates_match_numerical_gradients() -> None:
    part = Learned(largest=2)
    parameters, hidden = drawn(part, ALIKE), random(1, 3, 6).requires_grad_()

    def rate(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return part.rate({"weight": weight, "bias": bias}, hidden, ALIKE)

    assert_derivatives(rate, (hidden, parameters["weight"], parameters["bias"]))


@pytest.mark.parametrize("part", [Learned(), Fixed(value=0.7)], ids=["learned", "fixed"])
def test_rates_are_computed_in_float32_or_better(part: Learned | Fixed) -> None:
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        rate = part.rate(started(part, GROUPED, dtype), random(1, 2, 6, dtype=dtype), GROUPED)
        assert rate.dtype == torch.promote_types(dtype, torch.float32)


def test_half_precision_hidden_states_are_upcast_for_float32_parameters() -> None:
    parameters, hidden = drawn(Learned(), GROUPED, torch.float32), random(2, 3, 6, dtype=torch.bfloat16)
    close(Learned().rate(parameters, hidden, GROUPED), Learned().rate(parameters, hidden.float(), GROUPED), 1e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
def test_a_fixed_rate_is_one_number(shape: Any) -> None:
    for value in (1e-6, 0.7, 1.0, 1.999):
        part = Fixed(value=value)
        assert part.heads(shape) == 1
        assert part.parameters(shape) == {}
        close(part.rate({}, random(2, 3, 6), shape), torch.full((2, 3, 1), value, dtype=torch.float64), 1e-12)
    assert Fixed().value == 1.0


def test_operation_count_equals_a_count_by_hand() -> None:
    # A product with the 6 numbers of the hidden state for each head.
    assert Learned().flops(GROUPED, 9) == Learned().flops(GROUPED, 10_000) == 2 * 6 * 4
    assert Learned(per="key_head").flops(ONE_KEY, 9) == 2 * 6 * 1
    assert Fixed().flops(GROUPED, 9) == 0


def test_rates_are_parsed_from_a_kind_or_a_mapping() -> None:
    assert RATE.validate_python("learned") == Learned()
    assert RATE.validate_python({"kind": "fixed", "value": 0.5}) == Fixed(value=0.5)
    assert {kind: part() for kind, part in RATES.items()} == {"learned": Learned(), "fixed": Fixed()}


@pytest.mark.parametrize(
    "wrong",
    [
        "none",
        {"value": 0.5},
        {"kind": "fixed", "value": 0.0},
        {"kind": "fixed", "value": 2.0},
        {"kind": "fixed", "value": math.nan},
        {"kind": "fixed", "per": "key_head"},
        {"kind": "learned", "largest": 3},
        {"kind": "learned", "largest": 0},
        {"kind": "learned", "bias": math.inf},
        {"kind": "learned", "per": "layer"},
        {"kind": "learned", "value": 1.0},
    ],
    ids=str,
)
def test_invalid_rates_are_refused(wrong: Any) -> None:
    with pytest.raises(ValidationError):
        RATE.validate_python(wrong)
