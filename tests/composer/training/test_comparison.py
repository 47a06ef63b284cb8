"""Likeness measures are means over real tokens, and equal plain attention over whole T × T matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from composer.data.packing import Packing
from composer.errors import TrainingError
from composer.spec.recipe import Recipe
from composer.training.comparison import ROWS, attention_likeness, has_weights, likeness_of
from composer.training.run import TrainingOptions
from tests.composer.training.by_hand import attention_of, documents, lolcats_weights, projected, projections, softmax_weights
from tests.composer.training.runs import make_student, rows_of, run, small_llama, student_of, teacher_of, whole

WINDOW = 4


def by_hand(student: Any, source: Any, rows: Any) -> list[tuple[float, float]]:
    """Return, for each layer, the mean squared error of the heads' outputs and the mean of Σ a log(a / â) over real tokens."""
    batch = whole(rows)
    width = attention_of(student, 0).facts.head_dim
    sums = [[0.0, 0.0] for _ in source.model.layers]
    for row, start, end in documents(batch):
        for index, own in enumerate(projected(source, batch.ids[row, start:end][None])):
            hidden, attention = own["hidden"][0], attention_of(student, index)
            wanted = softmax_weights(source.model.layers[index].self_attn, hidden, width)
            actual = lolcats_weights(attention, hidden, WINDOW)
            value = projections(attention, hidden, width)[2]
            answers = torch.einsum("hts,shd->thd", actual - wanted, value)
            sums[index][0] += float(answers.square().mean((1, 2)).sum())
            ratios = (wanted / actual).where(wanted > 0, 1.0).log()
            sums[index][1] += float((wanted * ratios).sum(-1).mean(0).sum())
    tokens = int(batch.valid.sum())
    return [(error / tokens, divergence / tokens) for error, divergence in sums]


@pytest.mark.parametrize("how", ["packed", "padded"])
@torch.no_grad()
def test_figures_match_hand_computed_values(how: Packing) -> None:
    source, rows = small_llama(), rows_of(how=how)
    student = student_of(source)
    likeness = attention_likeness(student, teacher_of(source), rows)
    for layer, (error, divergence) in zip(likeness, by_hand(student, source, rows), strict=True):
        assert layer.mse == pytest.approx(error, rel=1e-5)
        assert layer.divergence == pytest.approx(divergence, rel=1e-4)
        assert layer.mse > 1e-3
        assert divergence > 1e-2


@torch.no_grad()
def test_a_softmax_student_has_no_error() -> None:
    source, rows = small_llama(), rows_of()
    for layer in attention_likeness(student_of(source, "softmax"), teacher_of(source), rows):
        assert layer.mse == pytest.approx(0, abs=1e-12)
        assert layer.divergence == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("spec", "overrides", "weighed"),
    [
        ("lolcats", ["head.memory.0.size=4"], True),
        ("latte", [], False),
        ("latte", ["head.value_position=null"], True),
        ("gla", [], False),
        ("delta", [], False),
        ("lola", ["head.memory.0.size=2"], False),
        ("lola", ["head.memory.0.size=2", "head.memory.1.size=1", "head.memory.1.keep=recent"], True),
    ],
)
def test_heads_without_weights_have_no_divergence(spec: str, overrides: list[str], weighed: bool) -> None:
    source, rows = small_llama(), rows_of(lengths=(7, 9))
    student = student_of(source, spec, *overrides)
    layers = attention_likeness(student, teacher_of(source), rows)
    assert has_weights(student, 0) is weighed
    assert [layer.divergence is not None for layer in layers] == [weighed, weighed]
    assert all(layer.mse > 0 for layer in layers)


def test_teachers_without_weights_have_no_divergence() -> None:
    source = small_llama()
    (layer, _) = attention_likeness(student_of(source, "softmax"), student_of(source, "delta"), rows_of(lengths=(7,)))
    assert layer.divergence is None


def test_divergence_without_mass_is_finite() -> None:
    """If all features of ReLU are 0, the output is 0, and the divergence is as large as float32 allows."""
    source = small_llama()
    spec = {"compose": 1, "name": "relu", "head": {"position": "rope", "feature_map": "relu", "memory": ["state"]}}
    for layer in attention_likeness(student_of(source, spec), teacher_of(source), rows_of()):
        assert layer.divergence is not None
        assert 1 < layer.divergence < 88


def test_the_number_of_rows_is_bounded() -> None:
    source = small_llama()
    student, teacher = student_of(source), teacher_of(source)
    many = rows_of(4, lengths=(4,) * (ROWS + 3), how="padded")
    few = rows_of(4, lengths=(4,) * ROWS, how="padded")
    assert len(many) == ROWS + 3
    assert attention_likeness(student, teacher, many) == attention_likeness(student, teacher, few)


@pytest.fixture(scope="module")
def softmax(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = {"compose": 1, "name": "softmax", "head": {"position": "rope", "memory": ["full"]}}
    return make_student(tmp_path_factory.mktemp("softmax") / "student", teacher, spec)


RECIPE = Recipe(sequence=16)


def test_losses_of_a_folder_are_reported(softmax: Path, student: Path, texts: Path) -> None:
    options = TrainingOptions([str(texts)], share=0.2)
    same = likeness_of(softmax, options, recipe=RECIPE)
    assert same.loss == pytest.approx(same.teacher_loss, rel=1e-6)
    assert same.mse == pytest.approx(0, abs=1e-10)
    other = likeness_of(student, options)
    assert other.teacher_loss == same.teacher_loss
    assert other.loss != pytest.approx(other.teacher_loss, rel=1e-5)
    assert other.mse == sum(layer.mse for layer in other.layers) / 2 > 1e-4
    rows = likeness_of(softmax, options, recipe=Recipe.model_validate({"sequence": 16, "rows": "padded", "finetune": AVERAGED}))
    tokens = likeness_of(softmax, options, recipe=Recipe.model_validate({"sequence": 16, "rows": "padded"}))
    assert rows.teacher_loss != pytest.approx(tokens.teacher_loss, rel=1e-4)


AVERAGED = {"lr": 1e-2, "steps": 1, "average": "rows"}


def test_reports_have_the_loss_before_and_after_the_second_stage(student: Path, texts: Path, tmp_path: Path) -> None:
    """The first report has the loss with which the second stage begins. The second report has the final model's."""
    compared = likeness_of(student, TrainingOptions([str(texts)], share=0.2))
    report = run(student, tmp_path / "out", texts, which="finetune")
    assert report.stages[0].before["model"] == pytest.approx(compared.loss, rel=1e-5)
    assert report.loss == pytest.approx(report.stages[0].after["model"], rel=1e-5)
    assert report.teacher_loss == pytest.approx(compared.teacher_loss, rel=1e-6)


def test_bidirectional_models_have_no_next_token_loss(teacher: Path, texts: Path, tmp_path: Path) -> None:
    spec = {"compose": 1, "name": "both", "direction": "bidirectional", "head": {"position": "rope", "memory": ["full"]}}
    likeness = likeness_of(make_student(tmp_path / "both", teacher, spec), TrainingOptions([str(texts)], share=0.2), recipe=RECIPE)
    assert likeness.loss is None
    assert likeness.mse > 0


def test_comparison_without_held_out_rows_is_refused(softmax: Path, texts: Path) -> None:
    with pytest.raises(TrainingError, match="Nothing is held out, so there is nothing to compare on"):
        likeness_of(softmax, TrainingOptions([str(texts)], share=0.0), recipe=RECIPE)
