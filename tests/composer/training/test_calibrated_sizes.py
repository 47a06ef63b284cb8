"""The outputs of a student's heads start at the size of the teacher's, for every shipped spec; a start far from it is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import composer
from composer.data.loading import load_rows
from composer.data.packing import PackedRows
from composer.errors import TrainingError
from composer.model.modeling import ComposedForCausalLM
from composer.spec.loading import load_spec
from composer.spec.recipe import Transfer
from composer.training.calibration import FAR, LayerSizes, begin_transfer, warn_of_sizes
from composer.training.finetune import warn_if_worse_than_uniform
from tests.composer.training.runs import RECIPE, make_student, make_teacher, rows_of, run, small_llama, teacher_of, write_texts
from tests.composer.training.streams import STREAM, same
from tests.composer.weights.students import weights
from tests.shipped import FEW

TEACHER = Path(__file__).parents[3] / "examples" / "teacher"
SCALED = "recipe.transfer.start=scaled"
STAGE = Transfer(lr=1, steps=2, batch=2, start="scaled")
QUIETER, LOUDER = 0.03, 20.0
"""Factors on the values of the teacher's layers, as trained models differ among layers."""
NORMED: dict[str, Any] = {
    "compose": 1,
    "name": "normed",
    "head": {"position": "rope", "feature_map": "identity", "memory": [{"kind": "state", "normalise": False}], "output": "norm"},
    "recipe": RECIPE,
}


@pytest.fixture(scope="module")
def source() -> Any:
    """Return the shipped teacher with small values in the first layer and large ones in the second."""
    model: Any = AutoModelForCausalLM.from_pretrained(TEACHER)
    with torch.no_grad():
        for layer, factor in zip(model.model.layers, (QUIETER, LOUDER), strict=True):
            layer.self_attn.v_proj.weight *= factor
    return model


@pytest.fixture(scope="module")
def teacher(source: Any) -> ComposedForCausalLM:
    return composer.build("softmax", source)  # pyright: ignore[reportReturnType]


@pytest.fixture(scope="module")
def rows(source: Any) -> PackedRows:
    tokenizer = AutoTokenizer.from_pretrained(TEACHER)
    return load_rows(["stories,samples=8"], tokenizer, 96, split="train", vocabulary=source.config.vocab_size, longest=256)


def begin(spec: str, source: Any, teacher: ComposedForCausalLM, rows: PackedRows, **stage: Any) -> list[LayerSizes]:
    student: Any = composer.build(spec, source, overrides=["trunk=null"])
    untrained = {name for name, _ in student.named_parameters() if ".composed." in name}
    return list(begin_transfer(student, teacher, STAGE.model_copy(update=stage), rows, 0, untrained).sizes)


@pytest.mark.parametrize("name", FEW)
def test_every_shipped_spec_starts_near_the_teacher(name: str, source: Any, teacher: ComposedForCausalLM, rows: PackedRows) -> None:
    sizes = begin(name, source, teacher, rows)
    assert [layer.layer for layer in sizes] == [0, 1]
    assert all(layer.distance < FAR for layer in sizes), sizes
    output = load_spec(name).head
    if output is not None and output.output is not None and output.output.normalises:
        far = begin(name, source, teacher, rows, start="parts")
        assert any(layer.distance > FAR for layer in far), "a norm without a scale is as large in every layer"
        assert all(layer.distance < 2.1 for layer in sizes), "a gate of sigmoid without a bias halves the output"


def test_groups_by_number_are_scaled_separately() -> None:
    """The values of every second head are 20 times as small as those of the others."""
    source = small_llama(num_attention_heads=4, num_key_value_heads=4, head_dim=8)
    with torch.no_grad():
        for layer in source.model.layers:
            layer.self_attn.v_proj.weight.view(4, 8, -1)[1::2] /= LOUDER
    groups = [{"head": "head", "heads": [0, 2]}, {"head": "odd", "heads": [1, 3]}]
    spec = NORMED | {"heads": {"odd": NORMED["head"]}, "layers": [{"at": "all", "use": groups}]}
    teacher, student = teacher_of(source), composer.build(spec, source)
    untrained = {name for name, _ in student.named_parameters() if ".composed." in name}
    begin_transfer(student, teacher, STAGE, rows_of(24), 0, untrained)  # pyright: ignore[reportArgumentType]
    for name, weight in student.named_parameters():
        if name.endswith("head.output_norm.weight"):
            odd = student.get_parameter(name.replace("head.output_norm", "odd.output_norm"))
            assert weight.detach().norm() > 5 * odd.detach().norm()


def test_a_calibrated_start_is_scaled_too(source: Any, teacher: ComposedForCausalLM, rows: PackedRows) -> None:
    assert all(layer.distance < FAR for layer in begin("gla", source, teacher, rows, start="calibrated"))


def test_a_start_far_from_the_teacher_is_reported() -> None:
    near, far = LayerSizes(0, 1.0, 0.5), LayerSizes(1, 1.0, 0.03)
    assert not list(warn_of_sizes([near, LayerSizes(1, 0.0, 0.0)], STAGE))
    (warning,) = warn_of_sizes([near, far, LayerSizes(2, 5.0, 1.0)], STAGE)
    assert "In 2 of 3 layers" in warning
    assert "in layer 1 their root mean square is 1, and the teacher's is 0.03" in warning
    assert "Leave recipe.transfer.start out" not in warning
    (warning,) = warn_of_sizes([LayerSizes(4, 0.0, 2.0)], STAGE.model_copy(update={"start": "parts"}))
    assert "Leave recipe.transfer.start out" in warning


def test_a_loss_worse_than_chance_is_reported() -> None:
    assert not list(warn_if_worse_than_uniform(10.7, 49_152, "At the end"))
    assert not list(warn_if_worse_than_uniform(None, 49_152, "At the end"))
    (warning,) = warn_if_worse_than_uniform(15.68, 49_152, "At the end")
    assert warning.startswith(
        "At the end the held-out loss is 15.68 nats per token. Equal probabilities for all 49,152 tokens have 10.8"
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a student with a norm, of a random teacher whose attention is small; and texts."""
    folder = tmp_path_factory.mktemp("normed")
    teacher = make_teacher(folder / "teacher")
    return make_student(folder / "student", teacher, NORMED), write_texts(folder / "texts.jsonl")


def test_a_run_scales_only_untrained_norms_and_records_this(folders: tuple[Path, Path], tmp_path: Path) -> None:
    student, texts = folders
    messages: list[str] = []
    report = run(student, tmp_path / "out", texts, SCALED, which="transfer", warn=messages.append)
    start = report.stages[0].start
    assert start is not None
    assert start.kept == ()
    assert start.calibrated == tuple(f"model.layers.{layer}.self_attn.composed.head.output_norm" for layer in (0, 1))
    assert not [message for message in messages if "root mean square" in message]
    streamed = run(student, tmp_path / "streamed", texts, SCALED, **STREAM)
    assert streamed.stages[0].after == report.stages[0].after
    assert same(weights(tmp_path / "out"), tmp_path / "streamed")
    again = run(tmp_path / "out", tmp_path / "again", texts, SCALED, which="transfer", warn=messages.append)
    assert again.stages[0].start is None
    assert again.stages[0].before == report.stages[0].after


def test_a_run_warns_and_strict_makes_it_an_error(folders: tuple[Path, Path], tmp_path: Path) -> None:
    student, texts = folders
    parts, messages = "recipe.transfer.start=parts", list[str]()
    run(student, tmp_path / "out", texts, parts, which="transfer", warn=messages.append)
    assert [message for message in messages if message.startswith("In 2 of 2 layers the heads' outputs start more than 4 times")]
    for options in ({}, STREAM):
        with pytest.raises(TrainingError, match=r"root mean square.* --strict makes this an error"):
            run(student, tmp_path / "strict", texts, parts, **({"which": "transfer", "strict": True} | options))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "strict.run"], "only a streamed run has begun"
