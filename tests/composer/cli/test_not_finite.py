"""NaN and infinity in weights are an error at the first read, with the file, the tensor and the count."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

import composer
from composer.building import folder as building
from composer.errors import ComposerError
from composer.training import model_on_disk
from composer.weights.plan import FRESH_FILE
from composer.weights.sources import open_model
from converters.source import SINGLE
from tests.checkpoints import edit_tensors
from tests.composer.cli.conftest import Compose
from tests.composer.cli.test_irregular_files import originals as originals  # noqa: PLC0414  a fixture
from tests.composer.training.runs import write_texts

NORM, MATRIX = "model.norm.weight", "model.layers.1.mlp.up_proj.weight"
QUICK = ("recipe.sequence=16", "recipe.transfer.steps=1", "recipe.transfer.batch=2")


def spoil(file: Path, name: str, value: float, count: int = 1) -> None:
    """Set some values of a stored tensor."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name].view(-1)[:count] = value

    edit_tensors(file, change)


def refused(result: Any, *words: str) -> None:
    assert (result.exit_code, result.stdout) == (2, ""), (result.output, result.exception)
    assert isinstance(result.exception, SystemExit)
    message = " ".join(result.stderr.split())
    for word in words:
        assert word in message, (word, message)


COMMANDS = {
    "generate": "generate MODEL --prompt once",
    "inspect": "inspect MODEL --text text.txt --length 8 --alone",
    "eval": "eval MODEL --tasks perplexity,text=text.txt --lengths 8 --samples 1 --quiet",
    "bench": "bench MODEL --prompts 8 --runs 1 --quiet",
    "sample": "sample MODEL -o out.jsonl --texts 1 --length 4 --quiet",
}


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
@pytest.mark.parametrize("command", ["generate", "eval", "sample"])
def test_commands_refuse_sources_that_are_not_finite(compose: Compose, originals: Path, command: str, value: float) -> None:
    shutil.copytree(originals, ".", dirs_exist_ok=True)
    spoil(Path("source", SINGLE), MATRIX, value, 7)
    refused(compose(*COMMANDS[command].replace("MODEL", "source").split()), SINGLE, f"{MATRIX} (7)", "NaN or infinity")


@pytest.mark.parametrize("command", ["generate", "inspect", "eval"])
def test_commands_refuse_students_that_are_not_finite(compose: Compose, originals: Path, command: str) -> None:
    shutil.copytree(originals, ".", dirs_exist_ok=True)
    name = min(load_file(Path("student", FRESH_FILE)))
    spoil(Path("student", FRESH_FILE), name, float("inf"), 3)
    refused(compose(*COMMANDS[command].replace("MODEL", "student").split()), f"student/{FRESH_FILE}", f"{name} (3)")


def test_commands_refuse_adapters_that_are_not_finite(compose: Compose, originals: Path) -> None:
    shutil.copytree(originals / "adapted", "adapted")
    file = Path("adapted/adapter/adapter_model.safetensors")
    spoil(file, min(load_file(file)), float("nan"), 2)
    refused(compose("generate", "adapted", "--prompt", "once"), "The adapters in", "adapted", "layers.0.self_attn.q_proj", "(2)")


def test_training_refuses_parameters_that_are_not_finite(compose: Compose, originals: Path, tmp_path: Path) -> None:
    shutil.copytree(originals / "student", "student")
    write_texts(tmp_path / "texts.jsonl")
    name = min(load_file(Path("student", FRESH_FILE)))
    spoil(Path("student", FRESH_FILE), name, float("nan"))
    options = [word for setting in QUICK for word in ("--set", setting)]
    for way in ((), ("--stream",)):
        result = compose("distill", "student", "--data", "texts.jsonl", "--stage", "transfer", "-o", "out", *options, *way)
        assert result.exit_code == 2, result.output
        assert f"{name} (1)" in result.stderr
        assert not Path("out").exists()


@pytest.mark.parametrize("options", ["", "--copy", "--dtype bfloat16", "--hash"])
def test_builds_that_read_the_weights_refuse_values_that_are_not_finite(compose: Compose, originals: Path, options: str) -> None:
    shutil.copytree(originals / "source", "source")
    spoil(Path("source", SINGLE), NORM, float("nan"), 5)
    refused(compose("build", "lolcats", "--from", "source", "-o", "out", "--quiet", *options.split()), SINGLE, f"{NORM} (5)")
    assert [path.name for path in Path().iterdir()] == ["source"]


def test_a_build_that_links_large_files_does_not_read_them(
    compose: Compose, originals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(originals / "source", "source")
    spoil(Path("source", SINGLE), NORM, float("nan"), 5)
    monkeypatch.setattr(building, "HASHED_ANYWAY", 0)
    assert compose("build", "lolcats", "--from", "source", "-o", "out", "--quiet").exit_code == 0
    refused(compose("generate", "out", "--prompt", "once"), f"{NORM} (5)")
    refused(compose("build", "lolcats", "--from", "source", "-o", "other", "--quiet", "--hash"), f"{NORM} (5)")


@pytest.mark.parametrize("model", ["source", "student"])
def test_load_and_build_refuse_weights_that_are_not_finite(originals: Path, tmp_path: Path, model: str) -> None:
    folder = tmp_path / model
    shutil.copytree(originals / model, folder)
    spoil(next(file for file in folder.glob("*.safetensors") if NORM in load_file(file)), NORM, float("inf"), 4)
    with pytest.raises(ComposerError, match=r"holds NaN or infinity .* model\.norm\.weight \(4\)"):
        composer.load(folder) if model == "student" else composer.build("lolcats", folder)


def test_build_refuses_models_in_memory_that_are_not_finite(originals: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(originals / "source")
    with torch.no_grad():
        model.model.norm.weight[:2] = float("nan")
    with pytest.raises(ComposerError, match=r"The model in memory holds NaN or infinity .* model\.norm\.weight \(2\)"):
        composer.build("lolcats", model)
    with torch.no_grad():
        model.model.norm.weight[:2] = 1e30
    with pytest.raises(ComposerError, match=r"too large for float16: model\.norm\.weight"):
        composer.build("lolcats", model, dtype="float16")


def test_values_too_large_for_the_dtype_they_are_loaded_in(originals: Path, tmp_path: Path) -> None:
    folder = tmp_path / "student"
    shutil.copytree(originals / "student", folder)
    file = next(file for file in folder.glob("*.safetensors") if NORM in load_file(file))
    spoil(file, NORM, 1e30)
    assert composer.load(folder) is not None
    with pytest.raises(ComposerError, match=r"too large for float16: some values of model\.norm\.weight become infinite"):
        composer.load(folder, dtype="float16")


def test_layers_read_one_by_one_are_refused_if_not_finite(originals: Path, tmp_path: Path) -> None:
    folder = tmp_path / "source"
    shutil.copytree(originals / "source", folder)
    spoil(folder / SINGLE, MATRIX, float("nan"))
    model = model_on_disk.StoredModel(open_model(folder))
    model.layer(0)
    with pytest.raises(ComposerError, match=rf"{SINGLE} holds NaN or infinity .* {MATRIX.replace('.', '[.]')} \(1\)"):
        model.layer(1)


def test_verify_counts_them(compose: Compose, originals: Path) -> None:
    shutil.copytree(originals / "student", "student")
    name = min(load_file(Path("student", FRESH_FILE)))
    spoil(Path("student", FRESH_FILE), name, float("nan"), 3)
    result = compose("verify", "student", "--json")
    assert result.exit_code == 1
    (check,) = [
        check for check in json.loads(result.stdout)["checks"] if check["what"] == "finite" and check["outcome"] == "failed"
    ]
    assert check["detail"] == f"NaN or infinity in {name} (3)"
