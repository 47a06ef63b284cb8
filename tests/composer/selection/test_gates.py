"""Open and closed gates are the models that the selected specs build, and gates close where a head has no effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer, LlamaForCausalLM

import composer
from composer.data.packing import IGNORED, PackedRows
from composer.errors import TaskError
from composer.model.hosts import attentions_by_layer
from composer.model.modeling import ComposedForCausalLM
from composer.selection.choice import KeyHead, candidate_heads, keeping_heads
from composer.selection.gates import GateCourse, Gates, divergences, gate_layers, head_errors
from composer.selection.judged_rows import answers_in, write_rows
from composer.selection.layers import score_layers
from composer.spec.recipe import Stage
from composer.tasks.needles import Multikey
from composer.tasks.passkey import Passkey
from composer.tasks.writer import Writer
from composer.training.journal import Journal
from composer.training.loop import StageSetting, run_stage
from tests.checkpoints import logits
from tests.composer.hosts.families import small
from tests.composer.model.models import llama, tokens

TEACHER = Path(__file__).parents[3] / "examples" / "teacher"
STREAMING: dict[str, Any] = {
    "compose": 1,
    "name": "streaming",
    "head": {"memory": [{"kind": "first", "size": 2}, {"kind": "window", "size": 4, "evict": "drop"}]},
}
LENGTH = 24


def gate_heads(source: Any, spec: dict[str, Any] = STREAMING) -> tuple[Any, Gates]:
    model, other = (composer.build(name, source).eval() for name in ("softmax", spec))
    assert isinstance(model, ComposedForCausalLM)
    heads = candidate_heads(other.config.read_spec())
    mixed = {index: attention.composed for index, attention in attentions_by_layer(other).items()}
    return model, gate_layers(model, mixed, heads)


def open_only(gates: Gates, kept: set[KeyHead]) -> Tensor:
    return torch.tensor([float(head in kept) for head in gates.heads])


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "gemma2", "lfm2"])
def test_fixed_gates_equal_the_model_built_with_their_heads(family: str) -> None:
    """Windows, sinks, soft caps and the layers of a hybrid without attention are the source's."""
    source: Any = small(family, num_attention_heads=8, num_key_value_heads=4)
    model, gates = gate_heads(source)
    ids = tokens(2, LENGTH).clamp(max=90)
    layers = sorted({layer for layer, _ in gates.heads})
    kept = {(layers[0], 1), (layers[0], 3), (layers[-1], 0)}
    resolved = composer.build(STREAMING, source).config.read_spec()
    built = composer.build(keeping_heads(STREAMING, resolved, kept), source)
    with gates.fixed(open_only(gates, kept)):
        torch.testing.assert_close(logits(model, ids), logits(built, ids), rtol=0, atol=2e-5)
    with gates.fixed(open_only(gates, set(gates.heads))):
        torch.testing.assert_close(logits(model, ids), logits(source, ids), rtol=0, atol=2e-5)
    assert not torch.allclose(logits(model, ids), logits(source, ids), atol=1e-3)


def test_key_heads_of_the_source_have_no_gate() -> None:
    rule = {"at": 0, "use": [{"head": "source", "heads": [0]}, {"head": "head", "heads": "rest"}]}
    source = llama()
    model, gates = gate_heads(source, {**STREAMING, "layers": [rule, {"at": 1, "use": "source"}]})
    assert gates.heads == ((0, 1), (2, 0), (2, 1))
    built = composer.build({**STREAMING, "layers": [rule, {"at": 1, "use": "source"}]}, source)
    with gates.fixed(open_only(gates, set())):
        torch.testing.assert_close(logits(model, tokens(1, LENGTH)), logits(built, tokens(1, LENGTH)), rtol=0, atol=1e-9)


def rows_of(count: int) -> PackedRows:
    """Return rows of two documents; the answer is the last token of the first."""
    ids = tokens(count, LENGTH, seed=count).numpy().astype(np.int32)
    position = np.tile(np.concatenate((np.arange(16), np.arange(8))), (count, 1)).astype(np.int32)
    labels = np.where((position == 0) | (np.arange(LENGTH) < 12), IGNORED, ids).astype(np.int32)
    return PackedRows(ids, labels, position, np.ones_like(ids, dtype=np.bool_))


def source_with_one_effective_head() -> LlamaForCausalLM:
    """Return a source of which only key head 1 of layer 1 has an output."""
    source = llama().float()
    with torch.no_grad():
        blocks: Any = source.model.layers
        for index, block in enumerate(blocks):
            output = block.self_attn.o_proj
            left = output.weight[:, 32:].clone() if index == 1 else None
            output.weight.zero_()
            if left is not None:
                output.weight[:, 32:] = left
    return source


STAGE = Stage(lr=0.08, steps=16, batch=1, schedule="cosine", clip=None, keep="last")


def learn_gates(folder: Path, share: float = 0.2) -> dict[KeyHead, float]:
    model, gates = gate_heads(source_with_one_effective_head())
    course = GateCourse(model, gates, STAGE, share)
    folder.mkdir()
    run_stage("gates", course, STAGE, rows_of(16), None, StageSetting(folder, Journal(folder)))
    course.clamp()
    return dict(zip(gates.heads, gates.values.tolist(), strict=True))


def test_gates_of_heads_without_effect_close(tmp_path: Path) -> None:
    values = learn_gates(tmp_path / "run")
    assert values.pop((1, 1)) > 0.5
    assert max(values.values()) < 0.1


def test_the_penalty_rises_until_enough_gates_are_closed() -> None:
    model, gates = gate_heads(source_with_one_effective_head())
    penalties = {}
    for share in (0.1, 0.9):
        with torch.no_grad():
            gates.values.fill_(0.5)
        course = GateCourse(model, gates, STAGE, share)
        for step in range(4):
            course.compute_gradients(rows_of(4).batch([step]), 1)
            course.units[0].update(step, 16, 1.0)
        course.clamp()
        penalties[share] = float(course.units[0].parameters["penalty"].detach())
    assert penalties[0.1] > 0.35
    assert penalties[0.9] == pytest.approx(0.3)


def test_divergences_are_0_with_open_gates_and_positive_with_closed_gates() -> None:
    """Open gates have none. Closed ones have one where a document is longer than the window, and none in shorter texts."""
    model, gates = gate_heads(llama())
    batch = rows_of(1).batch([0])
    assert int(answers_in(batch).sum()) == 16
    with gates.fixed(torch.ones(len(gates.heads))):
        assert [float(value.detach()) for value in divergences(model, gates, batch)] == [0.0, 0.0]
    with gates.fixed(torch.zeros(len(gates.heads))):
        answer, text = divergences(model, gates, batch)
    assert min(float(answer), float(text)) > 1e-4


def test_errors_of_single_key_heads_equal_those_of_layers() -> None:
    """Of one key head a layer they are the layers' own, and a head that has no output has no error."""
    source, rows = llama(num_key_value_heads=1), rows_of(2)
    model, gates = gate_heads(source)
    student, teacher = (composer.build(spec, source).eval() for spec in (STREAMING, "softmax"))
    assert isinstance(student, ComposedForCausalLM)
    assert isinstance(teacher, ComposedForCausalLM)
    _, scores = score_layers(student, teacher, rows)
    assert head_errors(model, gates, rows) == pytest.approx([score.error for score in scores])
    halved = llama()
    attention: Any = halved.model.layers[0].self_attn
    with torch.no_grad():
        attention.v_proj.weight[:16].zero_()
    model, gates = gate_heads(halved)
    errors = dict(zip(gates.heads, head_errors(model, gates, rows), strict=True))
    assert errors[0, 0] == 0
    assert min(error for head, error in errors.items() if head != (0, 0)) > 0.01


@pytest.fixture(scope="module")
def writer() -> Writer:
    return Writer(AutoTokenizer.from_pretrained(TEACHER))


def test_rows_have_a_needle_and_text(writer: Writer) -> None:
    """Answers and up to 64 tokens of the text are compared; evaluation and training have different samples."""
    length = 320
    ids = np.tile(np.arange(3, 3 + length, dtype=np.int32) % 200 + 3, (2, 1))
    position = np.tile(np.arange(length, dtype=np.int32), (2, 1))
    texts = PackedRows(ids, np.where(position == 0, IGNORED, ids).astype(np.int32), position, np.ones_like(ids, dtype=np.bool_))
    rows = write_rows(texts, [Passkey(), Multikey()], writer, "train", 0, 3)
    assert (len(rows), rows.sequence) == (3, length)
    for row in range(3):
        batch = rows.batch([row])
        needle = answers_in(batch)
        assert length // 2 <= int(needle.sum()) + 8
        assert int(needle.sum()) <= length * 7 // 8
        answer = batch.ids[needle & (batch.labels != IGNORED)]
        assert writer.decode(answer.tolist()).strip().isdigit()
        assert 0 < int(((batch.labels != IGNORED) & ~needle).sum()) <= 64
        assert torch.equal(batch.ids[~needle], torch.from_numpy(ids[0, : int((~needle).sum())]).long())
    assert rows.hash == write_rows(texts, [Passkey(), Multikey()], writer, "train", 0, 3).hash
    others = [write_rows(texts, [Passkey()], writer, "evaluation", 0, 3), write_rows(texts, [Passkey()], writer, "train", 1, 3)]
    assert len({rows.hash, *(other.hash for other in others)}) == 3
    assert np.array_equal(texts.ids, ids), "the texts are unchanged"
    with pytest.raises(TaskError, match="passkey needs at least"):
        write_rows(rows_of(1), [Passkey()], writer, "train", 0, 1)
