"""A run's folder belongs to one run at a time, from before its creation until after its removal."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from composer.errors import TrainingError
from composer.runs.identity import Fingerprint
from composer.training.folder import RUN, STORE, DataReferences, RunSettings, check_run_folder, run_differences, run_folder
from tests.composer.training.processes import ending, forked


def settings_of(seed: int, **changes: Any) -> RunSettings:
    """Return the settings of a run."""
    references = DataReferences(data=("a.txt",), held_out=(), share=0.1, held_out_rows=None)
    settings = RunSettings(
        model=Fingerprint(config="a", spec="s", files={"w": (1, "h", 5)}),
        recipe={"sequence": 16},
        stage=("transfer",),
        data="d",
        held_out_data=None,
        seed=seed,
        device="cpu",
        autocast=False,
        backend="auto",
        stream=False,
        references=references,
    )
    return settings.model_copy(update=changes)


def take(folder: Path, run: int = 0, *, resume: bool = False, force: bool = False) -> None:
    with run_folder(folder, settings_of(run), resume=resume, force=force):
        assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".")] == [f".{folder.name}.lock"]


@pytest.mark.parametrize("force", [False, True])
def test_only_one_of_many_simultaneous_runs_starts(tmp_path: Path, force: bool) -> None:
    """All of them have seen no folder, or use --force."""
    folder, go = tmp_path / "new" / "out.run", tmp_path / "go"

    def child(run: int) -> None:
        while not go.exists():
            time.sleep(0.001)
        try:
            with run_folder(folder, settings_of(run), resume=False, force=force):
                time.sleep(1.0)
        except TrainingError as error:
            raise SystemExit(2) from error

    started = [forked(lambda run=run: child(run)) for run in range(5)]
    go.touch()
    endings = [ending(process) for process in started]
    assert sorted(endings) == [0, 2, 2, 2, 2]
    STORE.check_same(folder, settings_of(endings.index(0)))
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_run_that_was_stopped_meanwhile_is_kept(tmp_path: Path) -> None:
    """It stays unless it is replaced by --force or continued by --resume."""
    folder = tmp_path / "out.run"
    take(folder, 1)
    (folder / "checkpoint").touch()
    with pytest.raises(
        TrainingError, match=r"has the results of an earlier run\. Continue it with --resume, or start again with --force"
    ):
        take(folder, 2)
    with pytest.raises(TrainingError, match="seed: was 1, now 2"):
        take(folder, 2, resume=True)
    take(folder, 1, resume=True)
    assert (folder / "checkpoint").exists()
    take(folder, 2, force=True)
    assert [path.name for path in folder.iterdir()] == [RUN]
    STORE.check_same(folder, settings_of(2))


def test_half_removed_folders_do_not_block_later_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C arrives while the folder of a finished run is removed."""

    def interrupted(path: Path, **_: bool) -> None:
        (path / RUN).unlink()
        raise KeyboardInterrupt

    folder = tmp_path / "out.run"
    take(folder, 1)
    (folder / "checkpoint").touch()
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            STORE.remove(folder)
    check_run_folder(folder, resume=False, force=False)
    take(folder, 2)


def test_a_run_that_finished_meanwhile_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="There is no run to continue at .*Leave --resume out to begin one"):
        take(tmp_path / "out.run", resume=True)
    assert list(tmp_path.iterdir()) == []


def test_files_of_killed_runs_do_not_block_later_runs(tmp_path: Path) -> None:
    """The kill happened while a run was started again."""
    folder = tmp_path / "out.run"
    for name in (".out.run.replaced", ".out.run.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / RUN).write_text("{")
    (tmp_path / ".out.run.lock").touch()
    check_run_folder(folder, resume=False, force=False)
    take(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["out.run"]


def stored(**changes: Any) -> str:
    return json.dumps(settings_of(1).model_dump(mode="json", by_alias=True) | changes)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "invalid JSON"),
        ("[" * 200_000, "invalid JSON: recursion limit"),
        ("\udcff", "invalid JSON"),
        ("[]", "input should be an object"),
        ("{}", "model: the field is missing"),
        (stored(seed="1"), "seed: input should be a valid integer, got '1'"),
        (stored(seed=True), "seed: input should be a valid integer, got True"),
        (stored(more=1), "more: the field is unknown"),
        (stored(model={}), "model.config: the field is missing"),
        (stored(recipe={"sequence": float("nan")}), "invalid JSON"),
        (stored(references=None), "references: input should be an object, got None"),
    ],
)
def test_invalid_settings_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / RUN).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(TrainingError, match=rf"{RUN} is damaged: {problem}.*\. Start again: --force, or remove {tmp_path}"):
        STORE.check_same(tmp_path, settings_of(1))


def test_settings_survive_a_round_trip(tmp_path: Path) -> None:
    (tmp_path / RUN).write_text(stored())
    STORE.check_same(tmp_path, settings_of(1))
    with pytest.raises(TrainingError, match="seed: was 1, now 2"):
        STORE.check_same(tmp_path, settings_of(2))


THEN: dict[str, Any] = {
    "model": {"config": "a", "spec": "s", "files": "x"},
    "teacher": {"folder": "/t", "config": "b", "spec": None, "files": "x"},
    "recipe": {"sequence": 128, "rows": "packed", "transfer": {"lr": 0.01, "steps": 20, "batch": 8}, "finetune": None},
    "data": "d",
    "held-out data": "h",
    "seed": 0,
    "references": {"--data": ["a.txt"], "--held-out": [], "--share": 0.1, "--held-out-rows": None},
}


def changed(**settings: Any) -> dict[str, Any]:
    return {**THEN, **settings}


RECIPE = THEN["recipe"]
REFERENCES = THEN["references"]
ROWS_ARE_OTHERS = {"data": "e", "held-out data": "i"}
CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "lr": ({"recipe": {**RECIPE, "transfer": {**RECIPE["transfer"], "lr": 0.5}}}, ["recipe.transfer.lr: was 0.01, now 0.5"]),
    "steps take more rows": (
        {"recipe": {**RECIPE, "transfer": {**RECIPE["transfer"], "steps": 40}}, "held-out data": "i"},
        ["recipe.transfer.steps: was 20, now 40"],
    ),
    "rows are longer": ({"recipe": {**RECIPE, "sequence": 64}, **ROWS_ARE_OTHERS}, ["recipe.sequence: was 128, now 64"]),
    "a stage more": (
        {"recipe": {**RECIPE, "finetune": {"lr": 0.1, "epochs": None}}},
        ["recipe.finetune: was none, now {lr: 0.1}"],
    ),
    "another split": ({"seed": 3, **ROWS_ARE_OTHERS}, ["seed: was 0, now 3"]),
    "another file": (
        {"references": {**REFERENCES, "--data": ["b.txt", "c"]}, **ROWS_ARE_OTHERS},
        ["--data: was a.txt, now b.txt, c"],
    ),
    "another share": ({"references": {**REFERENCES, "--share": 0.5}, **ROWS_ARE_OTHERS}, ["--share: was 0.1, now 0.5"]),
    "more rows": ({"references": {**REFERENCES, "--held-out-rows": 9}, "held-out data": "i"}, ["--held-out-rows: was none, now 9"]),
    "other texts": (ROWS_ARE_OTHERS, ["data: the texts, or how many of them, are others than then"]),
    "moved": ({"references": {**REFERENCES, "--data": ["b.txt"]}}, []),
    "another spec": (
        {"model": {"config": "z", "spec": "r", "files": "x"}},
        ["model.config: was a, now z", "model.spec: was s, now r"],
    ),
    "other weights": (
        {"teacher": {"folder": "/t", "config": "c", "spec": None, "files": "y"}},
        ["teacher.config: was b, now c", "teacher.files: was x, now y"],
    ),
    "another teacher": (
        {"teacher": {"folder": "/u", "config": "b", "spec": None, "files": "x"}},
        ["teacher.folder: was /t, now /u"],
    ),
    "no teacher": ({"teacher": None}, ["teacher: was {folder: /t, config: b, files: x}, now none"]),
}


@pytest.mark.parametrize("case", CASES)
def test_only_different_settings_are_listed(case: str) -> None:
    settings, expected = CASES[case]
    assert run_differences(THEN, changed(**settings)) == expected
