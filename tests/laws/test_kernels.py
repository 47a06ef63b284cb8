"""On fla's kernels every program of a shipped head is its definition, documents in pieces included, and so are a mass's gradients.

Each form by itself is held to more in ``test_kernel_forms.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blocks.flow import Tokens
from blocks.operation import Setting
from composer.graph.composition import HeadSpec
from composer.graph.graph import build_graph
from composer.graph.listing import listing
from composer.graph.lowering import lower
from tests.laws.cases import SMALL, complete, every_spec, steady
from tests.laws.kernels import assert_on_kernels, packed, padded

SHAPE = SMALL.shape(2)
MASS = {"memory": [{"kind": "window", "size": 5, "weight": "learned"}, "state"], "feature_map": "hedgehog"}
"""A state whose mass stands beside a window's."""


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


@pytest.mark.parametrize("tokens", [packed, padded])
def test_a_mass_has_its_gradients(tokens: Callable[[], Tokens]) -> None:
    spec = complete(MASS)
    assert kernels(spec) == {"chunk_simple_gla"}
    assert_on_kernels(spec, SHAPE, "fla", tokens(), split=(9,) if tokens is packed else (), gradients=True)
