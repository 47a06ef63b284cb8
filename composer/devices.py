"""Where a model can run, and how to tell that it has no room there."""

from __future__ import annotations

import re

from composer.errors import ComposerError

ALLOCATION = "allocate memory|out of memory|size calculation overflowed|multiplication overflow"
"""What PyTorch says where memory ends: on a CPU that is no error of a kind of its own."""


def check_device(device: str) -> None:
    """Whether there is such a device here. Raises ComposerError."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = ["cpu", *(["cuda"] if count else []), *(f"cuda:{index}" for index in range(count))]
    if device not in known:
        raise ComposerError(f'there is no device "{device}" here; there is {", ".join(known)}')


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error is of memory that has come to its end."""
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return type(error) is RuntimeError and re.search(ALLOCATION, str(error)) is not None
