"""Scores of layers equal those of separately built models, and both models are unchanged afterwards."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import composer
from composer.data.packing import PackedRows
from composer.model.hosts import attentions
from composer.selection.layers import divergence_with, score_layers
from composer.training.rows import rows_of
from composer.training.run import TrainingOptions, load_student
from composer.training.student import read_student
from composer.training.teacher import open_teacher

TEACHER = Path(__file__).parents[3] / "examples" / "teacher"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory):
    """A student with random heads, its teacher, and two rows."""
    out = tmp_path_factory.mktemp("selection") / "student"
    composer.build_folder("lawcat", TEACHER, out, overrides=["recipe.sequence=64"], seed=3)
    options = TrainingOptions(data=("stories,samples=20",), share=0.5)
    described = read_student(out, ())
    rows = rows_of(described, options)[1]
    assert rows is not None
    return (
        load_student(described, options).eval(),
        open_teacher(described.record, None).load("cpu"),
        rows.take(torch.tensor([0, 1]).numpy()),
    )


def measure_divergence(wanted: torch.nn.Module, actual: torch.nn.Module, rows: PackedRows) -> float:
    """Return KL(wanted ‖ actual), the mean over tokens in float64."""
    total, tokens = 0.0, 0
    with torch.no_grad():
        for batch in rows.in_order(1):
            ids = batch.ids[batch.valid][None]
            first, other = (model(ids).logits.double().log_softmax(-1) for model in (wanted, actual))
            total += float(functional.kl_div(other, first, reduction="sum", log_target=True))
            tokens += ids.shape[1]
    return total / tokens


def test_scores_equal_those_of_separately_built_models(pair) -> None:
    student, teacher, rows = pair
    before = {name: tensor.clone() for model in (student, teacher) for name, tensor in model.state_dict().items()}
    divergence, scores = score_layers(student, teacher, rows)
    assert divergence == pytest.approx(measure_divergence(teacher, student, rows), rel=1e-4)
    for score in scores:
        rule = [f"layers=[{{at: {score.layer}, use: source}}]"]
        restored = composer.build("lawcat", TEACHER, overrides=rule, seed=3)
        assert score.restored == pytest.approx(divergence - measure_divergence(teacher, restored, rows), rel=1e-3, abs=1e-5)
        others = [index for index in range(2) if index != score.layer]
        swapped = composer.build("lawcat", TEACHER, overrides=[f"layers=[{{at: {others}, use: source}}]"], seed=3)
        assert score.swapped == pytest.approx(measure_divergence(teacher, swapped, rows), rel=1e-3)
        assert score.error > 0
    for name, tensor in before.items():
        model = student if ".composed." in name else teacher
        assert torch.equal(model.state_dict()[name], tensor)
    assert all(
        attention.composed is not other.composed
        for (_, attention), (_, other) in zip(attentions(student), attentions(teacher), strict=True)
    )


def test_keeping_all_layers_equals_the_teacher(pair) -> None:
    student, teacher, rows = pair
    kept, tokens = divergence_with(student, teacher, rows, (0, 1))
    assert abs(kept) < 1e-6
    assert tokens == sum(int(batch.valid.sum()) for batch in rows.in_order(1))
    none, _ = divergence_with(student, teacher, rows, ())
    assert none == pytest.approx(score_layers(student, teacher, rows)[0], rel=1e-6)
    assert none > 1e-3


def test_heads_are_exchanged_with_their_output_projections(pair) -> None:
    """The projections of a student may be solved for its own heads."""
    student, teacher, rows = pair
    student = copy.deepcopy(student)
    with torch.no_grad():
        for _, attention in attentions(student):
            attention.o_proj.weight.mul_(1.5)
    assert abs(divergence_with(student, teacher, rows, (0, 1))[0]) < 1e-6
    divergence, scores = score_layers(student, teacher, rows)
    for score in scores:
        kept, _ = divergence_with(student, teacher, rows, (score.layer,))
        assert score.restored == pytest.approx(divergence - kept, abs=1e-6)
