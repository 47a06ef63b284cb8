"""Checkpoints in LoLCATs' layout are imported: every layer equals the formula of its code over all pairs, and LoLA needs no
training.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import composer
from composer.weights.record import read_record
from tests.checkpoints import llama
from tests.composer.cli.conftest import Compose
from tests.published.layers import CONFIG, IDS, decoded, whole
from tests.published.lolcats import (
    PEFT,
    QUERY,
    SETTINGS,
    SPEC,
    adapters,
    attention,
    formula,
    maps,
    merged,
    options,
    saved,
    two_files,
)


def one_file(folder: Path) -> list[Path]:
    """Write one file with all parameters under PEFT's names, beside the trainer's notes."""
    state = {PEFT + name: torch.nn.Parameter(tensor) for name, tensor in maps().items()} | adapters()
    return [saved(folder / "model.pt", {"model_state_dict": state, "step": 100, "eval/loss": 1.5})]


def weights_of(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("layout", [two_files, one_file])
def test_every_layer_equals_the_published_code(
    compose: Compose, source: Path, tmp_path: Path, layout: Callable[[Path], Any]
) -> None:
    result = compose("build", SPEC, "--from", source, *options(layout(tmp_path)), *SETTINGS, "-o", "cats")
    assert result.exit_code == 0, result.output
    assert "untrained" not in result.stdout
    model = composer.load("cats", dtype="float64")
    weights = merged(load_file(source / "model.safetensors"))
    for seen in (whole(model), decoded(model, 1), decoded(model, 60)):
        for layer, inputs_of_layer in enumerate(seen):
            hidden, output = inputs_of_layer.join()
            assert output.abs().max() > 0.1
            torch.testing.assert_close(output, formula(weights, maps(), layer, hidden), rtol=1e-9, atol=1e-9)


def test_the_plan_and_the_record_have_the_origin_of_every_parameter(compose: Compose, source: Path, tmp_path: Path) -> None:
    files = two_files(tmp_path)
    arguments = ["build", SPEC, "--from", source, *options(files), *SETTINGS, "-o", "cats"]
    words = " ".join(compose(*arguments, "--dry-run").stdout.split())
    assert "given 6 tensors" in words
    assert "rewritten (8 with adapters merged in)" in words
    assert not Path("cats").exists()
    report = json.loads(compose(*arguments, "--json").stdout)
    record = read_record(Path("cats"))
    assert record is not None
    assert report["plan"] == record.plan.model_dump(mode="json")
    assert not record.untrained
    assert [Path(file).name for file in record.given] == ["maps.pt", "adapters.pt"]
    origin = record.plan.parameters["model.layers.1.self_attn.composed.head.feature_map.key_weight"].model_dump()
    assert (origin["kind"], origin["tensor"], origin["dtype"]) == ("given", attention(1, "feature_map_k.mlp.layer"), "bfloat16")
    into = record.plan.inherited["model.layers.1.self_attn.v_proj.weight"]
    assert into.added == tuple(PEFT + attention(1, f"v_proj.lora_{letter}.default.weight") for letter in "AB")
    assert compose("verify", "cats").exit_code == 0
    assert "`maps.pt` (SHA-256" in Path("cats/README.md").read_text()


def test_lola_is_built_from_lolcats_without_training(compose: Compose, source: Path, tmp_path: Path) -> None:
    assert compose("build", SPEC, "--from", source, *options(two_files(tmp_path)), *SETTINGS, "-o", "cats").exit_code == 0
    sizes = [*SETTINGS[:2], "--set=head.memory.1.size=8"]
    result = compose("build", "lola", "--from", "cats", "-o", "lola", *sizes)
    assert result.exit_code == 0, result.output
    assert "untrained" not in result.stdout
    before, after = weights_of(Path("cats")), weights_of(Path("lola"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    learned = maps()
    for layer in range(2):
        head = f"model.layers.{layer}.self_attn.composed.head."
        assert torch.equal(after[f"{head}feature_map.query_weight"], learned[attention(layer, QUERY)])
        assert torch.equal(after[f"{head}window.weight"], learned[attention(layer, "window_factors")].flatten())
    # Without room for a pair, and read as the code reads it, it is what it came from.
    same = [*SETTINGS[:2], "--set=head.memory.1.size=0", "--set=head.read={kind: shared, scale: row_max}"]
    assert compose("build", "lola", "--from", "cats", "-o", "empty", *same).exit_code == 0
    with torch.no_grad():
        actual, wanted, other = (composer.load(name, dtype="float64")(IDS).logits for name in ("empty", "cats", "lola"))
    torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-9)
    assert (other - wanted).abs().max() > 1e-3


def test_maps_without_adapters_are_accepted_by_equal_heads(compose: Compose, source: Path, tmp_path: Path) -> None:
    """Any spec with the same heads accepts them. Without adapters, all source files are linked, and a note is printed."""
    files = options([saved(tmp_path / "maps.pt", maps())])
    result = compose("build", "lola", "--from", source, *files, "--set=head.feature_map.dim=4", "-o", "lola")
    assert result.exit_code == 0, result.output
    assert "no adapters" in result.stdout
    record = read_record(Path("lola"))
    assert record is not None
    assert [file.how for file in record.files.values()] == ["linked", "written"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_merged_weights_are_rounded_once(compose: Compose, tmp_path: Path, dtype: str) -> None:
    """W + α/r · B A of a bfloat16 source, with rows in several blocks or in one."""
    source = llama(tmp_path / "narrow", dtype="bfloat16", **CONFIG)
    arguments = ["build", SPEC, "--from", source, *options(two_files(tmp_path)), *SETTINGS, "--dtype", dtype]
    assert compose(*arguments, "-o", "cats").exit_code == 0
    actual, wanted = weights_of(Path("cats")), merged(load_file(source / "model.safetensors"))
    for name in (attention(layer, f"{target}_proj.weight") for layer in range(2) for target in "qkvo"):
        assert actual[name].dtype == getattr(torch, dtype)
        close = wanted[name].to(torch.float32)
        torch.testing.assert_close(
            actual[name].float(), close if dtype == "float32" else close.bfloat16().float(), rtol=1e-6, atol=1e-7
        )


def test_adapters_on_some_projections_are_merged(compose: Compose, source: Path, tmp_path: Path) -> None:
    files = options([saved(tmp_path / "model.pt", maps() | adapters("qv"))])
    refused = compose("build", SPEC, "--from", source, *files, *SETTINGS, "-o", "cats")
    assert refused.exit_code == 2
    assert "8 adapters that are missing (recipe.finetune.lora has rank 2, alpha 6, targets [q, k, v, o]" in refused.stderr
    settings = [*SETTINGS, "--set=recipe.finetune.lora.targets=[q,v]"]
    assert compose("build", SPEC, "--from", source, *files, *settings, "-o", "cats").exit_code == 0
