"""On fla's kernels every program of a shipped head is its definition: texts in pieces, documents, padding, and gradients."""

from __future__ import annotations

from typing import Any

import pytest

from blocks.operation import Setting
from composer.graph.composition import HeadSpec
from composer.graph.graph import build_graph
from composer.graph.listing import listing
from composer.graph.lowering import lower
from tests.laws.cases import SMALL, complete, every_spec, steady
from tests.laws.kernels import assert_on_kernels, packed, padded, plain

SHAPE = SMALL.shape(2)
LATTE = "fused_additive_gate, then chunk_gla: chunk_lightnet with gates of float32"
ALONE = {"kind": "window", "size": 5, "evict": "drop"}
PARTS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "a state, normalised": ({"memory": ["state"], "feature_map": "hedgehog"}, {"chunk_simple_gla"}),
    "a state of exponential features": ({"memory": ["state"], "feature_map": "exp"}, {"chunk_gla"}),
    "its mass beside a window's": (
        {"memory": [{"kind": "window", "size": 5, "weight": "learned"}, "state"], "feature_map": "hedgehog"}, {"chunk_simple_gla"}
    ),
    "latents": ({"memory": [{"kind": "latents", "size": 12}]}, {LATTE}),
    "a window": ({"memory": [ALONE], "position": "rope"}, {"parallel_attn"}),
    "a convolution": ({"memory": ["state"], "feature_map": "elu", "conv": "causal"}, {"causal_conv1d", "chunk_simple_gla"}),
    "a convolved input": ({"memory": [ALONE], "mix_input": {"kind": "conv", "feeds": "qk"}}, {"causal_conv1d", "parallel_attn"}),
    "a recurrent mixer": ({"memory": [ALONE], "mix_input": {"kind": "rglru", "feeds": "qk"}}, {"chunk_hgrn", "parallel_attn"}),
}  # fmt: skip


def heads() -> dict[str, HeadSpec]:
    """The shipped heads that look back and have a form of fla's; of those that run the same program, one."""
    found: dict[tuple[str, ...], tuple[str, HeadSpec]] = {}
    for name, resolved in every_spec().items():
        for own, spec in resolved.heads.items():
            program = tuple(listing(lower(build_graph(spec, SHAPE), "fla", Setting())))
            if resolved.direction == "causal" and kernels(spec):
                found.setdefault(program, (f"{name}: {own}", spec))
    return dict(found.values())


def kernels(spec: HeadSpec) -> set[str]:
    """What its program runs of fla."""
    program = lower(build_graph(spec, SHAPE), "fla", Setting())
    return {step.form.says for step in program.steps if step.form.backend == "fla"}


HEADS = heads()


def test_there_is_something_to_look_at() -> None:
    assert len(HEADS) >= 12


@pytest.mark.parametrize("name", HEADS)
def test_documents_in_pieces_are_the_definition(name: str) -> None:
    """The last piece is one token."""
    spec = steady(HEADS[name])
    assert_on_kernels(spec, SHAPE, "fla", packed(), split=(9, 20), close=1e-4)


@pytest.mark.parametrize("name", PARTS)
def test_gradients_are_the_definitions(name: str) -> None:
    head, named = PARTS[name]
    spec = complete(head)
    assert kernels(spec) == named
    assert_on_kernels(spec, SHAPE, "fla", packed(), split=(9,), gradients=True)


@pytest.mark.parametrize("name", ["its mass beside a window's", "latents", "a window", "a convolution", "a recurrent mixer"])
def test_padding_is_not_seen(name: str) -> None:
    assert_on_kernels(complete(PARTS[name][0]), SHAPE, "fla", padded())


@pytest.mark.parametrize("name", ["a state, normalised", "a window"])
def test_decode_goes_on_from_a_prefill(name: str) -> None:
    assert_on_kernels(complete(PARTS[name][0]), SHAPE, "fla", plain(), split=(17, 18, 19, 20))
