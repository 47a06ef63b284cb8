"""A head's program run piece by piece equals one call, has the right boundaries, and exposes the values between steps."""

from __future__ import annotations

import pytest
import torch

from blocks.operation import Kind
from composer.graph.composition import HeadSpec
from composer.graph.program import HeadInputs
from composer.model import stepwise
from composer.model.head import Head, anatomy
from composer.model.stepwise import ordinary_inputs, pieces
from tests.laws.cases import SMALL, build_head, every_head, inputs, run

HEADS = {name: head for name, head in every_head().items() if name.startswith("memory")}
LENGTH = 40


def run_once(spec: HeadSpec) -> tuple[Head, HeadInputs, torch.Tensor]:
    """Return the head, its inputs, and its output in one call."""
    head, data = build_head(spec, SMALL.shape(4)), inputs(SMALL.shape(4), 2, LENGTH)
    return head, data.of_head(), run(head, data)[0]


@pytest.mark.parametrize("name", HEADS)
def test_pieces_equal_one_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepwise, "LONGEST", 16)
    head, data, whole = run_once(HEADS[name])
    parts = list(pieces(head, data, "auto", bounds=(5, 30, 30, 99)))
    ends = [piece.columns.stop for piece in parts]
    assert ends == sorted(set(ends))
    assert {5, 30, LENGTH} <= set(ends)
    assert max(piece.columns.stop - piece.columns.start for piece in parts) <= 16
    outputs = [next(iter(piece.outputs_of(Kind.OUTPUT, anatomy(head).graph).values())) for piece in parts]
    torch.testing.assert_close(torch.cat(outputs, dim=1), whole, rtol=1e-9, atol=1e-10)
    for piece in parts:
        assert piece.memory_outputs.keys() == {node.name for node, _ in anatomy(head).graph.memories}
        assert piece.tokens.position[0].tolist() == list(range(LENGTH))[piece.columns]


def test_memory_outputs_have_gradients_of_their_values() -> None:
    head, data, _ = run_once(HEADS["memory: window"])
    (piece,) = pieces(head, data, "auto", gradients=True)
    (answer,) = piece.memory_outputs.values()
    (by_value,) = torch.autograd.grad(answer.sum(), piece.memory_values)
    assert by_value.any()
    assert not piece.shown, "parts show themselves where nobody asks for gradients"


def test_tensors_of_inference_mode_are_copied() -> None:
    with torch.inference_mode():
        _, data, _ = run_once(HEADS["memory: window"])
    assert data.query.is_inference()
    assert not any(tensor.is_inference() for tensor in (ordinary_inputs(data).query, ordinary_inputs(data).tokens.position))
