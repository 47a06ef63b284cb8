"""Each calibrated start gives the intended property of the teacher's attention, computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from blocks.calibration import NEAREST, Attended, divergence
from blocks.feature_maps import FEATURE_MAPS
from blocks.gates.bounded_channel import BoundedChannel
from blocks.gates.channel import PerChannel
from blocks.gates.constant import Constant
from blocks.gates.head import PerHead
from blocks.gates.softplus import Softplus
from blocks.gates.softplus_channel import SoftplusChannel
from blocks.legend import Shape
from blocks.memories.window import Window
from tests.blocks.support import random, started

SHAPE = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=4, features=3, state_heads=4)
ROWS, LENGTH = 3, 12


def attended(weights: Tensor | None = None, *, most: int = LENGTH) -> Attended:
    """Return attention of some rows to a memory of the pairs up to a maximal age. B T H T."""
    distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    held = ((distance >= 0) & (distance < most))[None, :, None].expand(ROWS, LENGTH, SHAPE.heads, LENGTH)
    if weights is None:
        causal = (distance >= 0)[None, :, None]
        weights = random(ROWS, LENGTH, SHAPE.heads, LENGTH).masked_fill(~causal, -math.inf).softmax(-1)
    age = distance.clamp(min=0)[None, :, None].expand_as(held).double()
    share = random(ROWS, LENGTH, SHAPE.heads).sigmoid()
    return Attended(in_memory=held, weights=weights * held, outside=(weights * ~held).sum(-1), age=age, share=share)


@pytest.mark.parametrize("per", ["query_head", "key_head"])
@pytest.mark.parametrize("part", [PerHead, PerChannel, Softplus, SoftplusChannel, BoundedChannel])
def test_gates_start_with_the_mean_age_of_attended_pairs(part: type, per: str) -> None:
    """For hidden states of 0, only the gate's bias remains, and log α = -1 / mean age."""
    gate, attention = part(per=per), attended()
    own = gate.own_heads(SHAPE)
    parameters = started(gate, SHAPE)
    calibrated = parameters | gate.calibrate(parameters, attention, SHAPE)
    decay = gate.log_decay(calibrated, torch.zeros(1, 1, SHAPE.hidden_size, dtype=torch.float64), SHAPE)[0, 0]
    grouped = attention.weights.unflatten(2, (own, -1)).movedim(2, 0).flatten(1)
    ages = attention.age.unflatten(2, (own, -1)).movedim(2, 0).flatten(1)
    mean = (grouped * ages).sum(1) / grouped.sum(1)
    wanted = (-1 / mean).repeat_interleave(SHAPE.heads // own)
    wanted = wanted[:, None].expand_as(decay) if decay.dim() == 2 else wanted
    torch.testing.assert_close(decay, wanted, rtol=1e-5, atol=1e-6)


def test_mean_ages_are_finite_for_self_attention_and_for_no_attention() -> None:
    alone = attended(torch.eye(LENGTH, dtype=torch.float64)[None, :, None].repeat(ROWS, 1, SHAPE.heads, 1))
    assert alone.rate(4).tolist() == pytest.approx([1 / NEAREST] * 4)
    nothing = replace(alone, weights=torch.zeros_like(alone.weights))
    assert nothing.mean_age(4).tolist() == pytest.approx([float(alone.age[alone.in_memory].mean())] * 4)


def test_gates_without_parameters_are_not_calibrated() -> None:
    assert Constant().calibrate({}, attended(), SHAPE) == {}


def test_shifting_the_logit_makes_the_mean_share_the_teachers() -> None:
    attention = attended(most=5)
    shift = attention.shift()
    moved = (torch.logit(attention.share) + shift).sigmoid()
    whole = attention.weights.sum(-1) + attention.outside
    torch.testing.assert_close(moved.sum((0, 1)), (attention.weights.sum(-1) / whole).sum((0, 1)), rtol=1e-8, atol=1e-8)


def test_learned_weights_are_scaled_by_the_shift_and_capped_at_1() -> None:
    """σ(w') = σ(w) exp(shift), capped below 1. If masses are not compared, the weight keeps its start."""
    window, attention = Window(weight="learned"), replace(attended(most=5), balanced=True)
    parameters = started(window, SHAPE)
    actual = window.calibrate(parameters, attention, SHAPE)["weight"].sigmoid()
    wanted = (parameters["weight"].sigmoid() * attention.shift().exp()).clamp(max=0.99)
    torch.testing.assert_close(actual, wanted, rtol=1e-6, atol=1e-6)
    assert window.calibrate(parameters, replace(attention, balanced=None), SHAPE) == {}
    assert Window().calibrate({}, attention, SHAPE) == {}


def test_divergence_matches_a_hand_computed_value() -> None:
    attention, scores, rest = attended(most=5), random(ROWS, LENGTH, SHAPE.heads, LENGTH), random(ROWS, LENGTH, SHAPE.heads)
    alone = together = 0.0
    for row in range(ROWS):
        for token in range(LENGTH):
            for head in range(SHAPE.heads):
                seen = range(max(0, token - 4), token + 1)
                masses = {pair: math.exp(scores[row, token, head, pair]) for pair in seen}
                beside = math.exp(rest[row, token, head])
                for pair in seen:
                    weight = float(attention.weights[row, token, head, pair])
                    alone -= weight * math.log(masses[pair] / sum(masses.values()))
                    together -= weight * math.log(masses[pair] / (sum(masses.values()) + beside))
                together -= float(attention.outside[row, token, head]) * math.log(beside / (sum(masses.values()) + beside))
    whole = float(attention.weights.sum())
    assert float(divergence(attention, scores, None)) == pytest.approx(alone / whole)
    assert float(divergence(attention, scores, rest)) == pytest.approx(together / (whole + float(attention.outside.sum())))


LEARNED = [name for name, part in FEATURE_MAPS.items() if part.positive]


def mapped(kind: str, size: float = 1.0, *, balanced: bool | None = None) -> tuple[object, dict[str, Tensor], Attended]:
    """Return a map, its start, and the attention weights of the same map with another matrix."""
    part = FEATURE_MAPS[kind](linear=True)  # pyright: ignore[reportCallIssue]
    query, key = size * random(ROWS, LENGTH, 4, 4), size * random(ROWS, LENGTH, 2, 4)
    parameters = started(part, SHAPE)
    other = {name: parameter + 0.5 * random(*parameter.shape) for name, parameter in parameters.items()}
    attention = replace(attended(), query=query, key=key, decay=torch.full((4,), -0.1, dtype=torch.float64), balanced=balanced)
    scores = part._scores(other, attention).masked_fill(~attention.in_memory, -math.inf)
    return part, parameters, replace(attention, weights=scores.softmax(-1), outside=0.5 * torch.ones_like(attention.outside))


@pytest.mark.parametrize("balanced", [None, False, True])
@pytest.mark.parametrize("kind", LEARNED)
def test_calibrated_maps_halve_the_divergence_from_the_teacher(kind: str, balanced: bool | None) -> None:
    """Calibration reduces the divergence by at least half, is deterministic, and changes no other parameter."""
    torch.manual_seed(1)
    part, parameters, attention = mapped(kind, balanced=balanced)
    calibrated = part.calibrate(parameters, attention, SHAPE)  # pyright: ignore
    again = part.calibrate(parameters, attention, SHAPE)  # pyright: ignore
    assert calibrated.keys() == parameters.keys()
    assert all(torch.equal(value, again[name]) for name, value in calibrated.items())
    least = -(attention.weights * attention.weights.clamp(min=1e-300).log()).sum() / attention.weights.sum()
    before, after = (
        float(divergence(attention, part._scores(weights, attention), None) - least) for weights in (parameters, calibrated)
    )  # pyright: ignore
    if balanced is None:
        assert 0 <= after < before / 2
    else:
        assert after < before


def test_calibration_is_finite_for_large_logits() -> None:
    part, parameters, attention = mapped("exp", 50.0)
    calibrated = part.calibrate(parameters, attention, SHAPE)  # pyright: ignore
    assert all(bool(value.isfinite().all()) for value in calibrated.values())


def test_maps_that_cannot_be_calibrated_keep_their_start() -> None:
    """Maps keep their start if they have no matrix, if features may be negative, or if queries and keys are unknown."""
    attention = replace(attended(), query=random(ROWS, LENGTH, 4, 4), key=random(ROWS, LENGTH, 2, 4))
    plain, negative, learned = FEATURE_MAPS["elu"](), FEATURE_MAPS["identity"](linear=True), FEATURE_MAPS["hedgehog"]()  # pyright: ignore
    for part, known in ((plain, attention), (negative, attention), (learned, attended())):
        assert part.calibrate(started(part, SHAPE), known, SHAPE) == {}
