"""`compose calibrate` writes a student that is nearer to its teacher. A mistake gives one message, exit code 2, and no files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import composer
from composer.training.loop import StepProgress
from composer.weights.record import read_record
from composer.weights.verify import verify
from tests.checkpoints import logits
from tests.composer.cli.conftest import Compose
from tests.composer.training.runs import RECIPE, SPEC, make_student, run, write_texts
from tests.composer.training.runs import make_teacher as make_worded_teacher
from tests.composer.weights.students import weights

IDS = torch.arange(40).view(2, 20) % 14
SPECS: dict[str, Any] = {"tiny": SPEC | {"recipe": RECIPE}, "bare": SPEC, "streaming": "streaming", "compressed": "compressed"}


@pytest.fixture(scope="module")
def students(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("students")
    teacher = make_worded_teacher(folder / "teacher")
    return {name: make_student(folder / name, teacher, spec) for name, spec in SPECS.items()} | {"teacher": teacher}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("data") / "texts.jsonl", 60)


@pytest.fixture(scope="module")
def calibrated(students: dict[str, Path], texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("calibrated") / "out"
    composer.calibrate(students["tiny"], str(texts), out, share=0.2)
    return out


@pytest.mark.parametrize("name", ["tiny", "bare", "streaming"])
def test_specs_without_recipes_or_fresh_parameters_are_calibrated(
    name: str, compose: Compose, students: dict[str, Path], texts: Path
) -> None:
    result = compose("calibrate", students[name], "--data", texts, "--set", "recipe.sequence=16")
    assert result.exit_code == 0, result.output
    assert [path.name for path in Path().iterdir()] == [f"{name}-calibrated"]
    assert "Output projections solved" in " ".join(result.stdout.split())
    record = read_record(Path(f"{name}-calibrated"))
    assert record is not None
    (stage,) = record.training
    assert (stage.stage, stage.steps, stage.recipe) == ("calibrate", 0, {"start": "solved"})
    assert stage.start is not None
    assert stage.start.solved
    assert all(layer.after <= layer.before for layer in stage.start.solved)
    assert bool(stage.start.calibrated) is (name != "streaming")
    assert verify(Path(f"{name}-calibrated")).ok


@pytest.mark.usefixtures("without_comparison")
def test_a_calibrated_model_is_exported_and_trained_further(
    calibrated: Path, students: dict[str, Path], texts: Path, tmp_path: Path
) -> None:
    wanted = logits(composer.load(calibrated), IDS)
    composer.export(calibrated, tmp_path / "exported")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "exported", trust_remote_code=True)
    torch.testing.assert_close(logits(exported, IDS), wanted)
    before = weights(calibrated)
    run(calibrated, tmp_path / "tuned", texts, which="finetune")
    after = weights(tmp_path / "tuned")
    projections = {name for name, tensor in before.items() if not torch.equal(tensor, weights(students["tiny"])[name])}
    projections = {name for name in projections if "o_proj" in name}
    assert projections
    assert all(torch.equal(before[name], after[name]) for name in projections), "adapters are beside them"
    composer.merge(tmp_path / "tuned", tmp_path / "merged")
    assert any(not torch.equal(before[name], weights(tmp_path / "merged")[name]) for name in projections)


def test_transfer_after_calibration_keeps_calibrated_parts(calibrated: Path, texts: Path, tmp_path: Path) -> None:
    report = run(calibrated, tmp_path / "out", texts, which="transfer")
    record = read_record(tmp_path / "out")
    assert record is not None
    assert [stage.stage for stage in record.training] == ["calibrate", "transfer"]
    assert report.stages[0].start is not None
    assert report.stages[0].start.calibrated == ()


def test_the_same_call_gives_the_same_bytes(calibrated: Path, students: dict[str, Path], texts: Path, tmp_path: Path) -> None:
    reports: list[StepProgress] = []
    composer.calibrate(students["tiny"], str(texts), tmp_path / "again", share=0.2, progress=reports.append)
    assert [(step.stage, step.step, step.steps) for step in reports] == [
        (stage, layer, 2) for stage in ("parts", "projections") for layer in (1, 2)
    ]
    again = weights(tmp_path / "again")
    assert all(torch.equal(tensor, again[name]) for name, tensor in weights(calibrated).items())


def refused(result: Any, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert all(word in " ".join(result.stderr.split()) for word in words), result.stderr
    assert "Traceback" not in result.output
    assert not [path for path in Path().iterdir() if path.suffix != ".jsonl" and path.name != "broken"]


def test_mistakes_give_a_message_and_no_files(compose: Compose, students: dict[str, Path], texts: Path, tmp_path: Path) -> None:
    tiny = students["tiny"]
    refused(compose("calibrate", tiny), "--data")
    few = Path("few.jsonl")
    few.write_text(json.dumps({"text": "once upon a time there was a cat and it slept"}) + "\n")
    refused(compose("calibrate", tiny, "--data", few, "--share", 0), "tokens, and the output projection of", "Add data")
    refused(compose("calibrate", students["teacher"], "--data", texts), "it is not a built model")
    refused(compose("calibrate", tiny, "--data", "missing.jsonl"), "missing.jsonl")
    shutil.copytree(tiny, "broken")
    for file in Path("broken").glob("*.safetensors"):
        tensors = load_file(file)
        save_file({name: tensor * torch.nan for name, tensor in tensors.items()}, file, {"format": "pt"})
    refused(compose("calibrate", "broken", "--data", texts), "finite")


def test_a_trained_model_is_refused_without_force(compose: Compose, students: dict[str, Path], texts: Path, tmp_path: Path) -> None:
    trained = tmp_path.parent / f"{tmp_path.name}-trained"
    run(students["tiny"], trained, texts, which="transfer")
    refused(compose("calibrate", trained, "--data", texts), "was trained already (transfer)", "--force")
    result = compose("calibrate", trained, "--data", texts, "--force", "-o", "out")
    assert result.exit_code == 0, result.output
