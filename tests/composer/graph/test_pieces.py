"""Some heads process a long text in pieces of a chosen length. ``tests.laws.test_pieces`` compares pieces with the whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from blocks.legend import Shape
from composer.graph.graph import HeadGraph
from composer.graph.pieces import NUMBERS, SHORTEST, piece_length, takes_pieces
from composer.graph.wiring import build_graph
from tests.laws.cases import SMALL, build_head, complete, inputs, run

SHAPE = SMALL.shape(4)


def graph(memory: list[Any], shape: Shape = SHAPE, **head: Any) -> HeadGraph:
    return build_graph(complete({"memory": memory, **head}), shape)


def test_supported_heads_run_in_pieces() -> None:
    bounded = graph(["state"], feature_map="elu")
    assert takes_pieces(bounded, "auto", "cpu")
    assert not takes_pieces(bounded, "auto", "cuda")
    assert not takes_pieces(bounded, "reference", "cpu")
    assert not takes_pieces(graph([{"kind": "full"}]), "auto", "cpu")
    both = replace(SHAPE, both_ways=True)
    assert not takes_pieces(graph(["state"], both, feature_map="elu"), "auto", "cpu")


def test_pieces_are_bounded_by_memory_and_at_least_a_window() -> None:
    state = graph(["state"], feature_map="elu")
    assert piece_length(state, NUMBERS // SHORTEST) == SHORTEST
    assert piece_length(state, NUMBERS // SHORTEST // 4) == 4 * SHORTEST
    assert piece_length(state, 100 * NUMBERS) == SHORTEST
    window = graph([{"kind": "window", "size": SHORTEST + 1, "evict": "drop"}])
    assert piece_length(window, 100 * NUMBERS) == 2 * SHORTEST


def test_the_reference_does_not_run_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    head, seen = build_head(complete({"memory": ["state"], "feature_map": "elu"}), SHAPE), []
    monkeypatch.setattr("composer.graph.pieces.NUMBERS", 0)
    head.get_submodule("state").register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        run(head, inputs(SHAPE, 1, SHORTEST + 1), backend="reference")
    assert len(seen) == 1


def test_heads_run_in_pieces_only_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    head, length = build_head(complete({"memory": ["state"], "feature_map": "elu"}), SHAPE), 2 * SHORTEST + 3
    data, seen = inputs(SHAPE, 1, length), []
    monkeypatch.setattr("composer.graph.pieces.NUMBERS", 0)
    head.get_submodule("state").register_forward_hook(lambda *_: seen.append(1))
    with torch.no_grad():
        in_pieces, state = run(head, data)
    assert len(seen) == 3
    whole, left = run(head, data)
    assert len(seen) == 4
    torch.testing.assert_close(in_pieces, whole, rtol=1e-9, atol=1e-10)
    assert state.keys() == left.keys()
