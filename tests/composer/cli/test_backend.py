"""`--backend` reaches the heads in every command that runs a model, and unknown names are rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from composer.system.json_files import write_state
from composer.training.folder import RUN, STORE
from composer.weights.record import read_record
from tests.composer.cli.conftest import Compose
from tests.composer.graph.backends import NAME, own_backend
from tests.composer.training.runs import write_texts
from tests.composer.training.test_folder import settings_of

STEPS = ("--set", "recipe.transfer.steps=1", "--set", "recipe.finetune.steps=1", "--set", "recipe.sequence=16")
TRAIN = ("--set", "recipe.train.lr=1e-3", "--set", "recipe.train.steps=1", "--set", "recipe.sequence=16")
COMMANDS: dict[str, tuple[Any, ...]] = {
    "generate": ("generate", "STUDENT", "--prompt", "once", "--max-new-tokens", 2),
    "eval": (
        "eval",
        "STUDENT",
        "TEACHER",
        "--tasks",
        "perplexity",
        "--text",
        "text.txt",
        "--lengths",
        16,
        "--samples",
        1,
        "-o",
        "out",
    ),
    "bench": ("bench", "STUDENT", "TEACHER", "--decode", 4, "--repeats", 1, "--steps", 1, "-o", "out"),
    "distill": ("distill", "STUDENT", "--data", "texts.jsonl", *STEPS, "-o", "out"),
    "streamed": ("distill", "STUDENT", "--data", "texts.jsonl", *STEPS, "--stage", "transfer", "--stream", "-o", "out"),
    "train": ("train", "STUDENT", "--data", "texts.jsonl", *TRAIN, "-o", "out"),
}


@pytest.fixture
def run_command(compose: Compose, teacher: Path, student: Path) -> Any:
    """Run one of the commands with further arguments."""
    write_texts(Path("texts.jsonl"))
    Path("text.txt").write_text("once upon a time there was a cat and it slept " * 20, encoding="utf-8")
    models = {"STUDENT": student, "TEACHER": teacher}
    return lambda name, *more: compose(*(models.get(word, word) for word in COMMANDS[name]), *more)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_backend_is_refused_before_anything_is_written(run_command: Any, name: str) -> None:
    result = run_command(name, "--backend", "tritn")
    assert result.exit_code == 2, result.output
    assert 'there is no backend "tritn"; there are auto, fla, reference, torch, triton' in " ".join(result.stderr.split())
    assert sorted(path.name for path in Path().iterdir()) == ["text.txt", "texts.jsonl"]


@pytest.mark.parametrize("command", ["inspect STUDENT --tasks passkey --length 80", "generate TEACHER --prompt once"])
def test_inspect_and_generate_refuse_unknown_backends(command: str, compose: Compose, teacher: Path, student: Path) -> None:
    models = {"STUDENT": student, "TEACHER": teacher}
    result = compose(*(models.get(word, word) for word in command.split()), "--backend", "tritn")
    assert result.exit_code == 2, result.output
    assert 'there is no backend "tritn"' in " ".join(result.stderr.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_backend_reaches_the_heads(run_command: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It also works beside a teacher without forms on the backend, and the output records it."""
    with own_backend(monkeypatch) as calls:
        result = run_command(name, "--backend", NAME)
        assert result.exit_code == 0, result.output
        assert calls
    written = {"eval": "results.json", "bench": "bench.json"}.get(name)
    if written:
        assert json.loads((Path("out") / written).read_text())["setting"]["backend"] == NAME
    elif name != "generate":
        record = read_record(Path("out"))
        assert record is not None
        assert {stage.backend for stage in record.training} == {NAME}
    if name == "bench":
        assert f"backend {NAME}" in result.stdout


def test_evaluations_resume_only_with_their_backend(run_command: Any) -> None:
    """An evaluation from before the option existed continues with `auto`."""
    assert run_command("eval").exit_code == 0
    path = Path("out/run.json")
    begun = json.loads(path.read_text())
    assert begun.pop("backend") == "auto"
    path.write_text(json.dumps(begun))
    assert run_command("eval").exit_code == 0
    result = run_command("eval", "--backend", "reference")
    assert result.exit_code == 2
    assert "backend: was auto, now reference" in result.stderr


def test_training_runs_resume_only_with_their_backend(tmp_path: Path) -> None:
    from composer.errors import TrainingError

    settings = settings_of(0)
    write_state(tmp_path / RUN, settings)
    STORE.check_same(tmp_path, settings)
    with pytest.raises(TrainingError, match="backend: was auto, now torch"):
        STORE.check_same(tmp_path, settings.model_copy(update={"backend": "torch"}))


def test_backends_without_a_form_here_give_one_line(run_command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with own_backend(monkeypatch, lambda _: "it fits nowhere"):
        result = run_command("generate", "--prompt", "once upon a time", "--backend", NAME)
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith(f"backend {NAME} is set, but no part of a head (`"), result.stderr
    assert "FallsBack" not in result.stderr
    assert run_command("generate", "--backend", "torch").stderr == ""
