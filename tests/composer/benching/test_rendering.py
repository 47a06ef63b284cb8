"""The tables show the report's figures, and the lines below them add remarks."""

from __future__ import annotations

import pytest

from composer.benching.rendering import remarks, seconds, tables
from tests.composer.benching.made_up import facts, report


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
