"""The contents of weight files, read block by block."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from converters.bounded import opened
from converters.shard import StoredTensor

if TYPE_CHECKING:
    import torch

BLOCK = 16 * 2**20
"""Bytes that are held at a time; a multiple of every element's size."""


def blocks(file: Path, start: int = 0, end: int | None = None) -> Iterator[memoryview]:
    """The bytes of a file from ``start`` to ``end``. One buffer serves all blocks: use each before the next."""
    left = (file.stat().st_size if end is None else end) - start
    buffer = bytearray(max(0, min(BLOCK, left)))
    with opened(file) as stream:
        stream.seek(start)
        while left > 0:
            count = stream.readinto(memoryview(buffer)[:left])
            if not count:
                raise OSError(f"{file} ends {left:,} bytes early")
            left -= count
            yield memoryview(buffer)[:count]


def as_tensor(block: memoryview, dtype: str) -> torch.Tensor:
    """A block of a file as a flat tensor that shares its memory."""
    import torch

    return torch.frombuffer(block, dtype=getattr(torch, dtype))


def same_contents(one: StoredTensor, other: StoredTensor) -> bool:
    """Whether two stored tensors hold the same bytes."""
    if one.bytes != other.bytes or one.dtype != other.dtype:
        return False
    pairs = zip(blocks(one.file, one.start, one.end), blocks(other.file, other.start, other.end), strict=True)
    return all(left == right for left, right in pairs)
