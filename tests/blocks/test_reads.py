"""Each read equals its formula (one denominator, fixed shares, or a sum), and an empty memory has weight 0."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from blocks.flow import Partial
from blocks.reads import Gated, Mixture, Read, Shared, Sum
from tests.blocks.support import assert_derivatives, close, combined, random

EMPTY = -math.inf


def partial(lse: Tensor | None = None, logit: Tensor | None = None) -> Partial:
    output = random(2, 3, 4, 5)
    output = output if lse is None else output.masked_fill(lse.isneginf()[..., None], 0.0)
    return Partial(output, lse, logit)


def masses(*, some_empty: bool = False) -> Tensor:
    lse = 3 * random(2, 3, 4)
    return lse.masked_fill(torch.rand(2, 3, 4) < 0.5, EMPTY) if some_empty else lse


def shared_by_hand(partials: Sequence[Partial]) -> Tensor:
    """Compute Σ_m σ(w_m) exp(lse_m) o_m / Σ_m σ(w_m) exp(lse_m), or 0 if all memories are empty."""
    numerator, denominator = torch.zeros(2, 3, 4, 5, dtype=torch.float64), torch.zeros(2, 3, 4, dtype=torch.float64)
    for partial_output in partials:
        assert partial_output.lse is not None
        mass = partial_output.lse.exp() * (1 if partial_output.logit is None else 1 / (1 + (-partial_output.logit).exp()))
        numerator, denominator = numerator + mass[..., None] * partial_output.output, denominator + mass
    return torch.where(denominator[..., None] > 0, numerator / denominator.clamp(min=1e-300)[..., None], 0.0)


@pytest.mark.parametrize("some_empty", [False, True])
def test_shared_read_has_one_denominator(some_empty: bool) -> None:
    for logits in ((None, None), (random(4), None), (random(4), random(4)), (None, random(4), random(4))):
        partials = [partial(masses(some_empty=some_empty), logit) for logit in logits]
        close(combined(Shared(), partials), shared_by_hand(partials))


@pytest.mark.parametrize("read", [Mixture(), Sum(), Gated()], ids=["mixture", "sum", "gated"])
def test_raw_numerators_keep_their_range_beside_half_precision(read: Read) -> None:
    """A numerator of 10⁶, which is infinite in float16, keeps its range in either order of the memories."""
    near = Partial(torch.ones(1, 2, 4, 5, dtype=torch.float16), torch.zeros(1, 2, 4))
    raw = Partial(torch.full((1, 2, 4, 5), 1e6), None)
    for partials in ((near, raw), (raw, near)):
        answer = combined(read, partials)
        assert answer.dtype == torch.float32
        assert torch.equal(answer, torch.full_like(answer, (1e6 + 1) / 2 if isinstance(read, Mixture) else 1e6 + 1))


def test_shared_read_is_finite_for_extreme_masses() -> None:
    """Only the ratio of masses counts, even for masses of e^±5000."""
    for offset in (-5000.0, 5000.0):
        lse = masses(), masses()
        outputs = [partial(value) for value in lse]
        moved = [Partial(output.output, output.lse + offset) for output in outputs]
        close(combined(Shared(), moved), combined(Shared(), outputs), 1e-9)


@pytest.mark.parametrize("read", [Shared(), Sum()], ids=["shared", "sum"])
def test_empty_memories_give_0_and_finite_gradients(read: Read) -> None:
    output, logit = torch.zeros(1, 2, 4, 5, requires_grad=True), torch.zeros(4, requires_grad=True)
    lse = torch.full((1, 2, 4), EMPTY, requires_grad=True)
    answer = combined(read, [Partial(output, lse, logit), Partial(output, lse)])
    assert torch.equal(answer, torch.zeros(1, 2, 4, 5))
    for gradient in torch.autograd.grad(answer.sum(), (output, lse, logit)):
        assert gradient.isfinite().all()


def test_empty_memories_do_not_change_the_read() -> None:
    full = partial(masses(), random(4))
    nothing = partial(torch.full((2, 3, 4), EMPTY), random(4))
    close(combined(Shared(), [full, nothing]), full.output)
    close(combined(Sum(), [nothing, full]), full.output)


def test_mixture_of_two_weights_by_sigma_and_1_minus_sigma() -> None:
    """The workshop paper's eq. 8 is σ · window + (1 - σ) · state for any masses. An empty state gives 0 and keeps its share."""
    factor = random(4)
    for lse in (masses(), None):
        window, state = partial(lse, factor), partial(masses(some_empty=True))
        sigma = (1 / (1 + (-factor).exp()))[:, None]
        close(combined(Mixture(), [window, state]), sigma * window.output + (1 - sigma) * state.output)
        close(combined(Mixture(), [state, window]), sigma * window.output + (1 - sigma) * state.output)


def test_mixture_of_three_is_a_softmax_of_logits() -> None:
    first, second = random(4), random(4)
    partials = [partial(logit=first), partial(logit=second), partial()]
    weights = torch.stack((first.exp(), second.exp(), torch.ones(4)))
    weights = (weights / weights.sum(0))[:, :, None]
    close(
        combined(Mixture(), partials),
        sum(weight * partial_output.output for weight, partial_output in zip(weights, partials, strict=True)),
    )
    even = [partial(), partial()]
    close(combined(Mixture(), even), (even[0].output + even[1].output) / 2)


def test_sum_read_adds_raw_numerators_to_the_shared_read() -> None:
    raw, weighted = partial(), partial(logit=random(4))
    sigma = (1 / (1 + (-weighted.logit).exp()))[:, None]
    window, state = partial(masses(), random(4)), partial(masses(some_empty=True))
    close(combined(Sum(), [window, raw, state]), shared_by_hand([window, state]) + raw.output)
    close(combined(Sum(), [raw, weighted]), raw.output + sigma * weighted.output)


@pytest.mark.parametrize(
    ("read", "with_mass"),
    [(Shared(), [1, 1]), (Mixture(), [1, 0]), (Sum(), [1, 0]), (Gated(), [1, 0])],
    ids=["shared", "mixture", "sum", "gated"],
)
def test_gradients_match_numerical_gradients(read: Read, with_mass: list[int]) -> None:
    tensors = [random(1, 2, 3, 2), random(1, 2, 3, 2), random(1, 2, 3), random(1, 2, 3), random(3), random(3)]

    def run(first: Tensor, second: Tensor, lse: Tensor, other: Tensor, logit: Tensor, more: Tensor) -> Tensor:
        return combined(read, [Partial(first, lse, logit), Partial(second, other if with_mass[1] else None, more)])

    assert_derivatives(run, tensors)


@pytest.mark.parametrize("read", [Shared(), Mixture(), Sum(), Gated()], ids=["shared", "mixture", "sum", "gated"])
def test_half_precision_outputs_keep_their_dtype_and_are_weighted_in_float32(read: Read) -> None:
    exact = [partial(masses(), random(4)), partial(masses())]
    exact = [Partial(value.output.bfloat16().double(), value.lse, value.logit) for value in exact]
    half = [
        Partial(value.output.bfloat16(), value.lse.float(), None if value.logit is None else value.logit.float()) for value in exact
    ]
    answer = combined(read, half)
    assert answer.dtype == torch.bfloat16
    # One rounding at the end: half a unit in the last of 8 bits.
    wanted = combined(read, exact)
    assert ((answer.double() - wanted).abs() <= 2**-8 * wanted.abs() + 1e-6).all()


def test_gated_read_adds_outputs_times_their_own_weights() -> None:
    """Masses have no effect. An output without a weight has the factor 1, and one weight for each token is as one for all."""
    by_token, by_head = random(2, 3, 4), random(4)
    window, state, whole = partial(masses(), by_token), partial(masses(some_empty=True), by_head), partial()
    sigma = [1 / (1 + (-logit).exp()) for logit in (by_token, by_head)]
    wanted = sigma[0][..., None] * window.output + sigma[1][:, None] * state.output + whole.output
    close(combined(Gated(), [window, state, whole]), wanted)


def test_mixture_equals_the_read_of_infini_attention() -> None:
    """arXiv:2404.07143, eq. 10: σ(β) A_mem + (1 - σ(β)) A_dot, each divided by its mass, unlike a sum."""
    gate = random(4)
    memory, near = partial(masses(), gate), partial(masses())
    share = (1 / (1 + (-gate).exp()))[:, None]
    close(combined(Mixture(), [memory, near]), share * memory.output + (1 - share) * near.output)
    assert "2404.07143" in Mixture.source
    assert "2404.07143" not in Sum.source
