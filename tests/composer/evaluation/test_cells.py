"""Means, standard errors, depths and positions equal a computation by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.evaluation.cells import BUCKETS, CellKey, SampleResult, bucket_size, make_cell

KEY = CellKey("model", "task", 128)


def judged(
    *scores: float, depths: tuple[float | None, ...] = (), losses: tuple[tuple[float | None, ...], ...] = ()
) -> list[SampleResult]:
    return [
        SampleResult(
            index=place,
            score=score,
            tokens=100,
            depth=depths[place] if depths else None,
            nats=losses[place] if losses else None,
            seconds=0.5,
        )
        for place, score in enumerate(scores)
    ]


@given(st.lists(st.booleans(), min_size=2, max_size=60))
def test_the_error_of_right_or_wrong_answers_is_binomial(right: list[bool]) -> None:
    cell = make_cell(KEY, "written", judged(*map(float, right)))
    share = sum(right) / len(right)
    assert cell.mean == pytest.approx(share)
    assert cell.standard_error == pytest.approx(math.sqrt(share * (1 - share) / len(right)), abs=1e-12)
    assert (cell.samples, cell.seconds, cell.perplexity) == (len(right), 0.5 * len(right), None)


def test_the_standard_error_of_shares_equals_its_formula() -> None:
    cell = make_cell(KEY, "tokens", judged(0.2, 0.4, 0.9))
    deviations = (0.5 - 0.2) ** 2 + (0.5 - 0.4) ** 2 + (0.5 - 0.9) ** 2
    assert (cell.mean, cell.standard_error) == (pytest.approx(0.5), pytest.approx(math.sqrt(deviations / 3) / math.sqrt(3)))
    assert make_cell(KEY, "tokens", judged(0.2)).standard_error is None


@pytest.mark.parametrize(
    ("right", "of", "low", "high"),
    # Of Wilson's formula, as Newcombe 1998 tabulates it (81 of 263, 15 of 148, 0 of 20, 1 of 29), and 0 and 10 of 10.
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
    ],
)
def test_the_interval_of_right_or_wrong_answers_is_wilsons(right: int, of: int, low: float, high: float) -> None:
    cell = make_cell(KEY, "written", judged(*[1.0] * right, *[0.0] * (of - right)))
    assert cell.interval == pytest.approx((low, high), abs=5e-5)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_intervals_contain_the_mean_and_are_between_0_and_1(scores: list[float]) -> None:
    cell = make_cell(KEY, "tokens", judged(*scores))
    assert cell.interval is not None
    assert cell.mean is not None
    low, high = cell.interval
    assert 0 <= low <= cell.mean <= high <= 1
    assert low < high


def test_intervals_are_narrower_for_smaller_variance() -> None:
    """The interval is about 1.96 standard errors for many samples far from 0 and 1."""
    cell = make_cell(KEY, "tokens", judged(*[0.45, 0.55] * 50))
    assert cell.interval == pytest.approx((0.5 - 1.96 * 0.005, 0.5 + 1.96 * 0.005), abs=1e-4)
    assert make_cell(KEY, "loss", judged(*[1.0, 3.0] * 50)).interval == pytest.approx((2 - 0.196, 2 + 0.196), abs=1e-4)
    assert make_cell(KEY, "loss", judged(1.0)).interval is None


def test_perplexity_is_the_exponential_of_the_mean_loss() -> None:
    assert make_cell(KEY, "loss", judged(1.0, 3.0)).perplexity == pytest.approx(math.exp(2))
    assert make_cell(KEY, "loss", judged(1.0, 3.0)).nats == 2.0
    assert make_cell(KEY, "written", judged(1.0)).nats is None
    assert make_cell(KEY, "loss", judged(1e6)).perplexity is None


def test_failed_cells_have_no_figures() -> None:
    cell = make_cell(KEY, "written", judged(1.0, 0.0), "out of memory")
    assert (cell.mean, cell.standard_error, cell.samples, cell.failure) == (None, None, 2, "out of memory")
    assert make_cell(KEY, "written", [], "out of memory").samples == 0


def test_scores_are_averaged_over_tenths_of_the_depth() -> None:
    cell = make_cell(KEY, "written", judged(1, 0, 1, 1, 0, depths=(0.0, 0.05, 0.1, 1.0, None)))
    assert [(part.start, part.end, part.mean, part.samples) for part in cell.by_depth] == [
        (0.0, 0.1, 0.5, 2),
        (0.1, 0.2, 1.0, 1),
        (0.9, 1.0, 1.0, 1),
    ]


def test_losses_are_averaged_over_ranges_of_positions() -> None:
    cell = make_cell(KEY, "loss", judged(1, 1, losses=((None, 2.0, 4.0), (None, 3.0))))
    assert [(part.start, part.end, part.nats) for part in cell.by_position] == [(2, 4, 2.5), (4, 6, 4.0)]
    odd = make_cell(CellKey("model", "task", 3), "loss", judged(1, losses=((None, 2.0, 4.0),)))
    assert [(part.start, part.end) for part in odd.by_position] == [(1, 2), (2, 3)]


@given(st.integers(1, 10**6))
def test_texts_of_any_length_have_a_bounded_number_of_buckets(length: int) -> None:
    size = bucket_size(length)
    assert -(-length // size) <= BUCKETS
    assert size == 1 or length > BUCKETS
