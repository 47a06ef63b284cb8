"""Every kernel of this project's own is built for Ampere and Hopper, and its numbers stay in the registers."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
import triton

from blocks import fused
from tests.blocks.fused.builds import of_convolved_shares, of_heads, of_shares
from tests.compiling import CAPABILITIES, built

SPILLED = 96
"""Bytes a thread, of whole heads; maps spill nothing."""
SHARED = 99 * 1024
"""Bytes of a block: two of them on an H100, and one on the smallest of Ampere."""


def launched() -> set[str]:
    """All that are launched, as ``MODULE:NAME``: what has configurations to choose from."""
    modules = [importlib.import_module(f"{fused.__name__}.{one.name}") for one in pkgutil.iter_modules(fused.__path__)]
    kinds = triton.runtime.Autotuner
    return {
        f"{module.__name__}:{name}"
        for module in modules
        for name, kernel in vars(module).items()
        if isinstance(kernel, kinds) and kernel.fn.fn.__module__ == module.__name__
    }


def test_they_are_built_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    heads, maps = of_heads(), of_shares() + of_convolved_shares()
    assert {one.kernel for one in heads + maps} == launched()
    found = built(heads + maps)
    assert len(found) == len(CAPABILITIES) * len(heads + maps)
    of_a_head = {one.kernel for one in heads}
    for one in found:
        assert one.stack <= (SPILLED if one.kernel in of_a_head else 0), one
        assert one.shared <= SHARED, one
    assert capsys.readouterr().out.count("registers=") == len(found)
