"""Law 2 for the choices of a sparse cache: they equal a strict float64 order if scores differ by more than rounding, depend on
age for equal scores, and are the same for every split.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
import torch

from blocks.memories import sparse
from blocks.scores import SCORES
from composer.model.head import Head
from tests.covers import in_turns
from tests.laws.cases import SMALL, Inputs, build_head, complete, inputs, pieces, run

LENGTH = 72
SHAPES = ["sliding", "terraced"]
SPLITS = [(33, 34, 41), (*range(36), *range(60, LENGTH))]
"""Uneven; and one by one, until the cache has overflowed two dozen times, and again across the border of a chunk."""
TEXTS = torch.stack(
    (
        torch.zeros(LENGTH, dtype=torch.int64),
        torch.arange(LENGTH) % 11,
        torch.arange(LENGTH) // 2 % 7,
        torch.randint(3, (LENGTH,), generator=torch.Generator().manual_seed(3)),
        torch.randint(8, (LENGTH,), generator=torch.Generator().manual_seed(4)),
    )
)
"""Rows of words: one word, two sentences again and again, vocabularies of three and of eight."""


def saying(texts: torch.Tensor, dtype: torch.dtype, seed: int) -> Inputs:
    """Return the same numbers for each occurrence of a word."""
    words = inputs(SMALL.shape(4), 1, 11, seed=seed).to(dtype)
    return Inputs(*(tensor[0, texts] for tensor in words.tensors), inputs(SMALL.shape(4), *texts.shape).tokens)


def cache_of_five(keep: str, shape: str, position: str = "rope") -> Head:
    """Return a window, a cache of five pairs and a state in float64."""
    memory = [{"kind": "window", "size": 6, "shape": shape}, {"kind": "sparse", "size": 5, "keep": keep}, "state"]
    return build_head(complete({"position": position, "feature_map": "hedgehog", "memory": memory}), SMALL.shape(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("keep", SCORES)
def test_pairs_with_equal_scores_are_kept_by_age(keep: str, shape: str, dtype: torch.dtype) -> None:
    """For every split the same pairs stay, and the outputs equal one call."""
    head, data = cache_of_five(keep, shape).to(dtype), saying(TEXTS, dtype, seed=0)
    with torch.no_grad():
        wanted, whole = run(head, data)
        for bounds in SPLITS:
            outputs, state = [], None
            for piece in pieces(LENGTH, bounds):
                output, state = run(head, data.cut(piece), state)
                outputs.append(output)
            assert state is not None
            assert torch.equal(state["sparse.position"], whole["sparse.position"])
            nearness = 4 * torch.finfo(dtype).eps * wanted.abs().max().item()
            torch.testing.assert_close(torch.cat(outputs, dim=1), wanted, rtol=0, atol=max(nearness, 1e-5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("keep", [kind for kind in SCORES if kind not in {"recent", "random"}])
def test_older_pairs_are_kept_among_identical_pairs(keep: str, dtype: torch.dtype) -> None:
    """All tokens are one word and nothing is rotated, so all pairs have equal bits."""
    head, data = cache_of_five(keep, "sliding", position="none").to(dtype), saying(TEXTS[:1], dtype, seed=0)
    with torch.no_grad():
        _, state = run(head, data)
    assert state["sparse.position"][0].T.tolist() == [[0, 1, 2, 3, 4]] * 4


def strictly(score: torch.Tensor, _: torch.Tensor, present: torch.Tensor, gone: torch.Tensor, count: int) -> torch.Tensor:
    """Replace ``pairs_to_evict`` without a rounding error: the smallest scores are evicted, and of equal scores the youngest."""
    worth = score.masked_fill(~present, -math.inf).masked_fill(gone, math.inf).flip(1)
    return (score.shape[1] - 1 - worth.argsort(dim=1, stable=True)[:, :count]).sort(dim=1).values


@pytest.mark.parametrize(("keep", "shape"), in_turns(SCORES, SHAPES))
def test_kept_pairs_equal_those_of_a_strict_float64_order(keep: str, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This covers over a thousand choices of random pairs in both dtypes. Some scores differ by less than one part in 1024."""
    head, data = cache_of_five(keep, shape).float(), inputs(SMALL.shape(4), 6, LENGTH, seed=5).to(torch.float32)
    with torch.no_grad():
        actual = [run(head.to(dtype), data.to(dtype)) for dtype in (torch.float32, torch.float64)]
        monkeypatch.setattr(sparse, "pairs_to_evict", strictly)
        wanted, strict = run(head, data.to(torch.float64))
    for output, state in actual:
        assert torch.equal(state["sparse.position"], strict["sparse.position"])
        torch.testing.assert_close(output.double(), wanted, rtol=0, atol=1e-5)


def assert_splits_agree(head: Head, data: Inputs, splits: Sequence[tuple[int, ...]]) -> None:
    """Check that choices are equal, and outputs equal up to rounding."""
    with torch.no_grad():
        wanted, whole = run(head, data)
        for bounds in splits:
            outputs, state = [], None
            for piece in pieces(data.key.shape[1], bounds):
                output, state = run(head, data.cut(piece), state)
                outputs.append(output)
            assert state is not None
            assert torch.equal(state["sparse.position"], whole["sparse.position"])
            torch.testing.assert_close(torch.cat(outputs, dim=1), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("keep", "shape"), in_turns(SCORES, SHAPES))
def test_random_splits_in_float32_keep_the_same_pairs(keep: str, shape: str) -> None:
    numbers = random.Random(1)
    splits = [tuple(numbers.sample(range(1, LENGTH), numbers.randint(1, 6))) for _ in range(4)]
    data = inputs(SMALL.shape(4), 4, LENGTH, seed=6).to(torch.float32)
    assert_splits_agree(cache_of_five(keep, shape).float(), data, splits)


@pytest.mark.parametrize(("keep", "share"), [("self_recall", -0.02207802795721909), ("relative_recall", -0.25525200003417214)])
def test_scores_that_differ_by_one_part_in_512_are_not_ties(keep: str, share: float) -> None:
    """One value is longer, so that two scores differ by exactly this share. With a tolerance of one part in 1024 for each score,
    rounding would decide whether they are equal, and splits would choose differently.
    """
    shares = 1 + share + torch.linspace(-2e-6, 2e-6, 81, dtype=torch.float64)
    sample = inputs(SMALL.shape(4), 1, 40, seed=0)
    data = Inputs(
        *(tensor.expand(81, *tensor.shape[1:]).clone() for tensor in sample.tensors), inputs(SMALL.shape(4), 81, 40).tokens
    )
    data.value[:, 12] *= shares[:, None, None]
    memory = [{"kind": "window", "size": 4}, {"kind": "sparse", "size": 5, "keep": keep}, "state"]
    head = build_head(complete({"position": "rope", "feature_map": "hedgehog", "memory": memory}), SMALL.shape(4)).float()
    assert_splits_agree(head, data.to(torch.float32), [tuple(range(40)), (17, 29)])
