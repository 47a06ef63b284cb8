"""Every test runs offline, on one thread, from one seed, and with the shapes that `blocks` states checked at each call."""

from __future__ import annotations

import gc
import os

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton; see tests/interpreter.py

import pytest
import torch  # before blocks: only then are their tensors checked

from tests.shapes import check_shapes

LONGEST = {"test_cluster.py", "test_compile.py", "test_contributing.py", "test_processes.py"}
gc.disable()  # until all is imported and collected, which is there to stay
check_shapes("blocks")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def one_seed() -> None:
    """The same random tensors whatever ran before."""
    torch.manual_seed(0)


def pytest_collection_finish() -> None:
    """What is there before the first test is not looked through for garbage again and again."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked gpu run where there is one; the longest ones come first, so that no worker ends with one alone."""
    items.sort(key=lambda item: item.path.name not in LONGEST)
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device here"))
