"""Markdown shows every cell in its own column, whatever it holds."""

from __future__ import annotations

from composer.tables import Table, markdown_table


def test_figures_stand_on_the_right() -> None:
    assert markdown_table(("model", "loss"), [("one", "1.5")], range(1, 2)) == "| model | loss |\n| --- | ---: |\n| one | 1.5 |"


def test_bars_and_breaks_end_no_cell() -> None:
    assert markdown_table(("a|b",), [("c\nd",)]).splitlines() == [r"| a\|b |", "| --- |", "| c d |"]


def test_a_title_stands_above() -> None:
    assert Table("mine", ("a",), (("b",),)).markdown() == "### mine\n\n| a |\n| --- |\n| b |\n"
