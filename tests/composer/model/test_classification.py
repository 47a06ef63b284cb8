"""The classifier averages real tokens for any padding, and uses transformers' losses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForSequenceClassification

import composer
from composer.model.classes import ComposedForSequenceClassification
from tests.composer.model.models import llama, tokens
from tests.composer.model.trunks import HEADS, TRUNKS, model


def test_logits_are_the_score_of_the_mean_hidden_state() -> None:
    built, ids = model(labels=5), tokens(3, 11)
    assert isinstance(built, ComposedForSequenceClassification)
    assert built.config.num_labels == 5
    expected = built.model(ids).last_hidden_state.mean(1) @ built.score.weight.T
    torch.testing.assert_close(built(ids).logits, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("trunk", ["llama", "classic", "learned"])
@pytest.mark.parametrize("head", HEADS)
def test_padding_changes_nothing(head: str, trunk: str) -> None:
    built = model(head, labels=3, **TRUNKS[trunk])
    rows = [tokens(1, length, seed=length)[0] for length in (4, 12, 9)]
    with torch.no_grad():
        alone = torch.cat([built(row[None]).logits for row in rows])
        for before in (0, 3):
            ids = torch.stack([functional.pad(row, (before, 15 - before - len(row)), value=9) for row in rows])
            mask = torch.stack([functional.pad(torch.ones_like(row), (before, 15 - before - len(row))) for row in rows])
            torch.testing.assert_close(built(ids, attention_mask=mask).logits, alone, rtol=0, atol=1e-10)


def test_a_row_without_tokens_has_zero_logits_and_finite_gradients() -> None:
    built, ids = model(labels=3), tokens(2, 5)
    mask = torch.tensor([[1] * 5, [0] * 5])
    answer = built(ids, attention_mask=mask, labels=torch.tensor([0, 1]))
    assert torch.equal(answer.logits[1], torch.zeros(3, dtype=torch.float64))
    answer.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in built.parameters() if parameter.grad is not None)


@pytest.mark.parametrize("head", HEADS)
def test_every_parameter_has_a_nonzero_gradient(head: str) -> None:
    built, ids = model(head, labels=3, dropout=0.1, **TRUNKS["learned"]).train(), tokens(4, 20)
    labels = torch.tensor([0, 1, 2, 1])
    answer = built(ids, labels=labels)
    torch.testing.assert_close(answer.loss, functional.cross_entropy(answer.logits, labels))
    answer.loss.backward()
    reached = {name for name, parameter in built.named_parameters() if parameter.grad is not None and parameter.grad.any()}
    assert reached == {name for name, _ in built.named_parameters()}


def test_losses_are_mse_for_numbers_and_binary_cross_entropy_for_several_labels() -> None:
    ids = tokens(4, 6)
    single, several = model(labels=1), model(labels=3)
    wanted = torch.tensor([0.5, 1.0, -1.0, 2.0], dtype=torch.float64)
    answer = single(ids, labels=wanted)
    torch.testing.assert_close(answer.loss, functional.mse_loss(answer.logits[:, 0], wanted))
    marks = torch.tensor([[1.0, 0, 1]] * 4, dtype=torch.float64)
    answer = several(ids, labels=marks)
    torch.testing.assert_close(answer.loss, functional.binary_cross_entropy_with_logits(answer.logits, marks))


def test_classifiers_refuse_cu_seqlens() -> None:
    built, ids = model(labels=2), tokens(1, 6)
    with pytest.raises(TypeError, match="does not accept cu_seqlens"):
        built(ids, cu_seqlens=torch.tensor([0, 6]))


def test_output_attentions_returns_weights_that_sum_to_1() -> None:
    built, ids = model(labels=2), tokens(1, 6)
    sums = torch.stack(built(ids, output_attentions=True).attentions).sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))


@pytest.mark.parametrize("head", HEADS)
def test_saved_classifiers_load_by_the_auto_class(head: str, tmp_path: Path) -> None:
    built, ids = model(head, labels=7, **TRUNKS["classic"]), tokens(2, 9)
    built.save_pretrained(tmp_path)
    loaded, report = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype="auto", output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    torch.testing.assert_close(loaded(ids).logits, built(ids).logits, rtol=0, atol=1e-12)
    assert isinstance(composer.load(tmp_path), ComposedForSequenceClassification)


def test_a_classifier_is_a_source_for_other_heads(tmp_path: Path) -> None:
    teacher, ids = model(labels=4), tokens(2, 9)
    spec = {"compose": 1, "name": "y", "head": HEADS["softmax"]}
    teacher.save_pretrained(tmp_path)
    for source in (teacher, tmp_path):
        torch.testing.assert_close(composer.build(spec, source)(ids).logits, teacher(ids).logits, rtol=0, atol=1e-12)


def test_a_language_model_loads_as_a_classifier_with_a_new_score_matrix(tmp_path: Path) -> None:
    """Its score matrix is new, as the record of the saved folder states. The folder can be a source."""
    composer.build("softmax", llama()).save_pretrained(tmp_path / "model")
    made = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model", num_labels=3)
    assert made(tokens(1, 5)).logits.shape == (1, 3)
    made.save_pretrained(tmp_path / "classifier")
    loaded = composer.load(tmp_path / "classifier")
    torch.testing.assert_close(loaded(tokens(1, 5)).logits, made.eval()(tokens(1, 5)).logits, rtol=0, atol=1e-12)
    composer.build_folder("lawcat", tmp_path / "classifier", tmp_path / "student")
    assert isinstance(composer.load(tmp_path / "student"), ComposedForSequenceClassification)
