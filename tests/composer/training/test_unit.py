"""A unit takes AdamW's steps, clips by its own norm, follows its schedule, keeps its best parameters, and stops as configured."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from composer.errors import TrainingError
from composer.spec.recipe import Stage
from composer.training.unit import DIVERGED, RECENT, Unit, UnitFacts, share_of_rate, warn_if_risen

LENGTH = 10


def stage(**changes: Any) -> Stage:
    return Stage(**{"lr": 0.1, "steps": LENGTH, **changes})


def parameter(*shape: int, seed: int = 0) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


def gradient(like: Tensor, step: int) -> Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(100 + step), dtype=like.dtype)


def unit_of(settings: Stage, **parameters: nn.Parameter) -> Unit:
    return Unit("layer 3", settings, [(settings.lr, parameters)])


def take(unit: Unit, step: int, loss: float = 1.0) -> float:
    for parameter in unit.parameters.values():
        parameter.grad = gradient(parameter, step)
    return unit.update(step, LENGTH, loss)


def adamw(start: Tensor, rates: list[float], betas: tuple[float, float], decay: float) -> Tensor:
    """Take a step of Loshchilov and Hutter 2019, algorithm 2."""
    value, first, second = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    for step, rate in enumerate(rates):
        slope = gradient(start, step)
        first = betas[0] * first + (1 - betas[0]) * slope
        second = betas[1] * second + (1 - betas[1]) * slope**2
        corrected = first / (1 - betas[0] ** (step + 1)), second / (1 - betas[1] ** (step + 1))
        value = value - rate * decay * value - rate * corrected[0] / (corrected[1].sqrt() + 1e-8)
    return value


def test_a_step_is_adamw_at_the_rate_of_the_schedule() -> None:
    settings = stage(clip=None, weight_decay=0.3, betas=(0.8, 0.95), schedule="cosine", warmup=2, final=0.1)
    weight = parameter(3, 4)
    start, unit = weight.detach().clone(), unit_of(settings, weight=weight)
    for step in range(LENGTH):
        take(unit, step)
    rates = [settings.lr * share_of_rate(settings, step, LENGTH) for step in range(LENGTH)]
    assert len(set(rates)) == LENGTH - 1, "the warm-up's last step and the first after it learn at the whole rate"
    torch.testing.assert_close(weight.detach(), adamw(start, rates, settings.betas, 0.3), rtol=1e-12, atol=1e-12)
    assert weight.grad is None


def test_unused_parameters_have_a_gradient_of_zero() -> None:
    """Its momentum is still updated, as if other processes' rows had used it."""
    left_out, zero, settings = parameter(5), parameter(5), stage()
    for weight, nothing in ((left_out, None), (zero, torch.zeros_like(zero))):
        unit = unit_of(settings, weight=weight)
        take(unit, 0)
        weight.grad = nothing
        unit.update(1, LENGTH, 1.0)
        take(unit, 2)
    assert torch.equal(left_out, zero)


def test_groups_have_separate_rates() -> None:
    settings, slow, fast = stage(clip=None), parameter(5), parameter(5)
    start = slow.detach().clone()
    unit = Unit("model", settings, [(1e-3, {"slow": slow}), (1e-1, {"fast": fast}), (7.0, {})])
    take(unit, 0)
    torch.testing.assert_close((slow - start).abs(), torch.full((5,), 1e-3).double(), rtol=1e-6, atol=0)
    torch.testing.assert_close((fast - start).abs(), torch.full((5,), 1e-1).double(), rtol=1e-6, atol=0)


def test_the_gradient_norm_of_a_unit_is_clipped_as_a_whole() -> None:
    clip, first, two = 0.5, parameter(4), parameter(2, 3, seed=1)
    unit = Unit("model", stage(clip=clip, betas=(0.0, 0.0)), [(0.1, {"one": first}), (0.2, {"two": two})])
    expected = torch.cat([gradient(first, 0), gradient(two, 0).flatten()]).norm()
    clipped: dict[str, Tensor] = {}
    for name, weight in unit.parameters.items():
        weight.grad = gradient(weight, 0)
        clipped[name] = weight.grad
    norm = unit.update(0, LENGTH, 1.0)
    assert norm == pytest.approx(float(expected), rel=1e-12)
    assert norm > clip
    for name, weight in unit.parameters.items():
        torch.testing.assert_close(clipped[name], gradient(weight, 0) * clip / norm)


def test_a_small_gradient_is_not_clipped() -> None:
    weight = parameter(2)
    unit = unit_of(stage(clip=1e9), weight=weight)
    held = weight.grad = gradient(weight, 0)
    unit.update(0, LENGTH, 1.0)
    assert torch.equal(held, gradient(weight, 0))


def test_warm_up_and_schedules_scale_the_rate() -> None:
    warm = stage(warmup=4)
    assert [share_of_rate(warm, step, LENGTH) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    cosine = stage(schedule="cosine", final=0.2, warmup=2)
    shares = [share_of_rate(cosine, step, LENGTH) for step in range(2, LENGTH + 1)]
    assert shares[0] == 1.0
    assert shares[4] == pytest.approx(0.6), "half of the way, half between 1 and the final share"
    assert shares[-1] == pytest.approx(0.2)
    assert shares == sorted(shares, reverse=True)
    assert [share_of_rate(stage(), step, LENGTH) for step in (0, 9)] == [1.0, 1.0]
    assert [share_of_rate(stage(schedule="plateau"), step, LENGTH) for step in (0, 9)] == [1.0, 1.0]


def test_a_plateau_halves_the_rate_after_two_evaluations_without_a_gain() -> None:
    unit = unit_of(stage(schedule="plateau", warmup=2), weight=parameter(2))
    factors = []
    for loss in (3.0, 3.0, 3.1, 2.9, 2.95, 2.9, 2.9, 2.9, 1.0):
        unit.update_after_evaluation(loss)
        factors.append(unit.rate(5, LENGTH))
    assert factors == [1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125]
    assert unit.rate(0, LENGTH) == 0.0625, "the warm-up counts as well"


def test_training_stops_once_evaluations_without_a_gain_reach_the_patience() -> None:
    unit = unit_of(stage(patience=3), weight=parameter(2))
    stopped = []
    for loss in (3.0, 3.1, 3.1, 2.0, 2.5, 2.5, 2.0):
        unit.update_after_evaluation(loss)
        stopped.append(unit.progress.stopped)
    assert stopped == [False] * 6 + [True]


@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_parameters_selected_by_keep_are_kept(keep: str) -> None:
    weight = parameter(2)
    unit = unit_of(stage(keep=keep), weight=weight)
    seen = []
    for step, loss in enumerate((3.0, 1.0, 2.0)):
        take(unit, step)
        seen.append(weight.detach().clone())
        unit.update_after_evaluation(loss)
    unit.finish()
    assert torch.equal(weight.detach(), seen[1 if keep == "best" else 2])


def test_without_evaluation_nothing_is_restored() -> None:
    weight = parameter(2)
    unit = unit_of(stage(), weight=weight)
    take(unit, 0)
    now = weight.detach().clone()
    unit.finish()
    assert torch.equal(weight.detach(), now)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_losses_that_are_not_finite_raise(loss: float) -> None:
    weight = parameter(2)
    unit, before = unit_of(stage(), weight=weight), weight.detach().clone()
    with pytest.raises(TrainingError, match=rf"^layer 3: the loss is {loss} at step 5\. .*a lower lr"):
        take(unit, 4, loss)
    assert torch.equal(weight.detach(), before)
    with pytest.raises(TrainingError, match=f"layer 3: the loss of an evaluation is {loss}"):
        unit.update_after_evaluation(loss)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_gradients_that_are_not_finite_raise(value: float) -> None:
    good, bad = parameter(2), parameter(2, seed=1)
    unit, before = unit_of(stage(), good=good, bad=bad), good.detach().clone()
    good.grad, bad.grad = torch.ones_like(good), torch.tensor([0.0, value], dtype=torch.float64)
    with pytest.raises(TrainingError, match=r"layer 3: the gradient of bad is not finite at step 1; the loss was 2\.5"):
        unit.update(0, LENGTH, 2.5)
    assert torch.equal(good.detach(), before), "no parameter has moved"


def test_divergence_is_reported_if_losses_are_far_above_the_start() -> None:
    unit = unit_of(stage(), weight=parameter(2))
    high = 1.001 * DIVERGED
    for step in range(RECENT):
        take(unit, step, 1.0)
    for step in range(RECENT - 1):
        take(unit, RECENT + step, high)
    with pytest.raises(TrainingError, match=rf"layer 3: the loss has risen from 1 to 10\.01 by step {2 * RECENT}: it diverges"):
        take(unit, 2 * RECENT - 1, high)


def test_a_unit_whose_loss_may_rise_neither_diverges_nor_warns() -> None:
    """Gates begin open, with a loss near 0. They close, and the loss rises with the penalty that closes them."""
    unit = Unit("gates", stage(), [(1e-3, {"weight": parameter(2)})], may_rise=True)
    for step in range(4 * RECENT):
        take(unit, step, 1e-3 if step < RECENT // 2 else DIVERGED)
    assert not list(warn_if_risen([unit], {}))


def test_a_single_high_loss_is_no_divergence() -> None:
    unit = unit_of(stage(), weight=parameter(2))
    for step in range(4 * RECENT):
        assert take(unit, step, 9 * DIVERGED if step == 2 * RECENT else 1.0) > 0


def test_a_unit_is_restored_from_facts_and_tensors() -> None:
    settings = stage(schedule="plateau", patience=9)
    here, other_parameter = parameter(3), parameter(3, seed=5)
    still = [parameter(2, seed=seed) for seed in (7, 8)]
    first, other = (
        unit_of(settings, moved=moved, still=quiet) for moved, quiet in zip((here, other_parameter), still, strict=True)
    )
    for step, loss in enumerate((3.0, 1.0, 2.0, 2.0)):
        here.grad = gradient(here, step)
        first.update(step, LENGTH, loss)
        first.update_after_evaluation(loss)
    other.restore(UnitFacts.model_validate_json(first.facts().model_dump_json()))
    assert other.progress == first.progress
    assert (other.progress.best, other.progress.waited, other.progress.factor) == (1.0, 2, 0.5)
    saved, room = first.tensors(), other.tensors()
    assert room.keys() == saved.keys(), "as many tensors, with the same names, and none for what has no gradient"
    for name, tensor in room.items():
        assert tensor.shape == saved[name].shape
        assert tensor.dtype == saved[name].dtype
        tensor.copy_(saved[name])
    for step in (4, 5):
        for unit, moved in ((first, here), (other, other_parameter)):
            moved.grad = gradient(moved, step)
            unit.update(step, LENGTH, 1.0)
    assert torch.equal(here, other_parameter)
    first.finish()
    other.finish()
    assert torch.equal(here, other_parameter)
