"""Safetensors files by their headers: eight bytes of length, JSON, and then the tensors without a gap.

Only the header is read, and all of it is held against the file's size, so that a truncated or damaged file is found before
anything is made of it.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.errors import WeightsError
from converters.trunk import Dtype

DTYPES: dict[str, Dtype] = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""The format's names of the floating types that are read, and the names used everywhere else."""
BYTES: dict[Dtype, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_LONGEST_HEADER = 100_000_000
_GIT_LFS = b"version https://git-lfs"


@dataclass(frozen=True)
class Tensor:
    """One tensor as it lies in a file. start, end: bytes from the beginning of the file, end exclusive."""

    file: Path
    dtype: Dtype
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def bytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Shard:
    """One weight file. bytes: its size; header_sha256: of its first ``header_bytes``; tensors: in the file's order."""

    file: Path
    bytes: int
    header_bytes: int
    header_sha256: str
    tensors: Mapping[str, Tensor]


def read_shard(file: Path) -> Shard:
    """The header of a safetensors file, checked; a ``WeightsError`` says what is wrong with it."""
    try:
        with file.open("rb") as stream:
            size = file.stat().st_size
            start = stream.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
            if start + stream.read(len(_GIT_LFS) - len(start)) == _GIT_LFS:
                raise WeightsError(f"{file} is a Git LFS pointer, not the weights: run `git lfs pull` there.")
            if not 2 <= length <= min(_LONGEST_HEADER, size - 8):
                raise WeightsError(
                    f"{file} ({size:,} bytes) does not begin with a safetensors header: it is truncated or not of that "
                    "format. Fetch it again."
                )
            stream.seek(8)
            text = stream.read(length)
    except FileNotFoundError as error:
        raise WeightsError(f"{file} is missing.") from error
    except OSError as error:
        raise WeightsError(f"{file} cannot be read: {error.strerror}.") from error
    tensors = _tensors(file, _parsed(file, text), 8 + length, size)
    return Shard(file, size, 8 + length, hashlib.sha256(start + text).hexdigest(), tensors)


def header_bytes(tensors: Iterable[tuple[str, Dtype, tuple[int, ...]]]) -> bytes:
    """What stands before the tensors in a file that holds these (name, dtype, shape), in this order."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, dtype, shape in tensors:
        end = offset + math.prod(shape) * BYTES[dtype]
        header[name] = {"dtype": names[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _parsed(file: Path, text: bytes) -> dict[str, Any]:
    def unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if len(set(names)) != len(names):
            repeated = next(name for name in names if names.count(name) > 1)
            raise WeightsError(f"{file} names {repeated!r} twice in its header.")
        return dict(pairs)

    try:
        header = json.loads(text, object_pairs_hook=unrepeated)
    except ValueError as error:
        raise WeightsError(f"{file} has a damaged header ({error}). Fetch it again.") from error
    if not isinstance(header, dict):
        raise WeightsError(f"{file} has a damaged header: a {type(header).__name__} where a mapping belongs.")
    header.pop("__metadata__", None)
    return header


def _tensors(file: Path, header: dict[str, Any], start: int, size: int) -> dict[str, Tensor]:
    """The header's tensors in file order, held against their shapes, their neighbours and the file's size."""
    tensors: dict[str, Tensor] = {}
    for name, entry in header.items():
        try:
            stored, shape = entry["dtype"], tuple(int(n) for n in entry["shape"])
            first, last = (start + int(offset) for offset in entry["data_offsets"])
        except (KeyError, TypeError, ValueError) as error:
            raise WeightsError(f"{file} has a damaged header at {name!r}: {entry!r}. Fetch it again.") from error
        if stored not in DTYPES:
            raise WeightsError(
                f"{file} holds {name!r} as {stored}; only {', '.join(DTYPES)} are read. "
                "A quantised checkpoint has to be turned into one of these first."
            )
        tensors[name] = Tensor(file, DTYPES[stored], shape, first, last)

    tensors = dict(sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)))
    expected = start
    for name, tensor in tensors.items():
        if tensor.start != expected or tensor.bytes != math.prod(tensor.shape) * BYTES[tensor.dtype]:
            raise WeightsError(f"{file} has a damaged header: {name!r} does not lie where its shape says. Fetch it again.")
        expected = tensor.end
    if expected != size:
        what = "truncated" if size < expected else "longer than its header says"
        raise WeightsError(f"{file} is {what}: {size:,} bytes where its header describes {expected:,}. Fetch it again.")
    return tensors
