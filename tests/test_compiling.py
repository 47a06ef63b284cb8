"""A kernel is compiled for other GPUs, its resources are reported, and a kernel that cannot compile gives an error."""

from __future__ import annotations

import pytest

from tests.compiling import CAPABILITIES, Build, built

POINTERS = {"x": "*fp32", "y": "*fp32"}


def test_kernel_resources_are_reported_and_float32_is_not_rounded_to_tf32(capsys: pytest.CaptureFixture[str]) -> None:
    kernels = built([Build("tests.kernels:squared", POINTERS, {"SIDE": 32}, {"num_warps": 4})])
    assert tuple(kernel.capability for kernel in kernels) == CAPABILITIES
    for kernel in kernels:
        assert 0 < kernel.registers <= 255
        assert kernel.shared >= 32 * 32 * 4
        assert not kernel.tf32
    assert capsys.readouterr().out.count("tests.kernels:squared") == len(CAPABILITIES)


def test_kernels_that_do_not_compile_raise() -> None:
    with pytest.raises(AssertionError, match="power of 2"):
        built([Build("tests.kernels:squared", POINTERS, {"SIDE": 31})], [90])
