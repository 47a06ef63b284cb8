"""Triton's interpreter is there, with a device, a loop over tensors, and CUDA's mathematics."""

from __future__ import annotations

import torch
from triton.language.extra import libdevice

from tests.interpreter import LIBRARY
from tests.kernels import squared


def test_a_kernel_with_a_loop_and_several_configurations_runs() -> None:
    x, y = torch.randn(16, 16), torch.empty(16, 16)
    squared[(1,)](x, y, SIDE=16)
    torch.testing.assert_close(y, x @ x, rtol=1e-5, atol=1e-5)


def test_functions_of_cuda_are_numpys() -> None:
    assert all(getattr(libdevice, name).__module__ == "tests.interpreter" for name in LIBRARY)
