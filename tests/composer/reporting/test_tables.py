"""Cells of any content stay in their column in Markdown, on a terminal and in a notebook."""

from __future__ import annotations

from composer.reporting.tables import Readable, Table, View, markdown_table


def test_figures_are_right_aligned() -> None:
    assert markdown_table(("model", "loss"), [("one", "1.5")], range(1, 2)) == "| model | loss |\n| --- | ---: |\n| one | 1.5 |"


def test_bars_and_line_breaks_are_escaped_in_cells() -> None:
    assert markdown_table(("a|b",), [("c\nd",)]).splitlines() == [r"| a\|b |", "| --- |", "| c d |"]


def test_titles_are_above_the_table() -> None:
    assert Table("mine", ("a",), (("b",),)).markdown() == "### mine\n\n| a |\n| --- |\n| b |\n"


TABLE = Table("a & b", ("model", "loss"), (("<i>one</i>", "1.5"), ("two", "10.25")), range(1, 2))


def test_a_terminal_has_figures_on_the_right_and_its_title_above() -> None:
    assert TABLE.text().splitlines() == ["a & b", "  model        loss", "  <i>one</i>    1.5", "  two         10.25"]
    assert Table("", ("", ""), (("a", "b" * 300),)).text() == f"  a  {'b' * 300}", "nothing wraps"


def test_notes_are_indented_below_their_table() -> None:
    under = Table("of it:", ("", ""), (("c", "d"),), under=True)
    text = View("all", (TABLE, under, Table("", ("", ""), (("e", "f"),)))).text()
    assert text == f"all\n\n{TABLE.text()}\n  of it:\n    c  d\n\n  e  f"


def test_html_has_no_markup_but_its_own() -> None:
    html = TABLE.html()
    assert html.startswith("<table><caption>a &amp; b</caption><thead><tr>")
    assert '<td style="text-align: left">&lt;i&gt;one&lt;/i&gt;</td><td style="text-align: right">1.5</td>' in html
    assert "<thead>" not in Table("", ("", ""), (("a", "b"),)).html()


def test_readable_objects_show_their_view() -> None:
    class Mine(Readable):
        def view(self) -> View:
            return View("mine <b>", (TABLE,), ("a note & more",), "as\n  it stands")

    assert repr(Mine()).split("\n\n") == ["mine <b>", "as\n  it stands", TABLE.text(), "a note & more"]
    assert f"{Mine()}" == repr(Mine())
    assert Mine()._repr_html_() == (
        f"<div><p><b>mine &lt;b&gt;</b></p><pre>as\n  it stands</pre>{TABLE.html()}<p>a note &amp; more</p></div>"
    )


NASTY = "<b>\x1b[31m|\u202e`x`"


def test_markup_in_texts_is_escaped() -> None:
    view = View(NASTY, (Table(NASTY, (NASTY,), ((NASTY,),), under=True),), (NASTY,), NASTY)
    for shown in (view.text(), view.html(), Table(NASTY, (NASTY,), ((NASTY,),)).markdown()):
        assert shown.count("\\x1b[31m") >= 3 or shown.count("\\\\x1b[31m") >= 3
        assert "\x1b" not in shown
        assert "\u202e" not in shown
    assert "<b>\\" not in view.html()
    assert markdown_table((NASTY,), [(NASTY,)]).splitlines()[2].count("|") == 3
