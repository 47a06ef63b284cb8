"""The page shows the kept runs and lists the missing ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from evidence import page
from evidence.__main__ import main
from evidence.claims import CLAIMS, PAPERS
from evidence.kept import Run, read_runs
from evidence.verdict import RunFigures
from tests.composer.legible import assert_legible, kept_open


def make_figures(**scores: list[float]) -> RunFigures:
    """Return runs with one value in every column, by name and seed."""
    runs = {**page.PAPER_STUDENTS, **page.OWN_STUDENTS}
    columns = (*page.PASSKEY, *page.RECALL, *page.STORIES)
    return RunFigures(
        [
            Run(
                experiment=runs[name].partition("/")[0],
                variant=runs[name].partition("/")[2],
                seed=seed,
                identity="",
                values={},
                figures=dict.fromkeys(columns, value),
                teacher_perplexity=None,
                seconds=0.0,
                versions={},
            )
            for name, values in scores.items()
            for seed, value in enumerate(values)
        ]
    )


def test_cells_contain_mean_and_spread() -> None:
    table = page.format_table(
        {"a": page.PAPER_STUDENTS["LAWCAT"], "b": page.PAPER_STUDENTS["LoLA"], "c": page.PAPER_STUDENTS["teacher"]},
        ("passkey 256",),
        make_figures(LAWCAT=[0.5, 0.7], teacher=[12.345]),
    )
    assert table.splitlines()[2:] == ["| a | 0.60 ± 0.14 |", "| b | – |", "| c | 12.3 |"]


def test_students_are_ranked_by_score() -> None:
    figures = make_figures(**{"LoLCATs": [0.2], "gated-delta": [0.9, 0.7], "LAWCAT": [0.7]})
    assert [name for name, _ in page.rank_students(figures)] == ["gated-delta", "LAWCAT", "LoLCATs"]


@pytest.mark.drawn
def test_the_picture_is_drawn_with_and_without_runs(tmp_path: Path) -> None:
    page.draw(make_figures(), tmp_path / "none.png")
    page.draw(make_figures(**{"teacher": [1.0], "gated-delta": [0.9, 0.7, 0.8]}), tmp_path / "some.png")
    assert (tmp_path / "none.png").stat().st_size != (tmp_path / "some.png").stat().st_size
    assert not list(tmp_path.glob(".*"))


def test_the_picture_is_legible_with_shares_from_0_to_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = kept_open(monkeypatch)
    page.draw(make_figures(**{name: [1.0, 0.9, 0.6] for name in (*page.PAPER_STUDENTS, "alternating-delta")}), tmp_path / "all.png")
    assert_legible(figures["all.png"])
    shares = figures["all.png"].axes[:2]
    ends = [segment[:, 1] for axis in shares for bars in axis.collections for segment in bars.get_segments()]
    assert len(ends) == 2 * 6 * len(page.TIMES)
    assert all(0 <= low < high <= 1 for low, high in ends)


def test_claims_are_counted_by_verdict() -> None:
    """Claims are counted by verdict. The README has the same numbers for the papers' claims."""
    assert (
        page.count_claims(("LoLCATs",), RunFigures([]))
        == f"{len(CLAIMS['LoLCATs'])} claims: {len(CLAIMS['LoLCATs'])} waiting for runs"
    )
    of_papers = page.count_claims(PAPERS, RunFigures(read_runs()))
    assert f"From the papers, {of_papers}." in page.PAGE.read_text(encoding="utf-8")
    assert of_papers.replace(" claims:", " claims of the papers, in miniature:") in (page.DOCS.parent / "README.md").read_text(
        encoding="utf-8"
    )


def test_unknown_experiments_are_refused() -> None:
    with pytest.raises(typer.BadParameter, match='no experiment is called "nothing"; there are teacher, students, confirmation'):
        main(only=["nothing"])
