"""Each score equals its equation in the dtype of the values, and receives only the inputs that it declares."""

from __future__ import annotations

import math

import pytest
import torch

from blocks.scores import SCORES
from blocks.scores.base import Contenders, Score, pairs_to_evict
from blocks.scores.overestimate import Overestimate
from blocks.scores.recent import Recent
from blocks.scores.relative_recall import RelativeRecall
from blocks.scores.self_recall import SelfRecall
from tests.blocks.support import random

PAIRS = Contenders(
    torch.tensor([[[4], [7]]]),
    torch.tensor([[[[3.0, 4.0]], [[0.0, 0.0]]]]),
    torch.tensor([[[3.0], [2.0]]]),
    torch.tensor([[[5.0], [0.0]]]),
    None,
    (0, 0),
)


def test_recall_scores_match_hand_computed_values() -> None:
    """The state is wrong by 3 for a value of length 5, and by 2 for a value of length 0, which gives a finite score."""
    assert SelfRecall().score(PAIRS).flatten().tolist() == [3.0, 2.0]
    share, endless = RelativeRecall().score(PAIRS).flatten().tolist()
    assert share == pytest.approx(0.6)
    assert math.isfinite(endless)
    assert endless > 1e10


def test_recent_scores_equal_the_position() -> None:
    assert Recent().score(PAIRS).flatten().tolist() == [4, 7]


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [("squared_error", [[9.0, 1.0]]), ("absolute_error", [[3.0, 1.0]]), ("overestimate", [[0.25, 1.5]])],
)
def test_weight_errors_match_hand_computed_values(kind: str, wanted: list[list[float]]) -> None:
    exact, product = torch.tensor([[4.0, 2.0]]), torch.tensor([[1.0, 3.0]])
    score = SCORES[kind]()
    assert isinstance(score, Score)
    assert torch.equal(score.error(exact[None, None], product[None, None])[0, 0], torch.tensor(wanted))


def test_a_weight_of_0_is_overestimated_finitely() -> None:
    assert Overestimate().error(torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1)).isfinite().all()


@pytest.mark.parametrize("kind", SCORES)
def test_scores_need_only_their_declared_inputs(kind: str) -> None:
    """A score returns a number for each pair and head from its declared inputs."""
    score, value = SCORES[kind](), random(2, 5, 3, 4)
    assert isinstance(score, Score)
    position = torch.arange(5)[None, :, None].expand(2, -1, 3)
    distance, norm = (random(2, 5, 3).abs(), value.norm(dim=-1)) if score.reads == "state" else (None, None)
    errors = random(2, 5, 3).abs() if score.reads == "window" else None
    scored = score.score(Contenders(position, value, distance, norm, errors, (1, 2)))
    assert scored.shape == (2, 5, 3)
    assert scored.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", SCORES)
def test_scores_that_differ_by_more_than_rounding_are_not_ties(kind: str, dtype: torch.dtype) -> None:
    """The smallest scores are evicted although all scores are within a thousandth. Of scores one epsilon apart, the older pair
    stays.
    """
    score, count = SCORES[kind](), 40
    assert isinstance(score, Score)
    mixed = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    numbers = (1 + 250 * torch.finfo(dtype).eps * mixed.to(dtype))[None, :, None]
    position, norm, here = mixed[None, :, None], torch.ones_like(numbers), torch.ones(1, count, 1, dtype=torch.bool)

    def evicted(numbers: torch.Tensor) -> list[int]:
        pairs = Contenders(position, norm[..., None], numbers, norm, numbers, (0, 0))
        worth = score.score(pairs)
        return pairs_to_evict(worth, score.resolution(pairs, worth), here, ~here, 17).flatten().tolist()

    wanted = score.score(Contenders(position, norm[..., None], numbers, norm, numbers, (0, 0))).double().flatten()
    assert evicted(numbers) == sorted(wanted.argsort()[:17].tolist())
    if not score.by_position:
        assert evicted(1 + torch.finfo(dtype).eps * (mixed % 3).to(dtype)[None, :, None]) == list(range(count - 17, count))
