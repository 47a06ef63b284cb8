"""GGUF files by their headers: metadata, and a table of tensors.

Only the header is read, within bounds, and all of it is checked against the size of the file. transformers and the package ``gguf``
trust every count and length in a header, so call ``read_gguf`` before they open a file.
"""

from __future__ import annotations

import math
import os
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from converters.bounded import brief, open_regular, reason
from converters.errors import WeightsError
from converters.shard import MOST_TENSORS

GGUF = ".gguf"
"""The suffix of files in the format GGUF."""
MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_HEADER = 64 * 2**20
"""Bytes of a header: those of the largest vocabularies have a fifth as many."""
MOST_KEYS = 10_000
"""The most entries of metadata: a language model has about 40."""
MOST_ELEMENTS = 3_000_000
"""The most elements of all lists together: the largest vocabularies, with scores, types and merges, have about half as many."""
MOST_VALUES = 2**16
"""The most elements of a list that is not one of the vocabulary's. The package ``gguf`` makes an object of each element, which
needs minutes and gigabytes for millions of them."""
MOST_MERGES = 8
"""The most merges for each token of a vocabulary: those of published ones have about two."""
LONGEST_TOKEN = 1024
"""Bytes of a string in a list. transformers tries every split of a token without merges, in quadratic time."""
LONGEST_NAME = 1000
MOST_DIMENSIONS = 4
VOCABULARY, MERGES, EMBEDDING = "tokenizer.ggml.", "tokenizer.ggml.merges", "token_embd.weight"
INSTALL = "pip install '.[gguf]' in Composer's checkout"
_GIT_LFS = b"version https://git-lfs"
_STRING, _LIST = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
"""Formats of ``struct`` by the numbers of the types of metadata."""
_ALIGNMENT = 32
"""Bytes that tensors are aligned to where the metadata set nothing else."""

MetadataValue = str | int | float | bool


@dataclass(frozen=True)
class GgufTensor:
    """A tensor in the table. shape: in PyTorch's order. type: such as ``Q4_0``. start, end: bytes of the file, end exclusive."""

    name: str
    shape: tuple[int, ...]
    type: str
    start: int
    end: int


@dataclass(frozen=True)
class GgufHeader:
    """A checked header. metadata: values that are no lists. lists: the number of elements of each list."""

    file: Path
    metadata: Mapping[str, MetadataValue]
    lists: Mapping[str, int]
    tensors: tuple[GgufTensor, ...]

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"])

    @property
    def has_tokenizer(self) -> bool:
        return "tokenizer.ggml.model" in self.metadata and "tokenizer.ggml.tokens" in self.lists

    @property
    def quantisation(self) -> str:
        """The types of the tensors, that of most weights first: ``GGUF Q4_1, Q6_K, F32``."""
        counts = Counter[str]()
        for tensor in self.tensors:
            counts[tensor.type] += math.prod(tensor.shape)
        return f"GGUF {', '.join(kind for kind, _ in counts.most_common())}"


def is_gguf(name: str) -> bool:
    """Whether a file has the suffix of the format."""
    return name.lower().endswith(GGUF)


def read_gguf(file: Path) -> GgufHeader:
    """Read and check the header of a GGUF file. Raises WeightsError, also if the package ``gguf`` is not installed."""
    try:
        with open_regular(file) as stream:
            return _read(file, stream)
    except FileNotFoundError as error:
        raise WeightsError(f"{file} is missing.") from error
    except OSError as error:
        raise WeightsError(f"{file} cannot be read: {reason(error)}.") from error


def _read(file: Path, stream: BufferedReader) -> GgufHeader:
    size = os.fstat(stream.fileno()).st_size
    start = stream.read(24)
    if start.startswith(_GIT_LFS):
        raise WeightsError(f"{file} is a Git LFS pointer, not the weights: run `git lfs pull` there.")
    if not start.startswith(MAGIC):
        raise WeightsError(f"{file} is no GGUF file: it begins with {brief(start[:4])}; expected {MAGIC!r}.")
    if len(start) < 24:
        raise WeightsError(f"{file} ends within its header, at {len(start):,} bytes. Fetch it again.")
    version, tensor_count, key_count = struct.unpack("<4xIQQ", start)
    if version not in VERSIONS:
        order = ", of a machine with another byte order" if version & 0xFFFF == 0 else ""
        raise WeightsError(f"{file} is a GGUF file of version {version}{order}; versions 2 and 3, little-endian, are read.")
    for count, limit, subject in ((tensor_count, MOST_TENSORS, "tensors"), (key_count, MOST_KEYS, "entries of metadata")):
        if count > limit:
            raise WeightsError(
                f"{file} claims {count:,} {subject}; at most {limit:,} are read. The file is damaged: fetch it again."
            )
    if not tensor_count:
        raise WeightsError(f"{file} has no tensors: expected a model, not a vocabulary alone.")
    reader = _Reader(file, stream, min(size, MOST_HEADER), size)
    metadata, lists = _metadata(reader, key_count)
    _check_kind(file, metadata)
    tensors = _tensors(reader, tensor_count, _alignment(file, metadata))
    _check_lists(reader, lists, tensors)
    return GgufHeader(file, metadata, lists, tensors)


@dataclass
class _Reader:
    """Reads a header up to a limit. end: the limit, which is the size of the file where that is smaller."""

    file: Path
    stream: BufferedReader
    end: int
    size: int
    elements: int = 0

    def take(self, count: int) -> bytes:
        """Read so many bytes. Raises WeightsError if the header would be longer than the limit, or the file ends before."""
        if count > self.end - self.stream.tell():
            if self.end < self.size:
                raise WeightsError(f"{self.file} has a header of more than {MOST_HEADER:,} bytes, the most that are read.")
            raise WeightsError(f"{self.file} ends within its header, at {self.size:,} bytes. Fetch it again.")
        return self.stream.read(count)

    def number(self, form: str) -> MetadataValue:
        (value,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return value

    def count(self) -> int:
        return int(self.number("<Q"))

    def text(self, longest: int = MOST_HEADER) -> str:
        length = self.count()
        if length > longest:
            raise self.damage_error(f"a string of {length:,} bytes; at most {longest:,} are read")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.damage_error(f"a string that is not UTF-8, at byte {error.start} of it") from error

    def damage_error(self, problem: str) -> WeightsError:
        return WeightsError(f"{self.file} has a damaged header: {problem}. Fetch it again.")


def _metadata(reader: _Reader, count: int) -> tuple[dict[str, MetadataValue], dict[str, int]]:
    metadata: dict[str, MetadataValue] = {}
    lists: dict[str, int] = {}
    for _ in range(count):
        key = reader.text(LONGEST_NAME)
        if key in metadata or key in lists:
            raise reader.damage_error(f"{brief(key)} is there twice")
        kind = int(reader.number("<I"))
        if kind == _LIST:
            lists[key] = _skip_list(reader, key)
        elif kind == _STRING:
            metadata[key] = reader.text()
        elif kind in _SCALARS:
            metadata[key] = reader.number(_SCALARS[kind])
        else:
            raise reader.damage_error(f"{brief(key)} has the unknown type {kind}")
    return metadata, lists


def _skip_list(reader: _Reader, key: str) -> int:
    """Read past a list. Return the number of its elements."""
    kind, count = int(reader.number("<I")), reader.count()
    reader.elements += count
    if reader.elements > MOST_ELEMENTS:
        raise reader.damage_error(f"its lists have more than {MOST_ELEMENTS:,} elements, {brief(key)} the last of them")
    if kind in _SCALARS:
        reader.take(count * struct.calcsize(_SCALARS[kind]))
    elif kind == _STRING:
        for _ in range(count):
            length = reader.count()
            if length > LONGEST_TOKEN:
                raise reader.damage_error(f"{brief(key)} has a string of {length:,} bytes; at most {LONGEST_TOKEN:,} are read")
            reader.take(length)
    else:
        raise reader.damage_error(f"{brief(key)} is a list of elements of type {kind}; expected numbers or strings")
    return count


def _check_lists(reader: _Reader, lists: Mapping[str, int], tensors: Iterable[GgufTensor]) -> None:
    """Raise WeightsError if a list is longer than the model can need: a vocabulary has no more tokens than embeddings."""
    embeddings = next((tensor.shape[0] for tensor in tensors if tensor.name == EMBEDDING), 0)
    for key, count in lists.items():
        limit = MOST_VALUES
        if key.startswith(VOCABULARY):
            limit = max(limit, embeddings * (MOST_MERGES if key == MERGES else 1))
        if count > limit:
            raise reader.damage_error(
                f"{brief(key)} has {count:,} elements; at most {limit:,} are read for {embeddings:,} embeddings"
            )


def _check_kind(file: Path, metadata: Mapping[str, MetadataValue]) -> None:
    """Raise WeightsError unless the file is a whole model."""
    if not isinstance(metadata.get("general.architecture"), str):
        raise WeightsError(f"{file} has no general.architecture in its metadata, so the family of its weights is unknown.")
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise WeightsError(f"{file} holds no model: its general.type is {brief(kind)}. Name the file of the language model.")
    parts = metadata.get("split.count", 0)
    if isinstance(parts, int) and parts > 1:
        raise WeightsError(
            f"{file} is one of {parts:,} parts of a model, and transformers reads whole files alone. Join them first: "
            "llama-gguf-split --merge FIRST_PART WHOLE.gguf"
        )


def _alignment(file: Path, metadata: Mapping[str, MetadataValue]) -> int:
    value = metadata.get("general.alignment", _ALIGNMENT)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= 2**20 or value & (value - 1):
        raise WeightsError(f"{file} has general.alignment: {brief(value)}; expected a power of 2. Fetch it again.")
    return value


def _tensors(reader: _Reader, count: int, alignment: int) -> tuple[GgufTensor, ...]:
    """Return the table of tensors, checked against the types, the neighbours of each tensor, and the size of the file."""
    sizes = _block_sizes(reader.file)
    table: dict[str, tuple[tuple[int, ...], str, int, int]] = {}
    for _ in range(count):
        name = reader.text(LONGEST_NAME)
        dimensions = int(reader.number("<I"))
        if name in table or not 0 < dimensions <= MOST_DIMENSIONS:
            problem = "is there twice" if name in table else f"has {dimensions:,} dimensions; expected 1 to {MOST_DIMENSIONS}"
            raise reader.damage_error(f"the tensor {brief(name)} {problem}")
        shape = tuple(reversed([reader.count() for _ in range(dimensions)]))
        kind, offset = int(reader.number("<I")), reader.count()
        if kind not in sizes:
            raise WeightsError(
                f"{reader.file} holds {brief(name)} in the type {kind}, which the installed package gguf does not have. "
                "A newer one may: pip install --upgrade gguf"
            )
        label, values, stored = sizes[kind]
        if math.prod(shape) == 0 or shape[-1] % values or offset % alignment:
            raise reader.damage_error(f"the tensor {brief(name)} of type {label} has the shape {brief(list(shape))} at {offset:,}")
        table[name] = shape, label, offset, math.prod(shape) // values * stored
    start = -(-reader.stream.tell() // alignment) * alignment
    tensors = [
        GgufTensor(name, shape, label, start + offset, start + offset + length)
        for name, (shape, label, offset, length) in table.items()
    ]
    end = start
    for tensor in sorted(tensors, key=lambda located: located.start):
        if tensor.start < end:
            raise reader.damage_error(f"the tensor {brief(tensor.name)} lies over another one")
        end = tensor.end
    if end > reader.size:
        raise WeightsError(f"{reader.file} is truncated: {reader.size:,} bytes where its header describes {end:,}. Fetch it again.")
    return tuple(tensors)


def _block_sizes(file: Path) -> dict[int, tuple[str, int, int]]:
    """Name, values of a block and bytes of a block of each type of tensors, by the type's number."""
    try:
        from gguf.constants import GGML_QUANT_SIZES
    except ImportError as error:
        raise WeightsError(f"Reading {file} needs the package gguf: {INSTALL}") from error
    return {int(kind): (kind.name, values, stored) for kind, (values, stored) in GGML_QUANT_SIZES.items()}
