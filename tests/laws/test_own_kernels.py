"""On this project's own kernels every head of every shipped spec is its definition, in a text that is split into calls."""

from __future__ import annotations

import pytest

from blocks.operation import TRITON, Setting
from composer.graph.composition import HeadSpec
from composer.graph.graph import build_graph
from composer.graph.listing import listing
from composer.graph.lowering import lower
from tests.laws.cases import SMALL, every_spec
from tests.laws.kernels import assert_on_kernels, plain

SHAPE = SMALL.shape(2)


def heads() -> dict[str, HeadSpec]:
    """The shipped heads that look back and have such a kernel; of those that run the same program, one."""
    found: dict[tuple[str, ...], tuple[str, HeadSpec]] = {}
    for name, resolved in every_spec().items():
        for own, spec in resolved.heads.items():
            program = lower(build_graph(spec, SHAPE), TRITON, Setting())
            if resolved.direction == "causal" and any(step.form.backend == TRITON for step in program.steps):
                found.setdefault(tuple(listing(program)), (f"{name}: {own}", spec))
    return dict(found.values())


HEADS = heads()


def test_there_is_something_to_look_at() -> None:
    assert len(HEADS) >= 8


@pytest.mark.parametrize("name", HEADS)
def test_calls_of_any_length_are_the_definition(name: str) -> None:
    """The last is one token."""
    assert_on_kernels(HEADS[name], SHAPE, TRITON, plain(), split=(9, 20), close=1e-4)
