"""The log-linear recurrence: its definition is the sum over levels in float64, the chunked form equals it, and fla agrees."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.recurrences.additive.recurrent import naive as additive
from blocks.recurrences.fenwick import chunked, level_of, naive

FEATURES, WIDTH, HEADS, STATE_HEADS, LEVELS = 5, 3, 4, 2, 9


def drawn(length: int, levels: int = LEVELS) -> dict[str, Any]:
    """Return random arguments of two rows that begin with an empty state."""
    random = torch.Generator().manual_seed(length)

    def normal(*shape: int) -> Tensor:
        return torch.randn(2, length, *shape, generator=random, dtype=torch.float64)

    return {
        "query": normal(HEADS, FEATURES),
        "key": normal(STATE_HEADS, FEATURES),
        "value": normal(1, WIDTH),
        "scale": normal(HEADS, levels).exp(),
        "log_decay": -normal(STATE_HEADS).abs() / 10,
        "position": torch.arange(length).expand(2, -1),
        "segment": None,
        "state": torch.zeros(2, STATE_HEADS, levels, FEATURES, WIDTH, dtype=torch.float64),
        "newest": torch.full((2,), -1),
    }


def formula(query: Tensor, key: Tensor, value: Tensor, scale: Tensor, log_decay: Tensor, position: Tensor, **_: Any) -> Tensor:
    """Return the outputs as the sum over all pairs s ≤ t: λ_t of s's level, times the decay since s, times q·k, times v."""
    key, log_decay = key.repeat_interleave(2, 2), log_decay.repeat_interleave(2, 2)
    length, outputs = query.shape[1], []
    for t in range(length):
        output = torch.zeros(2, HEADS, WIDTH, dtype=torch.float64)
        for s in range(t + 1):
            level = int(position[0, t] ^ position[0, s]).bit_length()
            weight = scale[:, t, :, min(level, scale.shape[3] - 1)] * log_decay[:, s + 1 : t + 1].sum(1).exp()
            output += (weight * (query[:, t] * key[:, s]).sum(-1))[..., None] * value[:, s]
        outputs.append(output)
    return torch.stack(outputs, dim=1)


@pytest.mark.parametrize("form", [naive, chunked])
@pytest.mark.parametrize("levels", [3, LEVELS])
def test_outputs_equal_the_sum_over_levels(form: Any, levels: int) -> None:
    """Three levels have 1, 1 and all older positions."""
    arguments = drawn(70, levels)
    torch.testing.assert_close(form(**arguments)[0], formula(**arguments), rtol=0, atol=1e-12)


def test_levels_have_1_1_2_4_and_8_positions() -> None:
    levels = level_of(torch.tensor(15), torch.arange(16), LEVELS)
    assert levels.bincount().tolist() == [1, 1, 2, 4, 8]


@pytest.mark.parametrize("form", [naive, chunked])
def test_factors_of_1_are_the_additive_recurrence(form: Any) -> None:
    arguments = drawn(75)
    arguments["scale"] = torch.ones_like(arguments["scale"])
    output, state = form(**arguments)
    query, key, value, log_decay = (arguments[name] for name in ("query", "key", "value", "log_decay"))
    expected, matrix = additive(query, key, value, log_decay, None, arguments["state"][:, :, 0])
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(state.sum(2), matrix, rtol=0, atol=1e-12)


def test_chunks_equal_the_definition_with_their_gradients() -> None:
    """Positions jump, three documents begin in a row, the first one continues a state, and the last levels are full."""
    arguments = drawn(150, levels=6)
    arguments["position"] = torch.cat((torch.arange(40) + 7, 3 * torch.arange(70), torch.arange(40))).expand(2, -1)
    arguments["segment"] = torch.tensor([0] * 40 + [1] * 70 + [2] * 40).expand(2, -1)
    arguments |= {"state": torch.randn(arguments["state"].shape, dtype=torch.float64), "newest": torch.full((2,), 6)}
    arguments["state"][:, :, 4:] = 0  # positions 0 to 6 fill four levels
    names = ("query", "key", "value", "scale", "log_decay", "state")
    answers = []
    for form in (naive, chunked):
        leaves = {name: arguments[name].clone().requires_grad_() for name in names}
        output, state = form(**arguments | leaves)
        gradients = torch.autograd.grad(output.square().sum() + state.square().sum(), list(leaves.values()))
        answers.append((output, state, *gradients))
    for actual, expected in zip(*answers, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10 * expected.abs().max().item())


@pytest.mark.parametrize("cut", [1, 17, 64, 100])
def test_a_text_in_two_calls_equals_one_call(cut: int) -> None:
    arguments = drawn(130)
    whole, last = chunked(**arguments)
    tokens = ("query", "key", "value", "scale", "log_decay", "position")
    first, state = chunked(**arguments | {name: arguments[name][:, :cut] for name in tokens})
    rest = {name: arguments[name][:, cut:] for name in tokens}
    second, state = chunked(**arguments | rest | {"state": state, "newest": arguments["position"][:, cut - 1]})
    torch.testing.assert_close(torch.cat((first, second), dim=1), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(state, last, rtol=0, atol=1e-12)


def test_outputs_equal_those_of_flash_linear_attention() -> None:
    oracle = pytest.importorskip("fla.ops.log_linear_attn.naive").naive_log_linear_attn
    arguments = drawn(64)
    key, decay = (arguments[name].repeat_interleave(2, 2) for name in ("key", "log_decay"))
    value = arguments["value"].repeat_interleave(HEADS, 2)
    expected = oracle(arguments["query"], key, value, decay, arguments["scale"])
    torch.testing.assert_close(naive(**arguments)[0], expected, rtol=0, atol=1e-12)
