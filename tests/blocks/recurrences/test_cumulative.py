"""Keys and decays of causal Latte are exp(θ_t - z_t) and z_{t-1} - z_t for any logits, with z the document's running logsumexp."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from blocks.recurrences import additive
from blocks.recurrences.cumulative import Cumulative, cumulate
from tests.blocks.support import by_backend, close, random

FORMS = by_backend(additive.FORMS)

LENGTHS = [1, 2, 3, 4, 8, 13, 31]
SEGMENTS = {1: [[0], [1]], 8: [[0, 0, 0, 1, 1, 2, 3, 3], [1, 1, 1, 1, 1, 1, 4, 4]]}


def nothing(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maximum and the sum before any token."""
    return torch.full_like(logits[:, 0], -math.inf), torch.zeros_like(logits[:, 0])


def running(logits: Tensor, segment: Tensor | None, before: Tensor) -> tuple[Tensor, Tensor]:
    """Return z_{t-1} and z_t token by token. z_{t-1} is -inf at a document's first token."""
    earlier, later = [], []
    for t in range(logits.shape[1]):
        if segment is not None:
            last = segment[:, t - 1] if t else torch.zeros_like(segment[:, 0])
            before = before.masked_fill((segment[:, t] != last)[:, None, None], -math.inf)
        earlier.append(before)
        before = torch.logaddexp(before, logits[:, t])
        later.append(before)
    return torch.stack(earlier, dim=1), torch.stack(later, dim=1)


def check(got: Cumulative, logits: Tensor, segment: Tensor | None, before: Tensor, tolerance: float = 1e-10) -> None:
    earlier, later = running(logits, segment, before)
    present = ~later.isneginf()
    close(got.key, torch.where(present, logits - later, -math.inf).exp(), tolerance)
    close(got.log_decay, torch.where(earlier.isneginf(), 0.0, earlier - later.masked_fill(~present, 0.0)), tolerance)
    close(got.maximum + got.total.log(), later[:, -1], tolerance)
    assert got.key.min() >= 0
    assert got.key.max() <= 1
    assert got.log_decay.max() <= 0
    assert got.log_decay.isfinite().all()


@pytest.mark.parametrize("size", [1.0, 50.0, 500.0])
@pytest.mark.parametrize("length", LENGTHS)
def test_z_equals_the_running_logsumexp(length: int, size: float) -> None:
    logits = size * random(2, length, 3, 2)
    logits[0, length // 2], logits[1, 0] = -math.inf, -math.inf  # no token there
    empty = nothing(logits)
    check(cumulate(logits, None, *empty), logits, None, empty[0])
    maximum, total = size * random(2, 3, 2), 1 + random(2, 3, 2).square()
    check(cumulate(logits, None, maximum, total), logits, None, maximum + total.log())


@pytest.mark.parametrize("size", [1.0, 500.0])
@pytest.mark.parametrize("length", SEGMENTS)
def test_documents_start_without_the_initial_sum(length: int, size: float) -> None:
    """Segment 0 continues the initial sum. Any other segment does not, even as the first of the row."""
    logits, segment = size * random(2, length, 3, 2), torch.tensor(SEGMENTS[length])
    logits[0, length // 2] = -math.inf
    maximum, total = size * random(2, 3, 2), 1 + random(2, 3, 2).square()
    check(cumulate(logits, segment, maximum, total), logits, segment, maximum + total.log())


@pytest.mark.parametrize("length", [2, 7, 16, 40])
def test_random_documents_match_the_definition(length: int) -> None:
    for _ in range(5):
        logits, segment = 100 * random(2, length, 1, 2), (torch.rand(2, length) < 0.3).long().cumsum(1)
        empty = nothing(logits)
        check(cumulate(logits, segment, *empty), logits, segment, empty[0])


def test_constant_logits_give_cumulative_averages() -> None:
    """For constant logits the key is 1/t and the decay log((t-1)/t), so the recurrence is the cumulative average."""
    got = cumulate(torch.full((1, 20, 1, 2), 300.0), None, *nothing(torch.zeros(1, 1, 1, 2)))
    count = torch.arange(1.0, 21.0)
    close(got.key[0, :, 0, 0], 1 / count, 1e-6)
    close(got.log_decay[0, 1:, 0, 0], (1 - 1 / count[1:]).log(), 1e-6)
    close(got.total, torch.full((1, 1, 2), 20.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_example_of_appendix_b_3_is_exact(dtype: torch.dtype) -> None:
    """y = [1, 10, 1000]: subtracting the global maximum would leave nothing of the first two."""
    logits = torch.tensor([1.0, 10.0, 1000.0, 1000.0], dtype=dtype)[None, :, None, None]
    got = cumulate(logits, None, *nothing(logits))
    close(got.key.flatten(), torch.tensor([1.0, 1 / (1 + math.exp(-9)), 1.0, 0.5]), 1e-6)
    close(got.log_decay.flatten(), torch.tensor([0.0, -9 - math.log1p(math.exp(-9)), -990.0, -math.log(2)]), 1e-6)
    assert got.key.dtype == got.log_decay.dtype == got.maximum.dtype == got.total.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_jumps_of_500_are_finite_and_exact(dtype: torch.dtype) -> None:
    logits = 500 * torch.randint(-1, 2, (2, 200, 2, 3)).double() + random(2, 200, 2, 3)
    empty = nothing(logits)
    segment = torch.tensor([[0] * 90 + [1] * 110, [1] * 200])
    # The same logits: float32's own rounding of ±500 is 3e-5 by itself.
    rounded = logits.to(dtype)
    got = cumulate(rounded, segment, *(state.to(dtype) for state in empty))
    check(got, rounded.double(), segment, empty[0], 1e-5 if dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("pieces", [[1] * 9, [4, 5], [8, 1], [1, 3, 2, 3]], ids=str)
def test_a_split_sequence_equals_one_call(pieces: list[int], documents: bool) -> None:
    logits = 300 * random(2, 9, 2, 3)
    logits[0, 0], logits[:, 4] = -math.inf, -math.inf
    segment = torch.tensor([[0, 0, 0, 0, 1, 1, 2, 2, 2], [1, 1, 2, 3, 3, 3, 3, 3, 4]]) if documents else None
    whole, sums = cumulate(logits, segment, *nothing(logits)), nothing(logits)
    keys, decays, start = [], [], 0
    for length in pieces:
        columns = slice(start, start + length)
        own = None if segment is None else segment[:, columns] - (segment[:, start - 1, None] if start else 0)
        got = cumulate(logits[:, columns], own, *sums)
        keys.append(got.key)
        decays.append(got.log_decay)
        sums, start = (got.maximum, got.total), start + length
    close(torch.cat(keys, dim=1), whole.key)
    close(torch.cat(decays, dim=1), whole.log_decay)
    close(sums[0], whole.maximum)
    close(sums[1], whole.total)


def test_absent_tokens_change_nothing() -> None:
    logits = random(1, 9, 2, 3)
    logits[:, 5:] = -math.inf
    got, wanted = cumulate(logits, None, *nothing(logits)), cumulate(logits[:, :5], None, *nothing(logits))
    assert not got.key[:, 5:].any()
    assert not got.log_decay[:, 5:].any()
    assert torch.equal(got.maximum, wanted.maximum)
    close(got.total, wanted.total, 1e-15)
    for length in (1, 4):
        held = cumulate(logits[:, 9 - length :], None, wanted.maximum, wanted.total)
        assert torch.equal(held.maximum, wanted.maximum)
        assert torch.equal(held.total, wanted.total)


@pytest.mark.parametrize("length", [1, 6])
def test_absent_tokens_alone_are_finite(length: int) -> None:
    logits = torch.full((1, length, 2, 3), -math.inf, dtype=torch.float64, requires_grad=True)
    got = cumulate(logits, None, *nothing(logits.detach()))
    assert not got.key.any()
    assert not got.log_decay.any()
    assert not got.total.any()
    assert got.maximum.isneginf().all()
    (gradient,) = torch.autograd.grad(got.key.sum() + got.log_decay.sum() + got.total.sum(), logits)
    assert not gradient.any()


@pytest.mark.parametrize("size", [1.0, 30.0])
@pytest.mark.parametrize("cut", [None, 1, 4])
def test_gradients_equal_those_of_the_logsumexp(cut: int | None, size: float) -> None:
    """Gradients pass through z and through the final sum: decay and key of t depend on every earlier θ."""
    logits, segment = size * random(1, 9, 2, 3), torch.tensor([[0, 0, 0, 0, 0, 0, 1, 1, 1]])
    weights = random(2, 1, 9, 2, 3)
    logits.requires_grad_()
    sums, start, loss = nothing(logits.detach()), 0, 0.0
    for end in (9,) if cut is None else (cut, 9):
        got = cumulate(logits[:, start:end], segment[:, start:end], *sums)
        loss = loss + (weights[0, :, start:end] * got.key + weights[1, :, start:end] * got.log_decay).sum()
        sums, start = (got.maximum, got.total), end
    assert isinstance(loss, Tensor)
    earlier, later = [], []
    for t in range(9):
        first = 0 if t < 6 else 6
        later.append(logits[:, first : t + 1].logsumexp(1))
        earlier.append(later[-1] if t == first else logits[:, first:t].logsumexp(1))  # a first token has decay 0
    key, decay = (logits - torch.stack(later, dim=1)).exp(), torch.stack(earlier, dim=1) - torch.stack(later, dim=1)
    decay = decay * torch.tensor([t not in {0, 6} for t in range(9)])[:, None, None]
    wanted = torch.autograd.grad((weights[0] * key + weights[1] * decay).sum(), logits)
    close(torch.autograd.grad(loss, logits)[0], wanted[0])


def test_gradients_are_finite_at_jumps_and_absent_tokens() -> None:
    logits = 500 * random(2, 50, 1, 3, dtype=torch.float32)
    logits[:, ::7] = -math.inf
    logits.requires_grad_()
    got = cumulate(logits, (torch.rand(2, 50) < 0.1).long().cumsum(1), *nothing(logits.detach()))
    (gradient,) = torch.autograd.grad((got.key * random(2, 50, 1, 3, dtype=torch.float32)).sum() + got.log_decay.sum(), logits)
    assert gradient.isfinite().all()
    assert not gradient[:, ::7].any()


@pytest.mark.parametrize("size", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("piece", [131_072, 2048])
def test_float32_matches_float64_over_131072_tokens(piece: int, size: float) -> None:
    """Keys, decays, their sums, the last normaliser and means of values match float64 over 131,072 tokens."""
    length = 131_072
    logits = size * random(1, length, 1, 2, dtype=torch.float32)
    z = logits.double().logcumsumexp(1)
    sums, pieces = nothing(logits), []
    for start in range(0, length, piece):
        got = cumulate(logits[:, start : start + piece], None, *sums)
        sums = got.maximum, got.total
        pieces.append(got)
    key, decay = (torch.cat([getattr(got, name) for got in pieces], dim=1) for name in ("key", "log_decay"))
    assert decay.max() <= 0
    close(key.double() / (logits.double() - z).exp(), torch.ones_like(z), 1e-5)
    close(decay.double().cumsum(1), z[:, :1] - z, 1e-5)
    close(sums[0].double() + sums[1].double().log(), z[:, -1], 1e-6)

    value, query = random(1, length, 1, 1), torch.full((1, length, 1, 2), 0.5)
    output, _ = FORMS["torch"](query, key, value.float(), decay, None, torch.zeros(1, 1, 2, 1))
    last = ((logits.double() - z[:, -1:]).exp() * value).sum(1)
    close(output[:, -1].double(), last.mean(-1, keepdim=True), 1e-5)
