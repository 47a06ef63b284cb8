"""Tokens are drawn as the fields of a request describe it, from a text's own random numbers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from composer.serving.requests import CompletionRequest
from composer.serving.sampling import LEAST_LOGPROB, TokenDrawer, logprobs_of

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -30.0])


def drawer(prompt: tuple[int, ...] = (), number: int = 0, **fields: Any) -> TokenDrawer:
    return TokenDrawer(CompletionRequest(model="m", prompt=["a"], **fields), prompt, number)


def drawn(count: int = 400, logits: Tensor = LOGITS, **fields: Any) -> Counter[int]:
    """Return how often each token is drawn, independently of those before."""
    return Counter(drawer(number=number, seed=7, **fields).draw(logits) for number in range(count))


def test_frequencies_are_probabilities() -> None:
    for temperature in (0.5, 1.0, 2.0):
        counts = drawn(4000, temperature=temperature)
        shares = torch.tensor([counts[token] / 4000 for token in range(5)])
        assert (shares - (LOGITS / temperature).softmax(0)).abs().max() < 0.03


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"temperature": 0}, {0}),
        ({"temperature": 1e-300}, {0}),
        ({"top_k": 1}, {0}),
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 0}, {0, 1, 2, 3}),
        ({"top_k": 10**6}, {0, 1, 2, 3}),
        ({"top_p": 0}, {0}),
        ({"top_p": 0.64}, {0}),  # the first has 0.644
        ({"top_p": 0.65}, {0, 1}),
        ({"min_p": 0.3}, {0, 1}),  # the second has 0.37 of the first, the third 0.14
        ({"min_p": 1}, {0}),
        ({"logit_bias": {"4": 100}}, {4}),
        ({"logit_bias": {"0": -100, "1": -100}}, {2, 3}),
        ({"top_k": 2, "top_p": 0.7}, {0}),  # of the two that remain, the first has 0.73
    ],
    ids=str,
)
def test_settings_limit_the_drawn_tokens(fields: dict[str, Any], tokens: set[int]) -> None:
    assert set(drawn(**fields)) == tokens


def test_a_seed_repeats_a_text_and_texts_of_a_request_differ() -> None:
    def text(number: int, **fields: Any) -> list[int]:
        drawing = drawer(number=number, **fields)
        return [drawing.draw(LOGITS) for _ in range(40)]

    assert text(0, seed=1) == text(0, seed=1)
    assert len({tuple(text(number, seed=seed)) for number in (0, 1) for seed in (1, 2)}) == 4
    assert text(0) != text(0)


def test_rounding_errors_do_not_change_a_text() -> None:
    noisy = LOGITS + 1e-6 * torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    assert drawn(1000, LOGITS) == drawn(1000, noisy)


def test_penalties_equal_those_of_openai() -> None:
    """presence_penalty once, frequency_penalty for each time, of generated tokens alone."""
    flat = torch.tensor([0.0, 0.1, 0.2])
    drawing = drawer(prompt=(2, 2), temperature=0, presence_penalty=0.15)
    assert [drawing.draw(flat) for _ in range(4)] == [2, 1, 2, 2]
    drawing = drawer(prompt=(2, 2), temperature=0, frequency_penalty=0.15)
    assert [drawing.draw(flat) for _ in range(4)] == [2, 1, 2, 0]


def test_repetitions_are_penalised_as_in_transformers() -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    logits = torch.tensor([1.0, 1.5, -0.5, -0.6])
    drawing = drawer(prompt=(1, 2, 1), repetition_penalty=1.7, temperature=0)
    processor: Any = RepetitionPenaltyLogitsProcessor(1.7)
    expected = processor(torch.tensor([[1, 2, 1]]), logits[None].clone())[0]
    torch.testing.assert_close(drawing._penalise(logits), expected)
    assert drawing.draw(logits) == 0
    assert drawing.draw(logits) == 1  # 1.5 / 1.7 is more than 1 / 1.7


def test_logprobs_equal_those_of_the_model() -> None:
    entry = logprobs_of(LOGITS, 1, 2)
    expected = LOGITS.log_softmax(0)
    assert (entry.token, [token for token, _ in entry.likeliest]) == (1, [0, 1])
    assert entry.logprob == pytest.approx(float(expected[1]))
    assert entry.likeliest[0][1] == pytest.approx(float(expected[0]))
    assert logprobs_of(LOGITS, 1, 0).likeliest == ()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_logits_that_are_no_numbers_give_tokens_and_finite_logprobs(value: float) -> None:
    logits = torch.tensor([0.0, value, 1.0])
    for temperature in (0, 1):
        assert 0 <= drawer(temperature=temperature, seed=0).draw(logits) < 3
    entries = [logprobs_of(logits, token, 3) for token in range(3)]
    assert all(entry.logprob >= LEAST_LOGPROB for entry in entries)
