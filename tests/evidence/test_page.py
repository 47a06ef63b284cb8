"""The page shows the kept runs and lists the missing ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from evidence import page
from evidence.__main__ import main
from evidence.claims import CLAIMS, PAPERS
from evidence.kept import Run, read_runs
from evidence.verdict import Kept
from tests.composer.legible import assert_legible, kept_open


def kept(**scores: list[float]) -> Kept:
    """Return runs with one value in every column, by name and seed."""
    every = {**page.FOUR, **page.OURS}
    columns = (*page.PASSKEY, *page.RECALL, *page.STORIES)
    return Kept(
        [
            Run(
                experiment=every[name].partition("/")[0],
                variant=every[name].partition("/")[2],
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


def test_a_cell_is_mean_and_spread() -> None:
    shown = page.table(
        {"a": page.FOUR["LAWCAT"], "b": page.FOUR["LoLA"], "c": page.FOUR["teacher"]},
        ("passkey 256",),
        kept(LAWCAT=[0.5, 0.7], teacher=[12.345]),
    )
    assert shown.splitlines()[2:] == ["| a | 0.60 ± 0.14 |", "| b | – |", "| c | 12.3 |"]


def test_the_best_comes_first() -> None:
    runs = kept(**{"LoLCATs": [0.2], "gated-delta": [0.9, 0.7], "LAWCAT": [0.7]})
    assert [name for name, _ in page.ranking(runs)] == ["gated-delta", "LAWCAT", "LoLCATs"]


@pytest.mark.drawn
def test_the_picture_is_drawn_of_whatever_is_there(tmp_path: Path) -> None:
    page.draw(kept(), tmp_path / "none.png")
    page.draw(kept(**{"teacher": [1.0], "gated-delta": [0.9, 0.7, 0.8]}), tmp_path / "some.png")
    assert (tmp_path / "none.png").stat().st_size != (tmp_path / "some.png").stat().st_size
    assert not list(tmp_path.glob(".*"))


def test_the_picture_is_legible_and_no_share_goes_beyond_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = kept_open(monkeypatch)
    page.draw(kept(**{name: [1.0, 0.9, 0.6] for name in (*page.FOUR, "alternating-delta")}), tmp_path / "all.png")
    assert_legible(figures["all.png"])
    shares = figures["all.png"].axes[:2]
    ends = [segment[:, 1] for axis in shares for bars in axis.collections for segment in bars.get_segments()]
    assert len(ends) == 2 * 6 * len(page.TIMES)
    assert all(0 <= low < high <= 1 for low, high in ends)


def test_claims_are_counted() -> None:
    """Claims are counted by verdict. The README has the same numbers for the papers' claims."""
    assert page.counted(("LoLCATs",), Kept([])) == f"{len(CLAIMS['LoLCATs'])} claims: {len(CLAIMS['LoLCATs'])} waiting for runs"
    of_papers = page.counted(PAPERS, Kept(read_runs()))
    assert f"From the papers, {of_papers}." in page.PAGE.read_text(encoding="utf-8")
    assert of_papers.replace(" claims:", " claims of the papers, in miniature:") in (page.DOCS.parent / "README.md").read_text(
        encoding="utf-8"
    )


def test_an_unknown_experiment() -> None:
    with pytest.raises(typer.BadParameter, match='no experiment is called "nothing"; there are teacher, students, confirmation'):
        main(only=["nothing"])
