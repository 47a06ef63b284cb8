"""Ablated key heads are the source's without their outputs, and scores of patched key heads equal those of whole texts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from composer.errors import SelectionError
from composer.selection.gates import Gates
from composer.selection.patched import DISCOUNT, Twins, make_twins, receiver_scores
from composer.tasks.base import Sample, Task, rng_of
from composer.tasks.needles import Multivalue
from composer.tasks.passkey import Passkey
from composer.tasks.recall import Recall
from composer.tasks.writer import Writer
from tests.checkpoints import logits
from tests.composer.hosts.families import small
from tests.composer.model.models import llama, tokens
from tests.composer.selection.test_gates import LENGTH, TEACHER, gate_heads, source_with_one_effective_head


@pytest.fixture(scope="module")
def writer() -> Writer:
    return Writer(AutoTokenizer.from_pretrained(TEACHER))


def twins_of(model: Any, gates: Gates) -> tuple[Twins, list[float]]:
    """Return a text with a twin, and answers whose difference the twin changes."""
    ids = tokens(1, LENGTH).clamp(max=90)
    twin = ids.clone()
    twin[0, 5:8] = twin[0, 5:8].flip(0) + 1
    for answers in (([7, 8, 9], [3, 2, 1]), ([3, 2, 1], [7, 8, 9])):
        twins = Twins(ids, twin, *(torch.tensor(answer) for answer in answers))
        scores = receiver_scores(model, gates, twins)
        if scores is not None:
            return twins, scores
    raise AssertionError("one of both orders has a difference that decreases")


def test_an_ablated_key_head_has_no_output() -> None:
    source = llama()
    model, gates = gate_heads(source)
    closed = torch.ones(len(gates.heads))
    closed[gates.heads.index((1, 1))] = 0.0
    with gates.fixed(closed, ablates=True):
        ablated = logits(model, tokens(2, LENGTH))
    layers: Any = source.model.layers
    output = layers[1].self_attn.o_proj
    with torch.no_grad():
        output.weight[:, 32:] = 0.0
    torch.testing.assert_close(ablated, logits(source, tokens(2, LENGTH)), rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_scores_of_few_tokens_equal_those_of_whole_texts(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference computes all tokens of the text, and takes each output of a key head from the twin's whole text."""
    monkeypatch.setattr("composer.selection.patched.AT_ONCE", 3)
    model, gates = gate_heads(small(family, num_attention_heads=8, num_key_value_heads=4))
    twins, scores = twins_of(model, gates)
    (heads, other_heads) = (
        gates.record(lambda ids=ids: model.base(input_ids=ids, use_cache=False).last_hidden_state)[1]
        for ids in (twins.ids, twins.twin)
    )

    def preference(ids: torch.Tensor) -> float:
        some = logits(model, ids)[0, twins.predicting]
        weights = DISCOUNT ** torch.arange(3)
        right, wrong = (some.gather(1, answer[:, None])[:, 0] for answer in (twins.right, twins.wrong))
        return float(((right - wrong) * weights).sum() / weights.sum())

    with gates.fixed(torch.ones_like(gates.values)):
        clean, corrupted = preference(twins.ids), preference(twins.twin)
    for place, (layer, number) in enumerate(gates.heads):
        patched = {index: output.clone() for index, output in heads.items()}
        group = slice(2 * number, 2 * number + 2)
        patched[layer][:, :, group] = other_heads[layer][:, :, group]
        with gates.replaying(patched):
            expected = (clean - preference(twins.ids)) / (clean - corrupted)
        assert scores[place] == pytest.approx(min(1.0, max(0.0, expected)), abs=1e-4)
    assert max(scores) > 0.01


def test_the_only_head_with_an_output_carries_the_whole_answer() -> None:
    model, gates = gate_heads(source_with_one_effective_head())
    _, scores = twins_of(model, gates)
    assert scores == pytest.approx([float(head == (1, 1)) for head in gates.heads], abs=1e-5)


@pytest.mark.parametrize("task", [Passkey(), Multivalue(values=2)], ids=lambda task: task.name)
def test_twins_differ_in_their_answers_only(task: Task, writer: Writer) -> None:
    def draw(rng: Any) -> Sample:
        return task.sample(rng, writer, 160, "evaluation")

    sample = draw(rng_of(0, "evaluation", 0))
    twins = make_twins(sample, draw, rng_of(0, "evaluation", 1), writer)
    assert twins is not None
    differing = (twins.ids != twins.twin)[0]
    assert 0 < int(differing.sum()) <= 5 * 2 * len(sample.answers or ())
    assert not differing[twins.predicting].any()
    assert writer.decode(twins.right.tolist()).split() == writer.decode(sample.ids[-len(twins.right) :]).split()
    old, new = (writer.decode(text[0].tolist()) for text in (twins.ids, twins.twin))
    digits = writer.decode(twins.wrong.tolist())
    assert digits not in old
    assert all(word in new.replace(" ", "") for word in digits.split())


def test_answers_without_a_twin(writer: Writer) -> None:
    recall = Recall(pairs=2).sample(rng_of(0, "evaluation", 0), writer, 60, "evaluation")
    assert make_twins(recall, lambda rng: recall, rng_of(0, "evaluation", 0), writer) is None
    sample = Passkey().sample(rng_of(0, "evaluation", 0), writer, 160, "evaluation")
    with pytest.raises(SelectionError, match="has no twin: in 200 draws no other answer has as many tokens"):
        make_twins(sample, lambda rng: sample, rng_of(0, "evaluation", 0), writer)
