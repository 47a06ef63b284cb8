"""Triton's interpreter has a device, loops over tensors, and CUDA's mathematics."""

from __future__ import annotations

import pytest
import torch
from triton.language.extra import libdevice
from triton.language.semantic import TritonSemantic

from blocks.recurrences.additive.fla_forms import chunked
from composer.laws import operands
from tests.blocks.recurrences.additive.problems import draw
from tests.composer.programs import printed
from tests.interpreter import LIBRARY
from tests.kernels import squared

pytestmark = pytest.mark.long


def test_a_kernel_with_a_loop_and_several_configurations_runs() -> None:
    x, y = torch.randn(16, 16), torch.empty(16, 16)
    squared[(1,)](x, y, SIDE=16)
    torch.testing.assert_close(y, x @ x, rtol=1e-5, atol=1e-5)


def test_cuda_functions_are_replaced_by_numpy_functions() -> None:
    assert all(getattr(libdevice, name).__module__ == "composer.laws.interpreter" for name in LIBRARY)


@pytest.mark.full  # it imports all of fla in another process
def test_modules_imported_before_the_interpreter_use_its_language() -> None:
    """fla's kernels call ``gather``, a name of the module that took it from the language when it was imported."""
    code = """
    import os
    os.environ["TRITON_INTERPRET"] = "1"
    import fla.ops.utils.op as early, triton.language as language
    taken = early.gather
    import composer.laws.interpreter
    print(early.gather is language.gather, early.gather is taken)
    """
    assert printed(code) == "True False"


def test_the_fast_interpreter_equals_tritons_interpreter_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel with pointers, masks, numbers and sums of all shapes, and its gradient, equal Triton's unpatched interpreter."""
    problem, answers = draw("channel", (2, 1, 1), 19, batch=1), []
    for as_it_was in (False, True):
        if as_it_was:
            for name, function in operands.AS_IT_WAS.items():
                monkeypatch.setattr(TritonSemantic, name, function)
        drawn = (problem.query, problem.key, problem.value, problem.log_decay, problem.state)
        *inputs, state = (tensor.float().requires_grad_() for tensor in drawn if tensor is not None)
        output, left = chunked(*inputs, None, state)
        answers.append([output, left, *torch.autograd.grad(output.sum() + left.sum(), [*inputs, state])])
    assert all(torch.equal(first, other) for first, other in zip(*answers, strict=True))
