"""The attention errors of LoLA's Appendix D equal double sums over the queries that saw a pair, stay in range, and have no
gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from blocks.flow import Pairs, Tokens
from blocks.memories import candidates
from blocks.memories.candidates import Error, error_sums
from blocks.scores import SCORES
from blocks.scores.base import LARGEST
from tests.blocks.memories.lola import CONVOLVED, ROWS, SPLITS, ByHand, Cascade, run, sparse, streamed, window
from tests.blocks.support import close, counted, owner, random

ERRORS = [kind for kind, score in SCORES.items() if score.reads == "window"]
HEADS = [(4, 2, 4), (4, 2, 2), (3, 1, 1)]
"""H query heads, K key heads, N heads of the keys' features."""


def by_hand(error: str, logit: float, product: float) -> float:
    """Return one query's term: eq. 19, its absolute form, or eq. 20."""
    exact = math.exp(min(logit, LARGEST))
    product = min(product, math.exp(LARGEST))
    if error == "overestimate":
        return product / max(exact, math.exp(-LARGEST))
    return (exact - product) ** 2 if error == "squared_error" else abs(exact - product)


def everything(seen: Tensor) -> Callable[[slice, slice], Tensor]:
    return lambda rows, entries: seen[:, rows, entries]


def compared(error: str, query: Tensor, key: Tensor) -> tuple[Error, tuple[Tensor, Tensor]]:
    """Return the comparison of already computed features."""
    return SCORES[error]().error, (query, key)


@pytest.mark.parametrize("rows", [3, 64])
@pytest.mark.parametrize("logarithm", [False, True], ids=["plain", "logarithm"])
@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("error", ERRORS)
def test_weight_errors_equal_double_sums(
    error: str, heads: tuple[int, int, int], logarithm: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five stored pairs precede the call's seven tokens. A token sees itself and the five before it. Padding sees nothing."""
    monkeypatch.setattr(candidates, "ROWS", rows)
    query_heads, key_heads, feature_heads = heads
    query, key = random(2, 7, query_heads, 4), random(2, 12, key_heads, 4)
    query_features, key_features = 2 * random(2, 7, query_heads, 3), 2 * random(2, 12, feature_heads, 3)
    back = torch.arange(7)[:, None] + 5 - torch.arange(12)
    seen = (torch.rand(2, 7, 12) < 0.7) & (back >= 0) & (back <= 5)
    real = torch.arange(7) < torch.tensor([[7], [4]])
    given_features = query_features, key_features
    features = compared(error, *(given_features if logarithm else (features.exp() for features in given_features)))
    tokens = Tokens(torch.arange(7).expand(2, -1), None, real)
    sums = error_sums(*features, query, key, tokens, everything(seen), logarithm=logarithm)
    for row, entry, head in torch.ones(2, 12, query_heads).nonzero().tolist():
        own, mapped = owner(head, query_heads, key_heads), owner(head, query_heads, feature_heads)
        wanted = 0.0
        for token in range(7):
            if seen[row, token, entry] and real[row, token]:
                logit = sum(a * b for a, b in zip(query[row, token, head].tolist(), key[row, entry, own].tolist(), strict=True)) / 2
                logs = zip(query_features[row, token, head].tolist(), key_features[row, entry, mapped].tolist(), strict=True)
                wanted += by_hand(error, logit, sum(math.exp(a + b) for a, b in logs))
        assert sums[row, entry, head].item() == pytest.approx(wanted, rel=1e-10, abs=1e-10)


def one_pair(error: str, logit: float, feature: float, *, logarithm: bool, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return the error of one query and one pair with q·k / √4 = logit and φ(q)·φ(k) = feature² (as logarithms: 2 feature)."""
    query = torch.full((1, 1, 1, 4), 1.0, dtype=dtype)
    key = torch.full((1, 1, 1, 4), logit / 2, dtype=dtype)
    given_features = torch.full((1, 1, 1, 1), feature, dtype=torch.promote_types(dtype, torch.float32))
    features = compared(error, given_features, given_features)
    seen = everything(torch.ones(1, 1, 1, dtype=torch.bool))
    return error_sums(*features, query, key, counted(1, 1), seen, logarithm=logarithm)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("logit", [-500.0, 0.0, 500.0])
@pytest.mark.parametrize("error", ERRORS)
def test_exponents_saturate_below_overflow_of_their_squares(error: str, logit: float, dtype: torch.dtype) -> None:
    for log in (-500.0, 0.0, 500.0):
        error_sum = one_pair(error, logit, log / 2, logarithm=True, dtype=dtype)
        assert error_sum.dtype == torch.promote_types(dtype, torch.float32)
        assert error_sum.isfinite().all()
        assert error_sum.item() == pytest.approx(by_hand(error, logit, math.exp(min(log, LARGEST))), rel=1e-5)
        plain = one_pair(error, logit, math.exp(min(log, 80.0) / 2), logarithm=False, dtype=dtype)
        assert plain.item() == pytest.approx(error_sum.item(), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("logarithm", [False, True], ids=["plain", "logarithm"])
@pytest.mark.parametrize("error", ["squared_error", "absolute_error"])
def test_saturated_exponents_have_exactly_equal_errors(
    error: str, logarithm: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saturated exponents give exactly equal errors although exp is one unit in the last place off on some machines."""
    exactly = torch.Tensor.exp
    monkeypatch.setattr(torch.Tensor, "exp", lambda exponents: exactly(exponents).nextafter(torch.zeros_like(exponents)))
    for beyond in (0.001, 0.7, 3.0, 30.0):
        log = LARGEST + beyond
        assert one_pair(error, log, log / 2 if logarithm else math.exp(log / 2), logarithm=logarithm, dtype=dtype).item() == 0.0


def test_features_with_separate_maxima_have_a_small_product() -> None:
    """With log φ(q) = (30, -30) and log φ(k) = (-30, 30), the maxima add up to 60 but the product is 2. For q·k = 0 it should be
    1.
    """
    query, key = (torch.tensor([[[[30.0, -30.0]]]], dtype=torch.float64) * sign for sign in (1, -1))
    features = compared("absolute_error", query, key)
    nothing, seen = torch.zeros(1, 1, 1, 4, dtype=torch.float64), everything(torch.ones(1, 1, 1, dtype=torch.bool))
    error_sum = error_sums(*features, nothing, nothing, counted(1, 1), seen, logarithm=True)
    assert error_sum.item() == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("logarithm", [False, True], ids=["plain", "logarithm"])
def test_weight_errors_have_no_gradient(logarithm: bool) -> None:
    query, key = random(1, 4, 2, 4).requires_grad_(), random(1, 4, 2, 4).requires_grad_()
    features = compared("squared_error", query.exp(), key.exp())
    seen = everything(torch.ones(1, 4, 4, dtype=torch.bool).tril())
    assert not error_sums(*features, query, key, counted(1, 4), seen, logarithm=logarithm).requires_grad


def test_pairs_that_no_query_sees_have_error_0() -> None:
    """A pair that no query sees has error 0, even beside features that are out of range."""
    query, key = random(1, 3, 2, 4), random(1, 5, 2, 4)
    features = compared("overestimate", query.exp(), 1e9 * key.exp())
    seen = torch.zeros(1, 3, 5, dtype=torch.bool)
    assert not error_sums(*features, query, key, counted(1, 3), everything(seen), logarithm=False).any()


@pytest.mark.parametrize("shape", ["sliding", "terraced"])
@pytest.mark.parametrize("error", ERRORS)
def test_evicted_pairs_carry_their_error_sums(error: str, shape: str) -> None:
    """Evicted pairs carry the sums over all queries that saw them in the window, for every split of the sequence."""
    of = Cascade(window(3, shape), sparse(0, error), CONVOLVED)
    stream = streamed(of)
    hands = [[ByHand(stream, row, head, of.window, of.sparse) for head in range(4)] for row in range(len(ROWS))]
    for hand in (hand for row in hands for hand in row):
        hand.outputs()
    for split in SPLITS:
        state, seen_errors = of.start(len(ROWS))["window"], [dict[int, list[float]]() for _ in ROWS]
        for row in stream.rows:
            row.at = 0
        for call in SPLITS[split]:
            query, pairs, tokens = stream.call(call)
            (_, evicted), state = of.near(query, pairs, tokens, state)
            for index, (row, real) in enumerate(zip(stream.rows, call.real, strict=True)):
                seen_errors[index] |= summed(evicted, index, stream.value[index])
                row.at += real
        for sums, row in zip(seen_errors, hands, strict=True):
            assert len(sums) >= 3
            assert sums == {pair: pytest.approx([hand.errors[pair] for hand in row], rel=1e-10) for pair in sums}


def summed(evicted: Pairs, row: int, values: Tensor) -> dict[int, list[float]]:
    """Return the sums of a row's evicted pairs by the tokens of these pairs. Tokens are recognised by their values."""
    present_pairs = evicted.present[row].nonzero()[:, 0].tolist()
    tokens = [(values == evicted.value[row, place]).flatten(1).all(1).nonzero().item() for place in present_pairs]
    return {
        int(token): evicted.numbers["sparse_error"][row, place].tolist() for token, place in zip(tokens, present_pairs, strict=True)
    }


def test_cached_error_sums_are_equal_for_every_split() -> None:
    """The state of the cache holds the sums of its pairs from the window above, over any number of evictions."""
    of = Cascade(window(2, "sliding"), sparse(3, "overestimate"), CONVOLVED)
    stream = streamed(of)
    states = [run(of, stream, split)[1]["sparse"] for split in SPLITS]
    for state in states[1:]:
        for name, held in state.items():
            close(held, states[0][name])


@pytest.mark.parametrize("logarithm", [False, True], ids=["plain", "logarithm"])
def test_many_large_features_are_finite_in_float32(logarithm: bool) -> None:
    """128 features of e^20 on both sides stay in range in float32. The first query does not see the second pair."""
    key, logs = torch.zeros(1, 2, 1, 4), torch.full((1, 2, 1, 128), 20.0)
    given_features = logs if logarithm else logs.exp()
    seen = everything(torch.ones(1, 2, 2, dtype=torch.bool).tril())
    features = compared("squared_error", given_features, given_features)
    sums = error_sums(*features, key, key, counted(1, 2), seen, logarithm=logarithm)
    assert sums.isfinite().all()
