"""Every kernel of fla that a shipped spec uses compiles for Hopper: forward, backward and decode, in bfloat16, with rows of one
document and of several. ``tests/blocks/fused`` compiles this project's own kernels.
"""

from __future__ import annotations

import warnings
from functools import cache
from itertools import product

import pytest
import torch

from blocks.flow import Tokens
from blocks.legend import Shape
from blocks.operation import FLA, Setting
from composer.graph.composition import HeadSpec
from composer.graph.lowering import lower
from composer.graph.wiring import build_graph
from composer.spec.loading import load_spec
from composer.spec.resolve import Dimensions, resolve
from composer.spec.shipped import shipped_specs
from tests.compiling import CAPABILITIES, Build, built
from tests.launches import recorded
from tests.laws import cases

pytestmark = pytest.mark.long

SIZE = Dimensions(hidden_size=64, layers=4, heads=4, key_heads=2, head_dim=16, rope_theta=1e4)
LENGTH, SECOND = 200, 150
SPECS = [name for name in shipped_specs() if "/" not in name]
SHARED = 99 * 1024
"""Bytes of shared memory that a block may take of the smallest cards of these two."""


def heads() -> dict[HeadSpec, Shape]:
    """Return the heads of the shipped specs."""
    shapes = {}
    for name in SPECS:
        case = resolve(load_spec(name, ["trunk=null"] if load_spec(name).trunk else []), SIZE)
        shapes |= {head: SIZE.shape(SIZE.heads) for head in case.heads.values()}
    return shapes


def forms(spec: HeadSpec, shape: Shape, setting: Setting) -> set[str]:
    """Return the descriptions of the forms on fla's kernels."""
    steps = lower(build_graph(spec, shape), FLA, setting).steps
    return {step.form.description for step in steps if step.form.backend == FLA}


@cache
def launched() -> tuple[dict[str, Build], set[str]]:
    """Return the kernels and the forms that ran. A head runs if it has a form that no earlier head had."""
    seen: set[str] = set()
    with recorded() as builds, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what nothing was written to holds anything
        for (spec, shape), documents in product(heads().items(), (False, True)):
            training = forms(spec, shape, Setting(documents=documents, gradients=True))
            decode = forms(spec, shape, Setting(documents=documents, one_token=True))
            if {(choice, documents) for choice in training | decode} - seen:
                seen |= {(choice, documents) for choice in training | decode}
                _run(spec, shape, documents)
    return builds, {choice for choice, _ in seen}


def _run(spec: HeadSpec, shape: Shape, documents: bool) -> None:
    head = cases.build_head(spec, shape).to(torch.bfloat16)
    data = cases.inputs(shape, 1, LENGTH)
    position = torch.arange(LENGTH)
    tokens = Tokens(position[None])
    if documents:
        first = position < SECOND
        tokens = Tokens(torch.where(first, position, position - SECOND)[None], (~first).long()[None])
    inputs = cases.Inputs(*(tensor.bfloat16().requires_grad_() for tensor in data.tensors), tokens)
    output, _ = cases.run(head, inputs, backend=FLA)
    output.float().nan_to_num().sum().backward()
    with torch.no_grad():
        _, state = cases.run(head, inputs.cut(slice(0, LENGTH - 1)), backend=FLA)
        cases.run(head, inputs.cut(slice(LENGTH - 1, LENGTH)), state, backend=FLA)


def test_compiled_forms_equal_the_tested_forms() -> None:
    from tests.laws.test_kernel_forms import runs

    assert launched()[1] == {form.description for form in runs() if form.backend == FLA}


@pytest.mark.full  # fla's kernels, which change with its version alone
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_all_kernels_compile_within_shared_memory(capability: int) -> None:
    kernels = built(launched()[0].values(), [capability])
    assert len(kernels) >= 40
    assert all(kernel.shared <= SHARED for kernel in kernels)
