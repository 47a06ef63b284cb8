"""The page says what is kept, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from evidence import page
from evidence.__main__ import main
from evidence.kept import Run
from evidence.verdict import Kept


def kept(**scores: list[float]) -> Kept:
    """Runs that have one value in every column, by name and seed."""
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
    assert [name for name, _ in page.ranking(kept(LoLCATs=[0.2], divided=[0.9, 0.7], LAWCAT=[0.7]))] == [
        "divided",
        "LAWCAT",
        "LoLCATs",
    ]


def test_the_picture_is_drawn_of_whatever_is_there(tmp_path: Path) -> None:
    page.draw(kept(), tmp_path / "none.png")
    page.draw(kept(teacher=[1.0], divided=[0.9, 0.7, 0.8]), tmp_path / "some.png")
    assert (tmp_path / "none.png").stat().st_size != (tmp_path / "some.png").stat().st_size
    assert not list(tmp_path.glob(".*"))


def test_an_unknown_experiment() -> None:
    with pytest.raises(typer.BadParameter, match='no experiment is called "nothing"; there are full, lola-full, teacher, students'):
        main(only=["nothing"])
