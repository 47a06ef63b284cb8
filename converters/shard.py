"""Safetensors files by their headers: eight bytes of length, JSON, and then the tensors without a gap.

Only the header is read, and all of it is checked against the file's size, so that a truncated or damaged file is found before it
is used.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.bounded import MOST_NAMES, brief, list_first, open_regular, parse_json, reason
from converters.errors import WeightsError
from converters.trunk import Dtype

DTYPES: dict[str, Dtype] = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""The format's names of the floating types that are read, and the names used everywhere else."""
BYTES: dict[str, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
MASKS = frozenset({"BOOL", "U8"})
"""The format's names of the types, a byte wide, of masks that some models store: a loader makes its own, and passes over these. A
``weight`` of such a type is a quantised one."""
MOST_TENSORS = 200_000
"""The most tensors of a file: the largest models have as many in all files together."""
_MOST_DIMENSIONS, _LONGEST_NAME = 64, 1000
_GIT_LFS = b"version https://git-lfs"


@dataclass(frozen=True)
class StoredTensor:
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
    """One weight file. bytes: its size; header_sha256: of its first ``header_bytes``; tensors: in the file's order; masks: names of
    tensors between these that are no weights."""

    file: Path
    bytes: int
    header_bytes: int
    header_sha256: str
    tensors: Mapping[str, StoredTensor]
    masks: frozenset[str] = frozenset()


@dataclass(frozen=True)
class SafetensorsHeader:
    """The header of a safetensors file, before its tensors are checked.

    entries: each tensor's entry, as JSON has it. metadata: texts by name. start: of the tensors, in bytes. size: of the file.
    sha256: of the first ``start`` bytes.
    """

    entries: dict[str, Any]
    metadata: dict[str, str]
    start: int
    size: int
    sha256: str


def read_shard(file: Path) -> Shard:
    """Read and check the header of a safetensors file. Raises ``WeightsError``."""
    return _shard(file, _tensors)


def read_packed_shard(file: Path) -> Shard:
    """Read and check the header of a file with quantised weights. The library that unpacks them checks their types and shapes.
    ``masks`` has the names of all tensors. Raises ``WeightsError``."""
    return _shard(file, _check_packed)


def read_header(file: Path, max_bytes: int = MOST_NAMES) -> SafetensorsHeader:
    """Read the header of a safetensors file of at most ``max_bytes`` bytes. Raises WeightsError."""
    try:
        with open_regular(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            start = stream.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
            if start + stream.read(len(_GIT_LFS) - len(start)) == _GIT_LFS:
                raise WeightsError(f"{file} is a Git LFS pointer, not the weights: run `git lfs pull` there.")
            if max_bytes < length <= size - 8:
                raise WeightsError(f"{file} has a header of {length:,} bytes; at most {max_bytes:,} are read.")
            if not 2 <= length <= size - 8:
                raise WeightsError(
                    f"{file} ({size:,} bytes) does not begin with a safetensors header: it is truncated or not of that "
                    "format. Fetch it again."
                )
            stream.seek(8)
            text = stream.read(length)
    except FileNotFoundError as error:
        raise WeightsError(f"{file} is missing.") from error
    except OSError as error:
        raise WeightsError(f"{file} cannot be read: {reason(error)}.") from error
    entries, metadata = _parse(file, text)
    return SafetensorsHeader(entries, metadata, 8 + length, size, hashlib.sha256(start + text).hexdigest())


def _shard(file: Path, check: Callable[[Path, dict[str, Any], int, int], dict[str, StoredTensor]]) -> Shard:
    header = read_header(file)
    tensors = check(file, header.entries, header.start, header.size)
    masks = frozenset(header.entries.keys() - tensors.keys())
    return Shard(file, header.size, header.start, header.sha256, tensors, masks)


def header_bytes(tensors: Iterable[tuple[str, Dtype, tuple[int, ...]]]) -> bytes:
    """Return the bytes before the tensors in a file with these (name, dtype, shape), in this order."""
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


def _parse(file: Path, text: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    mappings = 0

    def parse_mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal mappings
        mappings += 1
        if max(mappings - 2, len(pairs) - 1) > MOST_TENSORS:  # one per tensor, beside its own, and one for the file's metadata
            raise WeightsError(f"{file} describes more than {MOST_TENSORS:,} tensors, the most that are read.")
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            [(repeated, _)] = Counter(name for name, _ in pairs).most_common(1)
            raise WeightsError(f"{file} names {brief(repeated)} twice in its header.")
        return mapping

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON")

    try:
        header = parse_json(text, parse_mapping, refuse)
    except ValueError as error:
        raise WeightsError(f"{file} has a damaged header ({error}). Fetch it again.") from error
    if not isinstance(header, dict):
        raise WeightsError(f"{file} has a damaged header: a {type(header).__name__} where a mapping belongs.")
    metadata = header.pop("__metadata__", {})
    if not (text.startswith(b"{") and isinstance(metadata, dict) and all(isinstance(word, str) for word in metadata.values())):
        raise WeightsError(f"{file} has a damaged header: its metadata are not text by name. Fetch it again.")
    return header, metadata


def _tensors(file: Path, header: dict[str, Any], start: int, size: int) -> dict[str, StoredTensor]:
    """Return the header's tensors in file order, masks left out, checked against their shapes, their neighbours and the file's
    size."""
    tensors: dict[str, StoredTensor] = {}
    places: list[tuple[int, int, int, str]] = []
    for name, entry in header.items():
        match entry:
            case {"dtype": str(stored), "shape": list(shape), "data_offsets": [first, last]} if (
                len(name) <= _LONGEST_NAME and len(shape) <= _MOST_DIMENSIONS and all(map(_is_count, (*shape, first, last)))
            ):
                pass
            case _:
                raise WeightsError(f"{file} has a damaged header at {brief(name)}: {brief(entry)}. Fetch it again.")
        if stored not in DTYPES and (stored not in MASKS or name.endswith("weight")):
            raise WeightsError(
                f"{file} holds {brief(name)} as {brief(stored)}; only {', '.join(DTYPES)} are read. "
                "Convert a quantised checkpoint to one of these first."
            )
        places.append((start + first, start + last, math.prod(shape) * (1 if stored in MASKS else BYTES[DTYPES[stored]]), name))
        if stored in DTYPES:
            tensors[name] = StoredTensor(file, DTYPES[stored], tuple(shape), start + first, start + last)

    check_places(file, places, start, size)
    return dict(sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)))


def _check_packed(file: Path, header: dict[str, Any], start: int, size: int) -> dict[str, StoredTensor]:
    """Check the places of tensors of any type. Return none of them."""
    places: list[tuple[int, int, int, str]] = []
    for name, entry in header.items():
        match entry:
            case {"data_offsets": [first, last]} if len(name) <= _LONGEST_NAME and _is_count(first) and _is_count(last):
                places.append((start + first, start + last, last - first, name))
            case _:
                raise WeightsError(f"{file} has a damaged header at {brief(name)}: {brief(entry)}. Fetch it again.")
    check_places(file, places, start, size)
    return {}


def check_scales(folder: Path, files: Iterable[Path]) -> None:
    """Raise WeightsError for weights in 8 bits without a scale. transformers before 5.14 loads their digits as weights."""
    types = {name: entry.get("dtype") for file in files for name, entry in read_header(file).entries.items()}
    scaled = {name.partition("_scale")[0] for name in types if "_scale" in name}
    # The scales of some formats have 8 bits, too.
    lacking = sorted(
        name for name, kind in types.items() if str(kind).startswith("F8_") and name not in scaled and "_scale" not in name
    )
    if lacking:
        raise WeightsError(f"{folder} lacks the scales of {list_first(lacking)}. Fetch it again.")


def check_places(file: Path, places: Iterable[tuple[int, int, int, str]], start: int, size: int) -> None:
    """Check that tensors follow one another, without a gap, up to the end of the file. places: the start, the end, the number of
    bytes that the shape needs, and the name of each."""
    expected = start
    for begin, end, count, name in sorted(places):
        if begin != expected or end - begin != count or count < 0:
            raise WeightsError(
                f"{file} has a damaged header: {brief(name)} is at another place than its shape requires. Download the file again."
            )
        expected = end
    if expected != size:
        damage = "truncated" if size < expected else "longer than its header states"
        raise WeightsError(f"{file} is {damage}: {size:,} bytes where its header describes {expected:,}. Fetch it again.")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
