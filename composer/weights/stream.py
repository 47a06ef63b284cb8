"""Writing a safetensors file tensor by tensor, so that memory stays at one block, or at one fresh parameter."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blocks.part import Fresh
from composer.devices import check_memory
from composer.errors import BuildError
from composer.weights.contents import as_tensor, blocks
from composer.weights.finite import all_finite, count_stored, not_finite
from converters.shard import BYTES, StoredTensor, header_bytes
from converters.trunk import Dtype

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TensorToWrite:
    """One tensor to be written. contents: returns an iterator over its bytes, block by block."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    contents: Callable[[], Iterator[memoryview]]


def write_shard(target: Path, pieces: Sequence[TensorToWrite], moved: Callable[[int], None]) -> str:
    """Writes the pieces, wide elements first to keep alignment; the SHA-256 of the file."""
    ordered = sorted(pieces, key=lambda piece: -BYTES[piece.dtype])
    header = header_bytes((piece.name, piece.dtype, piece.shape) for piece in ordered)
    digest = hashlib.sha256(header)
    with target.open("xb") as stream:
        stream.write(header)
        for piece in ordered:
            for block in piece.contents():
                stream.write(block)
                digest.update(block)
                moved(len(block))
    return digest.hexdigest()


def inherited_piece(name: str, tensor: StoredTensor, dtype: Dtype) -> TensorToWrite:
    """A stored tensor under its new name, turned into ``dtype`` where it is of another. Raises BuildError for values that are not
    finite, as they are stored or in ``dtype``."""

    def contents() -> Iterator[memoryview]:
        for block in blocks(tensor.file, tensor.start, tensor.end):
            if not all_finite(as_tensor(block, tensor.dtype)):
                raise BuildError(not_finite(tensor.file, {name: count_stored(tensor)}))
            yield block if tensor.dtype == dtype else _turned(name, block, tensor.dtype, dtype)

    return TensorToWrite(name, dtype, tensor.shape, contents)


def fresh_piece(name: str, fresh: Fresh, dtype: Dtype, seed: int) -> TensorToWrite:
    """A fresh parameter, filled when it is written."""

    def contents() -> Iterator[memoryview]:
        yield as_bytes(filled(name, fresh, dtype, seed))

    return TensorToWrite(name, dtype, fresh.shape, contents)


def filled(name: str, fresh: Fresh, dtype: Dtype, seed: int) -> torch.Tensor:
    """The values of a fresh parameter: they follow from seed and name alone, whatever else the model has.

    They are drawn in float32 and then turned into ``dtype``, so that models of two types start alike.
    """
    import torch

    check_memory(fresh.size * (BYTES["float32"] + (0 if dtype == "float32" else BYTES[dtype])), name)
    key = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "big") >> 1)
    tensor = torch.full(fresh.shape, float("nan"), dtype=torch.float32)
    fresh.fill(tensor, generator)
    tensor = tensor.to(getattr(torch, dtype))
    if not all_finite(tensor):
        raise BuildError(f"The initial values of {name} are not all finite in {dtype}.")
    return tensor


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor on the CPU, as they lie in a file."""
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def _turned(name: str, block: memoryview, dtype: str, into: Dtype) -> memoryview:
    import torch

    tensor = as_tensor(block, dtype)
    turned = tensor.to(getattr(torch, into))
    if not all_finite(turned):
        largest = tensor.abs().max().item()
        raise BuildError(f"{name} holds values up to {largest:.4g}, too large for {into}. Choose another --dtype.")
    return as_bytes(turned)
