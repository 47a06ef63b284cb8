"""Reads and writes weight files block by block, so that memory holds one block or one parameter, and finds NaN and infinity."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blocks.part import Fresh
from composer.errors import BuildError, SourceError
from composer.system.devices import check_memory
from converters.bounded import list_first, open_regular, reason, shorten
from converters.shard import BYTES, Shard, StoredTensor, header_bytes
from converters.trunk import Dtype

if TYPE_CHECKING:
    import torch

    from converters.source import Source

BLOCK = 16 * 2**20
"""Bytes that are held at a time; a multiple of every element's size."""
REPAIR = "A run that diverged, or a damaged file, leaves such values: fetch the weights again, or use an earlier checkpoint"


def blocks(file: Path, start: int = 0, end: int | None = None) -> Iterator[memoryview]:
    """Yield the bytes of a file from ``start`` to ``end``. One buffer serves all blocks: use each before the next."""
    remaining = (file.stat().st_size if end is None else end) - start
    buffer = bytearray(max(0, min(BLOCK, remaining)))
    with open_regular(file) as stream:
        stream.seek(start)
        while remaining > 0:
            count = stream.readinto(memoryview(buffer)[:remaining])
            if not count:
                raise OSError(f"{file} ends {remaining:,} bytes early")
            remaining -= count
            yield memoryview(buffer)[:count]


def as_tensor(block: memoryview, dtype: str) -> torch.Tensor:
    """Return a block of a file as a flat tensor that shares its memory."""
    import torch

    return torch.frombuffer(block, dtype=getattr(torch, dtype))


def same_contents(first: StoredTensor, second: StoredTensor) -> bool:
    """True if two stored tensors hold the same bytes."""
    if first.bytes != second.bytes or first.dtype != second.dtype:
        return False
    pairs = zip(blocks(first.file, first.start, first.end), blocks(second.file, second.start, second.end), strict=True)
    return all(left == right for left, right in pairs)


def all_finite(tensor: torch.Tensor) -> bool:
    """True if no value is NaN or infinite. Both show in the least and the largest value, which are fast to compute."""
    return not tensor.numel() or all(math.isfinite(value) for value in tensor.aminmax())


def count_not_finite(tensor: torch.Tensor) -> int:
    """Return the number of values that are NaN or infinite."""
    if not tensor.is_floating_point() or all_finite(tensor):
        return 0
    return int((~tensor.isfinite()).sum())


def count_stored(tensor: StoredTensor, seen: Callable[[memoryview], object] = lambda _: None) -> int:
    """Return the number of values of a stored tensor that are NaN or infinite. seen: called with each block that is read."""
    count = 0
    for block in blocks(tensor.file, tensor.start, tensor.end):
        seen(block)
        count += count_not_finite(as_tensor(block, tensor.dtype))
    return count


def digest_and_counts(shard: Shard, moved: Callable[[int], object] = lambda _: None) -> tuple[str, dict[str, int]]:
    """Read a weight file once. Return its SHA-256, and the number of values that are not finite of each tensor that has any.

    moved: called with the position after each tensor. Raises OSError.
    """
    digest, done, counts = hashlib.sha256(), 0, dict[str, int]()
    for name, tensor in shard.tensors.items():
        for block in blocks(shard.file, done, tensor.start):  # the header, and masks
            digest.update(block)
        if count := count_stored(tensor, digest.update):
            counts[name] = count
        done = tensor.end
        moved(done)
    for block in blocks(shard.file, done):
        digest.update(block)
    return digest.hexdigest(), counts


def not_finite(file: Path | str, counts: Mapping[str, int]) -> str:
    """Return the message for a file with tensors that hold NaN or infinity. counts: how many values of each tensor."""
    named = list_first(f"{shorten(name)} ({count:,})" for name, count in counts.items())
    return (
        f"{file} holds NaN or infinity where weights must be finite, in these tensors (numbers of such values): {named}. {REPAIR}."
    )


def refuse_not_finite(file: Path | str, counts: Mapping[str, int], unused: Collection[str] = ()) -> None:
    """Raise BuildError if any tensor has values that are not finite. unused: tensors that no model is made of."""
    if used := {name: count for name, count in counts.items() if name not in unused}:
        raise BuildError(not_finite(file, used))


def check_loaded(model: torch.nn.Module, source: Source) -> None:
    """Raise SourceError if a model that has just been loaded from a folder holds NaN or infinity.

    The message names the stored tensors, or, where these are finite in the files, the parameters that are too large for the type
    that they were loaded in.
    """
    counts = {name: count for name, tensor in model.named_parameters() if (count := count_not_finite(tensor.detach()))}
    if not counts:
        return
    for shard in source.shards.values():
        try:
            stored = {name: count for name, tensor in shard.tensors.items() if (count := count_stored(tensor))}
        except OSError as error:
            raise SourceError(f"{shard.file} cannot be read: {reason(error)}.") from error
        if stored:
            raise SourceError(not_finite(shard.file, stored))
    if adapters := {name: count for name, count in counts.items() if ".lora_" in name}:
        raise SourceError(not_finite(f"The adapters in {source.folder}", adapters))
    dtype = str(next(iter(model.parameters())).dtype).removeprefix("torch.")
    raise SourceError(
        f"The weights of {source.folder} are too large for {dtype}: some values of {list_first(counts)} become infinite. Choose "
        "another dtype, such as bfloat16 or float32."
    )


@dataclass(frozen=True)
class TensorToWrite:
    """One tensor to be written. contents: returns an iterator over its bytes, block by block."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    contents: Callable[[], Iterator[memoryview]]


def write_shard(target: Path, pieces: Sequence[TensorToWrite], moved: Callable[[int], object] = lambda count: None) -> str:
    """Write the pieces, wide elements first to keep alignment. Return the SHA-256 of the file. moved: called with bytes written."""
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


def inherit_piece(name: str, tensor: StoredTensor, dtype: Dtype) -> TensorToWrite:
    """Return a stored tensor under its new name, converted to ``dtype``. Raises BuildError for values that are not finite, as
    they are stored or in ``dtype``."""

    def contents() -> Iterator[memoryview]:
        for block in blocks(tensor.file, tensor.start, tensor.end):
            if not all_finite(as_tensor(block, tensor.dtype)):
                raise BuildError(not_finite(tensor.file, {name: count_stored(tensor)}))
            yield block if tensor.dtype == dtype else _convert(name, block, tensor.dtype, dtype)

    return TensorToWrite(name, dtype, tensor.shape, contents)


def fresh_piece(name: str, fresh: Fresh, dtype: Dtype, seed: int) -> TensorToWrite:
    """Return a fresh parameter, filled when it is written."""

    def contents() -> Iterator[memoryview]:
        yield as_bytes(initial_values(name, fresh, dtype, seed))

    return TensorToWrite(name, dtype, fresh.shape, contents)


def initial_values(name: str, fresh: Fresh, dtype: Dtype, seed: int) -> torch.Tensor:
    """Return the initial values of a fresh parameter: they depend on seed and name only. They are drawn in float32 and then
    converted to ``dtype``, so that models of two dtypes start alike.
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
    """Return the bytes of a tensor on the CPU, as they lie in a file."""
    import torch

    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def _convert(name: str, block: memoryview, dtype: str, into: Dtype) -> memoryview:
    import torch

    tensor = as_tensor(block, dtype)
    converted = tensor.to(getattr(torch, into))
    if not all_finite(converted):
        largest = tensor.abs().max().item()
        raise BuildError(f"{name} holds values up to {largest:.4g}, too large for {into}. Choose another --dtype.")
    return as_bytes(converted)
