"""Changes that would give other results than a continued run are rejected before anything is written."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from composer.errors import ComposerError, TrainingError
from composer.training import distill as module
from composer.training.distill import train
from composer.training.loop import StepProgress
from composer.training.run import TrainingOptions
from composer.training.student import read_student
from tests.checkpoints import fingerprint
from tests.composer.training.runs import RECIPE, make_student, make_teacher, run, write_texts
from tests.composer.training.stages import STAGES, StoppedError
from tests.composer.training.stages import run as again


def stop(step: StepProgress) -> None:
    if step.step == 3:
        raise StoppedError


def stopped(student: Path, out: Path, texts: Path, **options: Any) -> None:
    with pytest.raises(StoppedError):
        run(student, out, texts, **{"checkpoint_seconds": 0.0, "watch": stop, **options})


def test_changed_data_are_refused(student: Path, texts: Path, tmp_path: Path) -> None:
    """The changed data are for training, or for choosing the best parameters."""
    stopped(student, tmp_path / "out", texts)
    other = write_texts(tmp_path / "other.jsonl", seed=4)
    changes: list[tuple[Path, dict[str, Any], str]] = [
        (other, {}, f"--data: was {texts}, now {other}"),
        (texts, {"share": 0.5}, "--share: was 0.2, now 0.5"),
        (texts, {"held_out": [str(other)]}, f"--held-out: was none, now {other}"),
    ]
    for data, options, message in changes:
        with pytest.raises(ComposerError, match=rf"other settings:\n  {re.escape(message)}\nUse the same settings"):
            run(student, tmp_path / "out", data, resume=True, **options)


CHANGES: dict[str, tuple[str, list[tuple[str, Any]]]] = {
    "teacher": (r"teacher\.folder: was \S+, now \S+other\n  teacher\.files: was \w+, now \w+", [("teacher", "OTHER")]),
    "bfloat16": ("--bfloat16: was false, now true", [("bfloat16", True)]),
    "held_out": (r"--held-out: was \S+-5.jsonl, now \S+-6.jsonl", [("held_out", "SECOND")]),
    "stage": ("stage: was transfer, finetune, now finetune", [("which", "finetune")]),
    "stream": (
        r"stage: was transfer, finetune, now transfer\n  --stream: was false, now true",
        [("which", "transfer"), ("stream", True)],
    ),
    "weights": (r"model\.files: was \w+, now \w+", [("teacher", "TEACHER")]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_changed_settings_are_refused(student: Path, teacher: Path, texts: Path, tmp_path: Path, change: str) -> None:
    other, model = make_teacher(tmp_path / "other", seed=9), student
    first, second = (str(write_texts(tmp_path / f"held-out-{seed}.jsonl", 9, seed)) for seed in (5, 6))
    begun: dict[str, Any] = {"held_out": [first]} if change == "held_out" else {}
    differs, options = CHANGES[change]
    options = {
        name: {"OTHER": str(other), "TEACHER": str(teacher), "SECOND": [second]}.get(value, value) for name, value in options
    }
    if change == "weights":
        begun, model = {"teacher": str(teacher)}, make_student(tmp_path / "same-spec", other)
    stopped(student, tmp_path / "out", texts, **begun)
    with pytest.raises(ComposerError, match=rf"other settings:\n  {differs}\nUse the same settings"):
        run(model, tmp_path / "out", texts, resume=True, **options)


@pytest.mark.parametrize("change", ["data", "share", "teacher"])
def test_streamed_runs_resume_only_with_equal_settings(student: Path, texts: Path, tmp_path: Path, change: str) -> None:
    streamed: dict[str, Any] = {"which": "transfer", "stream": True}

    def in_the_last_layer(step: StepProgress) -> None:
        if (step.stage, step.step) == ("transfer 1", 1):
            raise StoppedError

    stopped(student, tmp_path / "out", texts, watch=in_the_last_layer, **streamed)
    options: dict[str, Any] = {"share": 0.3} if change == "share" else {}
    if change == "teacher":
        options = {"teacher": str(make_teacher(tmp_path / "other", seed=9))}
    data = write_texts(tmp_path / "other.jsonl", seed=4) if change == "data" else texts
    with pytest.raises(ComposerError, match=rf"other settings:\n  (--)?{change}(\.folder)?: was \S+, now \S+\n"):
        run(student, tmp_path / "out", data, resume=True, **streamed, **options)


def test_a_second_run_of_a_folder_is_refused(student: Path, texts: Path, tmp_path: Path) -> None:
    """The second is refused from the first's start to its end, also while the first continues a stopped run."""
    refused: list[str] = []

    def second(step: StepProgress) -> None:
        before = fingerprint(tmp_path / "out.run")
        for options in ({}, {"resume": True}, {"force": True}):
            with pytest.raises(TrainingError) as caught:
                run(student, tmp_path / "out", texts, which="transfer", **options)
            refused.append(str(caught.value))
        assert fingerprint(tmp_path / "out.run") == before
        if step.step == 3 and len(refused) < 12:
            raise StoppedError

    with pytest.raises(StoppedError):
        run(student, tmp_path / "out", texts, which="transfer", watch=second, checkpoint_seconds=0.0)
    run(student, tmp_path / "out", texts, which="transfer", watch=second, resume=True)
    assert len(refused) == 3 * 3 + 3 * 4 + 3 * 2, "the third step was not yet in a checkpoint, and two projections are solved"
    assert {*refused} == {f"Another run writes to {tmp_path / 'out.run'}. Wait until it has ended, or choose another --out."}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_run_that_started_meanwhile_is_not_replaced(
    student: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both runs have seen no folder and were reading their data."""
    monkeypatch.setattr("composer.training.run.check_run_folder", lambda *_, **__: None)

    def second(step: StepProgress) -> None:
        for options in ({}, {"resume": True}, {"force": True}):
            with pytest.raises(TrainingError, match="Another run writes to"):
                run(student, tmp_path / "out", texts, steps, which="transfer", **options)

    steps = "recipe.transfer.steps=1"
    assert run(student, tmp_path / "out", texts, steps, which="transfer", watch=second).stages


@pytest.mark.parametrize("config", [{"hidden_size": 64}, {"num_hidden_layers": 3}])
def test_streamed_teachers_of_another_size_are_refused(student: Path, texts: Path, tmp_path: Path, config: dict[str, Any]) -> None:
    other = make_teacher(tmp_path / "other", **config)
    with pytest.raises(ComposerError, match="does not fit the student"):
        run(student, tmp_path / "out", texts, which="transfer", stream=True, teacher=str(other))
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_replaced_source_is_refused_as_teacher(texts: Path, tmp_path: Path) -> None:
    """Another model at the source's path is a teacher only if it is named."""
    teacher = make_teacher(tmp_path / "teacher")
    student = make_student(tmp_path / "student", teacher)
    shutil.rmtree(teacher)
    make_teacher(teacher, seed=9, rope_theta=500.0)
    with pytest.raises(TrainingError, match=f"another config.json since then.* use --teacher {teacher}"):
        run(student, tmp_path / "out", texts, which="transfer")
    assert not (tmp_path / "out.run").exists()
    assert run(student, tmp_path / "out", texts, "recipe.transfer.steps=1", which="transfer", teacher=str(teacher)).stages


@pytest.mark.parametrize("stream", [False, True])
def test_evaluation_without_held_out_rows_is_refused(student: Path, texts: Path, tmp_path: Path, stream: bool) -> None:
    report = run(student, tmp_path / "out", texts, "recipe.transfer.steps=2", which="transfer", share=0.0, stream=stream)
    assert (report.stages[0].before, report.stages[0].after) == ({}, {})
    assert report.data["references"][0]["documents"] == 40


@pytest.mark.parametrize("setting", ["schedule=plateau", "patience=2"])
def test_settings_that_need_held_out_rows_are_refused_without(student: Path, texts: Path, tmp_path: Path, setting: str) -> None:
    with pytest.raises(TrainingError, match="needs held-out rows, and nothing is held out.*--held-out"):
        run(student, tmp_path / "out", texts, f"recipe.transfer.{setting}", share=0.0)
    assert not list(tmp_path.iterdir())


def test_bidirectional_models_cannot_learn_the_next_token(teacher: Path, texts: Path, tmp_path: Path) -> None:
    """Its heads can still learn from a teacher's."""
    spec = {"compose": 1, "name": "ahead", "extends": "latte-bidirectional", "trunk": None, "recipe": RECIPE}
    student = make_student(tmp_path / "student", teacher, spec | {"head": {"memory": [{"kind": "latents", "size": 8}]}})
    for which in ("all", "finetune"):
        with pytest.raises(TrainingError, match='"ahead" is bidirectional: .* no next token to learn'):
            run(student, tmp_path / "out", texts, which=which)
    with pytest.raises(TrainingError, match='"ahead" is bidirectional'):
        train(read_student(student, ["recipe.train.lr=1", "recipe.train.steps=1"]), tmp_path / "out", TrainingOptions([str(texts)]))
    assert [path.name for path in tmp_path.iterdir()] == ["student"]
    assert run(student, tmp_path / "out", texts, "recipe.transfer.steps=1", which="transfer").stages


def test_streamed_runs_need_the_cpu(student: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "check_device", lambda device: None)
    with pytest.raises(TrainingError, match="runs on the CPU only: leave --device cuda or --stream out"):
        run(student, tmp_path / "out", texts, which="transfer", stream=True, device="cuda")


@pytest.mark.parametrize("file", ["facts.json", "process-0.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "zeros"])
def test_damaged_checkpoints_are_refused(stopped_run: Path, tmp_path: Path, file: str, damage: str) -> None:
    folder = shutil.copytree(stopped_run, tmp_path / "run")
    [path] = (folder / "transfer").glob(f"step-*/{file}")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if damage == "cut" else bytes(len(content)))
    with pytest.raises(TrainingError, match=r"The checkpoint .* is damaged: .*start again with --force"):
        again(folder, STAGES["transfer"])


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.raises(StoppedError):
        again(folder, STAGES["transfer"], checkpoint_seconds=0.0, watch=stop)
    return folder


@pytest.mark.parametrize(
    "what", ["no config", "damaged config", "damaged tokenizer", "damaged run", "run is a file", "out below a file"]
)
def test_damaged_inputs_of_a_run_are_refused(teacher: Path, texts: Path, tmp_path: Path, what: str) -> None:
    student, out = make_student(tmp_path / "student", teacher), tmp_path / "out"
    options: dict[str, Any] = {}
    if what == "no config":
        (student / "config.json").unlink()
    elif what == "damaged config":
        (student / "config.json").write_text("{")
    elif what == "damaged tokenizer":
        (student / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    elif what == "damaged run":
        (tmp_path / "out.run").mkdir()
        (tmp_path / "out.run" / "run.json").write_text("{")
        options = {"resume": True}
    elif what == "run is a file":
        (tmp_path / "out.run").write_text("mine")
        options = {"force": True}
    else:
        out = texts / "out"
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    with pytest.raises(ComposerError):
        run(student, out, texts, **options)
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before
