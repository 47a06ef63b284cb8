"""With logarithms of features the recurrence equals exp in float64, also for logits whose exp overflows."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from blocks.recurrences import additive
from blocks.recurrences.stabilised import stabilise, stabilise_step
from tests.blocks.support import by_backend, close, owner, random

FORMS = by_backend(additive.FORMS)

HEADS = [(2, 2), (4, 2), (3, 1)]
KINDS = ["none", "head", "channel"]


def decays(kind: str, batch: int, length: int, heads: int, features: int) -> Tensor | None:
    if kind == "none":
        return None
    shape = (batch, length, heads) if kind == "head" else (batch, length, heads, features)
    return -torch.rand(shape, dtype=torch.float64)


def log_weights(
    log_query: Tensor, log_key: Tensor, decay: Tensor | None, segment: Tensor | None, head: int, heads: tuple[int, int]
) -> Tensor:
    """Return log Σ_f exp(ℓq_tf + ℓk_sf + Σ_{s<u≤t} g_uf) of one row and head as T × T, -inf if s is later or in another
    document.
    """
    length, own = log_query.shape[0], owner(head, *heads)
    weights = torch.full((length, length), -math.inf, dtype=torch.float64)
    for t in range(length):
        for s in range(t + 1):
            if segment is None or segment[s] == segment[t]:
                passed = 0 if decay is None else decay[s + 1 : t + 1, own].sum(0)
                weights[t, s] = (log_query[t, head] + log_key[s, own] + passed).logsumexp(-1)
    return weights


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("jump", [1.0, 50.0, 500.0])
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_outputs_equal_those_of_exp(heads: tuple[int, int], kind: str, documents: bool, jump: float, form: str) -> None:
    query_heads, state_heads = heads
    log_query, log_key = jump * random(2, 9, query_heads, 3), jump * random(2, 9, state_heads, 3)
    log_key[0, 2], log_key[1, :3] = -math.inf, -math.inf  # no key there
    value = torch.cat((random(2, 9, state_heads, 2), torch.ones(2, 9, state_heads, 1)), dim=-1)
    decay = decays(kind, 2, 9, state_heads, 3)
    segment = torch.tensor([[0] * 4 + [1] * 5, [1] * 6 + [2] * 3]) if documents else None
    empty = torch.full((2, state_heads, 3), -math.inf, dtype=torch.float64)
    got = stabilise(log_query, log_key, decay, segment, empty)
    start = torch.zeros(2, state_heads, 3, 3, dtype=torch.float64)
    output, _ = FORMS[form](got.query, got.key, value, got.log_decay, segment, start)
    for row in range(2):
        for head in range(query_heads):
            own = None if segment is None else segment[row]
            weights = log_weights(log_query[row], log_key[row], None if decay is None else decay[row], own, head, heads)
            log_mass = weights.logsumexp(-1)
            numerator, mass = output[row, :, head, :2], output[row, :, head, 2]
            present = log_mass > -math.inf
            close(mass.log() + got.log_scale[row, :, head], log_mass, 1e-9)
            share = (weights[present] - log_mass[present, None]).exp()
            close(numerator[present] / mass[present, None], share @ value[row, :, owner(head, *heads), :2], 1e-9)
            assert not numerator[~present].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("documents", [False, True])
def test_the_running_maximum_follows_its_recurrence(kind: str, documents: bool) -> None:
    """M_t = max(M_{t-1} + g_t, ℓ_t), from -∞ at a document's first token. Every exponential is at most 1."""
    for length in (1, 2, 3, 8, 13):
        log_query, log_key, maximum = 50 * random(2, length, 2, 3), 50 * random(2, length, 2, 3), 50 * random(2, 2, 3)
        log_key[0, length // 2] = -math.inf
        decay = decays(kind, 2, length, 2, 3)
        segment = (torch.rand(2, length) < 0.3).long().cumsum(1) if documents else None
        got = stabilise(log_query, log_key, decay, segment, maximum)
        running = maximum
        for t in range(length):
            lost = torch.zeros(2, 2, 3) if decay is None else decay[:, t].view(2, 2, -1).expand(-1, -1, 3)
            if segment is not None:
                starts = segment[:, t] != (segment[:, t - 1] if t else 0)
                running = running.masked_fill(starts[:, None, None], -math.inf)
            running = torch.maximum(running + lost, log_key[:, t])
        close(got.maximum, running)
        assert got.key.max() <= 1 + 1e-9
        assert got.query.amax(-1).sub(1).abs().max() < 1e-9
        assert got.log_decay.max() <= 1e-9
        assert all(tensor.isfinite().all() for tensor in (got.query, got.key, got.log_decay, got.log_scale))


@pytest.mark.parametrize("cut", [1, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_a_split_sequence_equals_one_call(kind: str, cut: int) -> None:
    log_query, log_key, value = 300 * random(2, 9, 2, 3), 300 * random(2, 9, 2, 3), random(2, 9, 2, 2)
    log_key[:, 0] = -math.inf
    decay = decays(kind, 2, 9, 2, 3)
    state, maximum = torch.zeros(2, 2, 3, 2, dtype=torch.float64), torch.full((2, 2, 3), -math.inf, dtype=torch.float64)
    whole = stabilise(log_query, log_key, decay, None, maximum)
    wanted, last = FORMS["reference"](whole.query, whole.key, value, whole.log_decay, None, state)
    outputs = []
    for piece in (slice(0, cut), slice(cut, 9)):
        part = stabilise(log_query[:, piece], log_key[:, piece], None if decay is None else decay[:, piece], None, maximum)
        output, state = FORMS["torch"](part.query, part.key, value[:, piece], part.log_decay, None, state)
        maximum = part.maximum
        close(part.log_scale, whole.log_scale[:, piece])
        outputs.append(output)
    close(torch.cat(outputs, dim=1), wanted)
    close(maximum, whole.maximum)
    close(state, last)


def test_absent_keys_alone_are_finite() -> None:
    nothing = torch.full((1, 4, 2, 3), -math.inf, dtype=torch.float64)
    got = stabilise(random(1, 4, 2, 3), nothing, None, None, nothing[:, 0])
    assert not got.key.any()
    assert got.maximum.isneginf().all()
    assert all(tensor.isfinite().all() for tensor in (got.query, got.log_decay, got.log_scale))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_those_of_exp(kind: str) -> None:
    """The maximum cancels, so it has no gradient. The other gradients are those of exp."""
    log_query, log_key, value = random(1, 7, 4, 3), random(1, 7, 2, 3), random(1, 7, 2, 2)
    log_key[:, 3] = -math.inf
    decay = decays(kind, 1, 7, 2, 3)
    segment = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    start, maximum = torch.zeros(1, 2, 3, 2, dtype=torch.float64), torch.full((1, 2, 3), -math.inf, dtype=torch.float64)
    tensors = [tensor.requires_grad_() for tensor in (log_query, log_key, value, decay) if tensor is not None]
    got = stabilise(log_query, log_key, decay, segment, maximum)
    output, _ = FORMS["torch"](got.query, got.key, value, got.log_decay, segment, start)
    stable = torch.autograd.grad((output * got.log_scale.exp()[..., None]).square().sum(), tensors)
    output, _ = FORMS["reference"](log_query.exp(), log_key.exp(), value, decay, segment, start)
    for mine, wanted in zip(stable, torch.autograd.grad(output.square().sum(), tensors), strict=True):
        close(mine, wanted, 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_token_by_token_equal_those_of_exp(kind: str) -> None:
    log_query, log_key, value = random(1, 7, 4, 3), random(1, 7, 2, 3), random(1, 7, 2, 2)
    decay = decays(kind, 1, 7, 2, 3)
    segment = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    start, maximum = torch.zeros(1, 2, 3, 2, dtype=torch.float64), torch.full((1, 2, 3), -math.inf, dtype=torch.float64)
    tensors = [tensor.requires_grad_() for tensor in (log_query, log_key, value, decay) if tensor is not None]
    output, _ = FORMS["reference"](log_query.exp(), log_key.exp(), value, decay, segment, start)
    wanted = torch.autograd.grad(output.square().sum(), tensors)
    outputs, state = [], start
    for t in range(7):
        token, begins = slice(t, t + 1), torch.tensor([[int(t == 4)]])
        got = stabilise_step(log_query[:, token], log_key[:, token], None if decay is None else decay[:, token], begins, maximum)
        answer, state = FORMS["reference"](got.query, got.key, value[:, token], got.log_decay, begins, state)
        maximum = got.maximum
        assert not maximum.requires_grad
        outputs.append(answer * got.log_scale.exp()[..., None])
    for mine, other in zip(torch.autograd.grad(torch.cat(outputs, dim=1).square().sum(), tensors), wanted, strict=True):
        close(mine, other, 1e-9)


@pytest.mark.parametrize("jump", [50.0, 500.0])
def test_float32_is_close_to_float64(jump: float) -> None:
    log_query, log_key, value = jump * random(1, 200, 2, 4), jump * random(1, 200, 2, 4), random(1, 200, 2, 2)
    value = torch.cat((value, torch.ones(1, 200, 2, 1)), dim=-1)
    decay, answers = decays("channel", 1, 200, 2, 4), []
    for kind, form in ((torch.float32, "torch"), (torch.float64, "reference")):
        empty = torch.full((1, 2, 4), -math.inf, dtype=kind)
        assert decay is not None
        # The same logarithms: float32's own rounding of ±500 is 3e-5 by itself.
        got = stabilise(log_query.float().to(kind), log_key.float().to(kind), decay.float().to(kind), None, empty)
        output, _ = FORMS[form](got.query, got.key, value.to(kind), got.log_decay, None, torch.zeros(1, 2, 4, 3, dtype=kind))
        answers.append((output[..., :2] / output[..., 2:], output[..., 2].log() + got.log_scale))
    close(answers[0][0].double(), answers[1][0], 2e-3)
    close(answers[0][1].double(), answers[1][1], 1e-4)
