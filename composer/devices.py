"""Where a model can run."""

from __future__ import annotations

from composer.errors import ComposerError


def check_device(device: str) -> None:
    """Whether there is such a device here. Raises ComposerError."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = ["cpu", *(["cuda"] if count else []), *(f"cuda:{index}" for index in range(count))]
    if device not in known:
        raise ComposerError(f'there is no device "{device}" here; there is {", ".join(known)}')
