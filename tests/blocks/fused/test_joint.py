"""The kernels of whole heads compile for Hopper without register spills."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from blocks.fused import joint, lola, window_and_state, window_and_state_backward, window_and_state_step
from tests.blocks.fused.builds import build
from tests.compiling import CAPABILITIES, built

pytestmark = pytest.mark.long

SPILLED = 96
"""Bytes a thread."""
SPILLED_OF_SEVERAL = 320
"""The same of LoLA's walk with documents, decay and scores together: what it knows of these are numbers beside its tiles."""
SHARED = 99 * 1024
"""Bytes of a block: two of them on an H100, and one on the smallest of Ampere."""


HEADS = {"H": 32, "K": 8, "N": 32, "D": 64, "F": 128, "ROW_MAX": False, "PRECISION": "tf32", "EXACT": "tf32x3"}

WALK: dict[str, Any] = {"M": 32, "S": 64, "BLOCK": 64, "SOME": lola.SOME, "EB": 128, "DB": 64, "FB": 32, "KEEP": "self_recall"}
WALK |= HEADS | {"ERROR": "", "EXPONENTIAL": False, "BY_FEATURE": False, "length": None, "resolution": None}
WALKS: list[dict[str, Any]] = [
    {"decay": None, "start": None},
    {"BY_FEATURE": True, "EXPONENTIAL": True, "KEEP": "squared_error", "ERROR": "squared_error"},
    {"BY_FEATURE": True, "KEEP": "squared_error", "ERROR": "squared_error"},
]
"""As LoLA has it; with documents, decay by the feature and errors of the window, of exponential features and of others."""


def of_both(sizes: Any) -> dict[str, Any]:
    """Return the kernels of a window and of the state below it."""
    return {
        "sum_up": (window_and_state, sizes.tiles(of_keys=True)),
        "compute_output": (window_and_state, sizes.blocks()),
        "of_states": (window_and_state_backward, sizes.tiles(of_keys=False)),
        "of_queries": (window_and_state_backward, sizes.blocks()),
        "of_pairs": (window_and_state_backward, sizes.blocks() | {"ROWS": joint.ROWS}),
    }


def test_the_kernels_compile_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """The kernels compile for LoLCATs on Llama 3.2 1B: heads of 64, 128 features, with a decay per feature and per head."""
    sizes = joint._Sizes(1, (32, 8, 32), (64, 128), (64,) * 5, 1, 64, False, torch.bfloat16)
    optional = dict.fromkeys(("decay", "clocks", "decay_now", "clocks_now", "evicted", "start"))
    fine = joint._Sizes(1, (32, 8, 32), (64, 128), (64,) * 5, 1, joint.BY_FEATURE, False, torch.bfloat16)
    step = (window_and_state_step, HEADS | {"G": 1, "E": 1, "BLOCK": 32, "EB": 1, "DB": 64, "FB": 64})
    kernels = [(kernel, optional) for kernel in (*of_both(sizes).items(), ("step", step))]
    kernels += [(kernel, optional.keys() - {"clocks", "clocks_now"}) for kernel in of_both(fine).items()]
    kernels += [(kernel, {"clocks", "clocks_now", "start"}) for kernel in of_both(sizes).items()]
    builds = [
        build(module.__name__, name, getattr(module, name), torch.bfloat16, constants | dict.fromkeys(absent), 8)
        for (name, (module, constants)), absent in kernels
    ]
    builds += [build(lola.__name__, "walk", lola.walk, torch.bfloat16, WALK | others, 8) for others in WALKS]
    compiled = built(builds)
    assert len(compiled) == len(CAPABILITIES) * len(builds)
    alone = len(compiled) - len(CAPABILITIES) * (len(WALKS) - 1)
    for place, kernel in enumerate(compiled):
        assert kernel.stack <= (SPILLED if place < alone else SPILLED_OF_SEVERAL), kernel
        assert kernel.shared <= SHARED, kernel
    assert capsys.readouterr().out.count("registers=") == len(compiled)
