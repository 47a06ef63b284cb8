"""A bench of each seed is kept once, with every column that claims use."""

from __future__ import annotations

from pathlib import Path

import pytest

from evidence import speed
from evidence.kept import path_of, read_runs


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "SEEDS", (0,))
    monkeypatch.setattr(speed, "STUDENTS", ("lawcat",))
    monkeypatch.setattr(speed, "PREFILL", (8, 16))
    monkeypatch.setattr(speed, "DECODE", (8, 16))
    monkeypatch.setattr(speed, "BATCHES", (1, 2))


def test_missing_benches_are_run_once_and_kept(tmp_path: Path) -> None:
    messages: list[str] = []
    speed.run_missing(tmp_path / "work", messages.append, runs_folder=tmp_path / "runs")
    runs = {run.variant: run for run in read_runs(tmp_path / "runs")}
    assert set(runs) == {speed.FIRST, "lawcat"}
    for run in runs.values():
        assert set(run.figures) == speed.column_titles()
    teacher, student = runs[speed.FIRST].figures, runs["lawcat"].figures
    assert teacher[speed.speed_title("prefill", 16)] == teacher[speed.speed_title("decode", 16, 2)] == 1.0
    assert student[speed.state_title(8)] == student[speed.state_title(16)]
    assert teacher[speed.state_title(16)] == 2 * teacher[speed.state_title(8)]
    speed.run_missing(tmp_path / "elsewhere", messages.append, runs_folder=tmp_path / "runs")
    assert messages == ["speed: 1 benches to do", "speed: seed 0", "speed: 0 benches to do"]
    assert not (tmp_path / "elsewhere").exists()


def test_benches_of_other_commands_are_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speed.run_missing(tmp_path / "work", lambda line: None, runs_folder=tmp_path / "runs")
    before = path_of(speed.NAME, "lawcat", 0, tmp_path / "runs").read_text()
    monkeypatch.setattr(speed, "COMMANDS", ("another",))
    messages: list[str] = []
    speed.run_missing(tmp_path / "work", messages.append, runs_folder=tmp_path / "runs")
    assert messages[0] == "speed: 1 benches to do"
    assert path_of(speed.NAME, "lawcat", 0, tmp_path / "runs").read_text() != before
