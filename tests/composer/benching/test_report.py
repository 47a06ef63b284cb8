"""A cell has the medians and rates of its rounds, and ratios computed round by round. The tables show the report's figures."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.benching.report import BenchReport, Measurement, Workload, make_cells, remarks, seconds, tables
from tests.composer.benching.made_up import facts, report

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


def test_every_kind_and_batch_size_has_a_table() -> None:
    models, *rest = tables(report())
    assert models.title == "An Abacus (cpu), 1 thread, backend auto"
    assert models.rows == (("teacher", "1,000", "3.9 KiB", "float32", "sdpa"), ("a|b", "1,000", "3.9 KiB", "float32", "composed"))
    assert [table.title for table in rest] == [
        "prefill, batch 1: one pass over a prompt of so many tokens",
        "prefill, batch 8: one pass over a prompt of so many tokens of each row",
        "decode, batch 1: one token after so many others",
        "decode, batch 8: one token after so many others of each row",
    ]
    assert rest[0].headers == ("tokens", "model", "speed", "median", "fastest", "slowest", "tokens/s", "state")
    assert rest[0].rows[0] == ("64", "teacher", "1.00×", "500 ms", "250 ms", "2.00 s", "128", "4.0 KiB")
    assert rest[1].rows[2:] == (
        ("128", "teacher", "–", "out of memory", "–", "–", "–", "–"),
        ("128", "a|b", "–", "250 ms", "125 ms", "1.00 s", "4,096", "512 bytes"),
    )
    assert rest[3].rows[1] == ("2,048", "a|b", "2.00×", "250 ms", "125 ms", "1.00 s", "32.0", "512 bytes")
    assert all(len(row) == len(table.headers) for table in (models, *rest) for row in table.rows)


def test_peaks_are_shown_if_measured() -> None:
    *_, last = tables(report(taken=3 * 2**30, peak="resident"))
    assert (last.headers[-1], last.rows[0][-1], last.figures[-1]) == ("peak", "3.0 GiB", 8)


def test_a_single_model_has_no_ratios() -> None:
    whole = report(models=(facts("teacher"),))
    alone = whole.model_copy(update={"cells": tuple(cell for cell in whole.cells if cell.model == "teacher")})
    assert all("speed" not in table.headers for table in tables(alone))
    assert not any("speed: " in remark for remark in remarks(alone))


def test_remarks_match_the_settings_of_the_report() -> None:
    def remarks_of(**changes: object) -> str:
        return "\n".join(remarks(report(**changes)))  # pyright: ignore[reportArgumentType]

    assert "as fast as teacher" in remarks_of()
    assert "compare the speeds" in remarks_of()
    assert "compare the speeds" not in remarks_of(device="cuda")
    assert "peak: " not in remarks_of()
    assert "in a separate process" in remarks_of(peak="resident")
    assert "CUDA tensors" in remarks_of(peak="allocated", device="cuda:1")
    assert "b has an adapter that is not merged" in remarks_of(models=(facts("a"), facts("b", adapter=True)))
    assert "--dtype sets one for all" in remarks_of(models=(facts("a"), facts("b", dtype="bfloat16")))
    assert remarks(report().model_copy(update={"remarks": ("something else",)}))[-1] == "something else"


def test_markdown_has_a_section_per_table_and_escaped_names() -> None:
    text = report().view().markdown()
    assert r"| 128 | a\|b | 2.00× | 250 ms |" in text
    assert "| --- | --- | ---: |" in text
    assert text.count("\n### ") == 4
    assert text.endswith("slowed alike.\n")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.00 µs"), (3.14159e-5, "31.4 µs"), (1e-3, "1.00 ms"), (0.5, "500 ms"), (1.0, "1.00 s"), (1234.5, "1,234 s")],
)
def test_times_are_rounded_and_have_a_fitting_unit(value: float, text: str) -> None:
    assert seconds(value) == text
