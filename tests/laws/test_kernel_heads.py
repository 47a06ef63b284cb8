"""On kernels of fla and of this project, the whole head of every shipped spec equals its definition in float64: outputs for
documents in several calls, the last of one token, and gradients with documents, padding and a second call.
``test_kernel_forms.py`` tests each form in more cases.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from blocks.legend import Shape
from blocks.operation import FLA, TRITON, Setting
from composer.graph.composition import HeadSpec
from composer.graph.lowering import lower
from composer.graph.source import write_source
from composer.graph.wiring import build_graph
from tests.covers import cover, some
from tests.laws.cases import SHAPES, SMALL, every_spec, steady
from tests.laws.kernels import CANCELLED, assert_on_kernels, documents_and_padding, packed_tokens


def programs() -> dict[str, tuple[HeadSpec, Shape, str, bool]]:
    """Return the shipped heads with a form of the backend, one for each set of equal programs. Each has its backend, and whether
    several tokens run the same forms with and without gradients.
    """
    by_program: dict[tuple[object, ...], tuple[str, tuple[HeadSpec, Shape, str, bool]]] = {}
    for name, resolved in every_spec().items():
        shape = replace(SMALL.shape(2), both_ways=resolved.direction == "bidirectional")
        for own, spec in resolved.heads.items():
            for backend in (FLA, TRITON):
                settings = [Setting(documents=True, gradients=gradients) for gradients in (False, True)]
                lowered = [lower(build_graph(spec, shape), backend, setting) for setting in settings]
                if any(step.form.backend == backend for program in lowered for step in program.steps):
                    alike = [write_source(program).text for program in lowered]
                    case = spec, shape, backend, alike[0] == alike[1]
                    by_program.setdefault((backend, *alike), (f"{backend}, {name}: {own}", case))
    return dict(by_program.values())


PROGRAMS = programs()


def kernels_of(spec: HeadSpec, shape: Shape, backend: str) -> tuple[object, ...]:
    """Return the steps of a head that run on kernels in training: their forms, and the kinds of the parts that they compute."""
    program = lower(build_graph(spec, shape), backend, Setting(documents=True, gradients=True))
    steps = (step for step in program.steps if step.form.backend == backend)
    return tuple((step.form.description, *(covered.node.kind for covered in step.covers)) for step in steps)


WITH_GRADIENTS = {
    (backend, shape.both_ways, kernels): name
    for name, (spec, shape, backend, _) in reversed(PROGRAMS.items())
    if (kernels := kernels_of(spec, shape, backend))
}
"""The first head of all that run the same kernels in training. Their other steps run on PyTorch, which derives the gradients. A
few of these heads together run each kernel.
"""


def test_heads_are_found() -> None:
    for backend, least in ((FLA, 30), (TRITON, 12)):
        assert sum(case[2] == backend for case in PROGRAMS.values()) >= least


KERNELS = {name: set(kernels_of(spec, shape, backend)) for name, (spec, shape, backend, _) in PROGRAMS.items()}


@pytest.mark.parametrize(
    "name", some(PROGRAMS, cover({name: {(PROGRAMS[name][2], own) for own in used} for name, used in KERNELS.items()}))
)
def test_documents_in_split_calls_match_the_definition(name: str) -> None:
    """Heads with the same forms with gradients are tested on a state with several tokens below."""
    spec, shape, backend, alike = PROGRAMS[name]
    split = () if shape.both_ways else (20,) if alike else (9, 20)
    assert_on_kernels(steady(spec), shape, backend, packed_tokens(), split=split)


@pytest.mark.parametrize("name", ["gla", "gated-delta", "gdn2-hybrid", "rwkv7", "rglru-window"])
def test_values_of_another_size_than_keys_match_the_definition(name: str) -> None:
    """Kernels of recurrences accept both sizes. Those of windows refuse."""
    spec = steady(next(iter(every_spec()[name].heads.values())))
    tokens, shape = documents_and_padding(), SHAPES["short values"]
    assert any(step.form.backend == FLA for step in lower(build_graph(spec, shape), FLA, Setting(documents=True)).steps)
    assert_on_kernels(spec, shape, FLA, tokens, split=(12,), gradients=True, cancelled=CANCELLED)


@pytest.mark.parametrize(
    "name", some(WITH_GRADIENTS.values(), cover({name: set(kernels_of(*PROGRAMS[name][:3])) for name in WITH_GRADIENTS.values()}))
)
def test_gradients_match_the_definition(name: str) -> None:
    """The second call begins with a state that contains pairs of its document, so that gradients pass through it."""
    spec, shape, backend, _ = PROGRAMS[name]
    split = () if shape.both_ways else (12,)
    tokens = documents_and_padding()
    assert_on_kernels(steady(spec), shape, backend, tokens, split=split, gradients=True, cancelled=CANCELLED)
