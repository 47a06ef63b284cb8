"""A cell has the medians and rates of its rounds, and ratios computed round by round."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.benching.report import BenchReport, Measurement, Workload, make_cells
from tests.composer.benching.made_up import report

PREFILL, DECODE = Workload("prefill", 100, 4), Workload("decode", 100, 4)


def test_figures_are_computed_from_measured_seconds_and_bytes() -> None:
    (first, own) = make_cells(
        PREFILL, {"a": Measurement((2.0, 8.0, 3.0), 7, 9), "b": Measurement((1.0, 1.0, 1.0), 5, None)}, {"b": 11}
    )
    assert (first.median, first.fastest, first.slowest, first.speed) == (3.0, 2.0, 8.0, 1.0)
    assert (own.speed, own.tokens_per_second) == (3.0, 400.0)
    assert [(figures.state_bytes, figures.peak_bytes) for figures in (first, own)] == [(7, 9), (5, 11)]
    (token,) = make_cells(DECODE, {"a": Measurement((0.5,))}, {})
    assert token.tokens_per_second == 8.0


def test_ratios_are_computed_within_rounds() -> None:
    """Two rounds at a tenth of the speed do not change the ratio."""
    _, own = make_cells(PREFILL, {"a": Measurement((2.0, 20.0, 20.0)), "b": Measurement((1.0, 10.0, 10.0))}, {})
    assert own.speed == 2.0
    _, drifting = make_cells(PREFILL, {"a": Measurement((1.0, 2.0, 9.0)), "b": Measurement((9.0, 1.0, 3.0))}, {})
    assert drifting.speed == 2.0, "the ratio of the medians is 2 / 3"


@given(st.lists(st.tuples(*[st.floats(1e-6, 1e3)] * 2), min_size=1, max_size=9))
def test_the_speed_is_the_median_ratio_over_the_rounds(rounds: list[tuple[float, float]]) -> None:
    first, own = zip(*rounds, strict=True)
    first_cell, other = make_cells(DECODE, {"a": Measurement(first), "b": Measurement(own)}, {})
    assert first_cell.speed == 1.0
    assert other.speed == statistics.median(a / b for a, b in rounds)
    assert other.fastest is not None
    assert other.median is not None
    assert other.slowest is not None
    assert other.fastest <= other.median <= other.slowest


def test_failed_measurements_have_no_figures_and_no_ratios() -> None:
    lost = Measurement(failure="out of memory")
    first, own = make_cells(PREFILL, {"a": lost, "b": Measurement((1.0,))}, {})
    assert (first.failure, first.median, first.speed, own.median, own.speed) == ("out of memory", None, None, 1.0, None)
    first, own = make_cells(PREFILL, {"a": Measurement((1.0,)), "b": lost}, {})
    assert (first.speed, own.speed, own.tokens_per_second, own.seconds) == (1.0, None, None, ())


def test_reports_survive_their_file() -> None:
    made = report(taken=9)
    assert BenchReport.model_validate_json(made.model_dump_json()) == made
    assert made.cell("a|b", "decode", 2048, 8).workload == ("decode", 2048, 8)
    with pytest.raises(KeyError, match=r"no cell \('a\|b', 'decode', 2049, 1\); there are .*\('a\|b', 'decode', 2048, 8\)"):
        made.cell("a|b", "decode", 2049)


def test_places_are_formatted() -> None:
    assert Workload("prefill", 65536, 1).description == "prefill 65,536"
    assert Workload("decode", 512, 1024).description == "decode 512 × 1,024"
