"""Encoders learn small trees from nothing, are compared on unseen trees, and are trained once."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from composer.tasks.listops import ListOps
from evidence.kept import read_runs
from evidence.listops import (
    ACCURACY,
    MAJORITY,
    NAME,
    SYMBOLS,
    Row,
    Setting,
    compute_identity,
    draw_rows,
    pad_rows,
    read_encoders,
    run_missing,
)

TINY = Setting(above=3, below=8, depth=2, arguments=3, trees=200, held_out=40, steps=4, batch=8, rate=1e-2, warmup=1, seeds=(0,))


def test_trees_follow_the_task_and_held_out_trees_are_not_in_training() -> None:
    setting = Setting(above=6, below=20)
    training_rows, held_out = draw_rows(setting, "train", 300, 1), draw_rows(setting, "evaluation", 100, 0)
    assert not {row.ids for row in training_rows} & {row.ids for row in held_out}
    assert draw_rows(setting, "train", 5, 1) == training_rows[:5] != draw_rows(setting, "train", 5, 2)
    assert {len(row.ids) for row in training_rows} <= set(range(7, 20))
    tree = ListOps(above=6, below=20, depth=3, arguments=4).tree(random.Random(3), 20)
    assert [symbol for symbol in tree.symbols if symbol in SYMBOLS] == list(tree.symbols)
    assert 0 <= min(row.value for row in training_rows) <= max(row.value for row in training_rows) <= 9


def test_rows_are_padded_on_the_right() -> None:
    batch = pad_rows([Row((1, 7, 5), 2), Row((2, 8, 9, 6, 5), 3)])
    assert batch["input_ids"].tolist() == [[1, 7, 5, 0, 0], [2, 8, 9, 6, 5]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert batch["labels"].tolist() == [2, 3]


def test_encoders_differ_only_in_their_heads() -> None:
    latte, softmax = (read_encoders()[name].spec for name in ("latte", "softmax"))
    assert latte.trunk == softmax.trunk
    assert latte.direction == softmax.direction == "bidirectional"
    assert latte.head != softmax.head


def test_every_encoder_is_trained_once_and_kept(tmp_path: Path) -> None:
    messages: list[str] = []
    run_missing(tmp_path / "work", messages.append, runs_folder=tmp_path / "runs", setting=TINY)
    runs = {run.variant: run for run in read_runs(tmp_path / "runs")}
    assert set(runs) == {MAJORITY, "latte", "softmax"}
    assert all(run.identity == compute_identity(TINY, name, 0) for name, run in runs.items())
    assert all(0 <= run.figures[ACCURACY] <= 1 for run in runs.values())
    assert 0 < runs[MAJORITY].figures[ACCURACY] < 1
    assert messages[0] == f"{NAME}: 3 runs to do"
    run_missing(tmp_path / "work", messages.append, runs_folder=tmp_path / "runs", setting=TINY)
    assert messages[-1] == f"{NAME}: 0 runs to do"


@pytest.mark.parametrize("change", [{"steps": 5}, {"rate": 2e-2}, {"below": 9}])
def test_the_identity_of_a_run_depends_on_its_setting(change: dict[str, float]) -> None:
    assert compute_identity(TINY, "latte", 0) != compute_identity(replace(TINY, **change), "latte", 0)
    assert compute_identity(TINY, "latte", 0) == compute_identity(replace(TINY, seeds=(0, 1)), "latte", 0)
