"""Documents in rows of one length, and the rows of each step.

Positions mark the boundaries of documents: 0 begins a document, or, of joined rows, the row. The rows of a step depend on the seed
and the step only, so that a continued run uses the same ones.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from blocks.part import Closed
from composer.errors import DataError

if TYPE_CHECKING:
    import torch


class ReferenceReport(Closed):
    """One reference. ``records`` were read; ``documents`` are those of this side of the split, before any is dropped."""

    reference: str
    records: int
    empty: int
    """Records that were left out, as nothing is in them."""
    documents: int
    tokens: int
    targets: int
    """Tokens to predict, before documents are cut at the ends of rows."""


class DataReport(Closed):
    """All that was read, and the rows made of it. An epoch is all rows once."""

    split: Literal["train", "evaluation"]
    references: tuple[ReferenceReport, ...]
    how: Literal["packed", "joined", "whole", "padded"]
    sequence: int
    """Tokens of a row, padding included."""
    rows: int
    tokens: int
    """Tokens of an epoch, without padding."""
    targets: int
    """Tokens of an epoch that are to be predicted."""
    dropped: int
    """Tokens that are in no row: of documents and of rows without anything to predict."""
    hash: str
    """SHA-256 of the rows."""


@dataclass(frozen=True, eq=False)
class Document:
    """ids: ``T`` int32, with BOS and EOS if the tokenizer has them. learned: ``T`` bool, the tokens to predict. The first one is
    predicted only if another document precedes it in a joined row."""

    ids: np.ndarray
    learned: np.ndarray

    def __post_init__(self) -> None:
        if self.ids.ndim != 1 or self.ids.shape != self.learned.shape:
            raise ValueError(f"ids {self.ids.shape} and learned {self.learned.shape}: expected two of one length, T")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def targets(self) -> int:
        """How many of its tokens are to be predicted."""
        return int(np.count_nonzero(self.learned[1:]))


Packing = Literal["packed", "joined", "whole", "padded"]
IGNORED = -100
"""The label of what is not to be predicted, as transformers and torch have it."""
PADDING = 0
"""The token of padding: any would do, as no token before it sees it, and it is not predicted."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows as tensors. ids, labels, position: ``B T`` int64; valid: ``B T`` bool, false in padding, which is last."""

    ids: torch.Tensor
    labels: torch.Tensor
    position: torch.Tensor
    valid: torch.Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device | str) -> Self:
        """Return a copy of the rows on another device."""
        return type(self)(*(tensor.to(device) for tensor in self._tensors()))

    def inputs(self, *, mask: bool = False) -> dict[str, Any]:
        """``input_ids``, ``position_ids`` and ``attention_mask``, as a composed model and transformers' Llama accept them.

        The mask is None, though there may be padding: padding follows a row's last document with the next positions, so it does not
        change a causal model's output at real tokens. transformers' Llama separates packed documents only without a mask and a
        cache: call it with ``use_cache=False``. mask: return a mask if a row has padding, for a bidirectional composed model.
        """
        attention_mask = self.valid.long() if mask and not bool(self.valid.all()) else None
        return {"input_ids": self.ids, "position_ids": self.position, "attention_mask": attention_mask}

    def split(self, count: int) -> list[Self]:
        """``count`` micro-batches, in order, whose numbers of rows differ by one at most. Raises DataError for more than rows."""
        if not 1 <= count <= len(self):
            raise DataError(f"{count} micro-batches of a batch of {len(self)} rows: expected 1 to {len(self)}")
        return [type(self)(*parts) for parts in zip(*(tensor.tensor_split(count) for tensor in self._tensors()), strict=True)]

    @property
    def predicted(self) -> torch.Tensor:
        """The tokens that are predicted, ``B T-1`` bool: each is marked at the position before it, whose logits predict it."""
        return self.labels[:, 1:] != IGNORED

    @property
    def targets(self) -> torch.Tensor:
        """The number of predicted tokens of each row, ``B``."""
        return self.predicted.sum(1)

    def _tensors(self) -> tuple[torch.Tensor, ...]:
        return self.ids, self.labels, self.position, self.valid


@dataclass(frozen=True, eq=False)
class PackedRows:
    """N rows of exactly T tokens."""

    ids: np.ndarray
    """``N T`` int32, 0 in padding."""
    labels: np.ndarray
    """``N T`` int32, unshifted as transformers has them: -100 where nothing is learned, in padding, and at position 0."""
    position: np.ndarray
    """``N T`` int32, 0 begins a document, or a joined row; padding counts on."""
    valid: np.ndarray
    """``N T`` bool, false in padding."""
    dropped: int = 0
    """Tokens that are in no row, as their document, or their row, has none to predict."""
    report: DataReport | None = None
    """What was read, where ``load_rows`` made the rows."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def sequence(self) -> int:
        """Tokens of a row, padding included."""
        return self.ids.shape[1]

    @cached_property
    def tokens(self) -> int:
        """Tokens of all rows, without padding."""
        return int(np.count_nonzero(self.valid))

    @cached_property
    def targets(self) -> int:
        """Tokens of all rows that are to be predicted."""
        return int(np.count_nonzero(self.labels != IGNORED))

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the contents, as hexadecimal digits. A continued run compares it to check that its data are the same."""
        digest = hashlib.sha256(str(self.ids.shape).encode())
        for array in self._arrays():
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return the rows of these indices, in this order. An index may occur twice."""
        import torch

        chosen = np.asarray(indices, dtype=np.int64)
        ids, labels, position, valid = (torch.from_numpy(array[chosen]) for array in self._arrays())
        return Batch(ids.long(), labels.long(), position.long(), valid)

    def take(self, indices: np.ndarray) -> PackedRows:
        """Some of the rows, in this order."""
        ids, labels, position, valid = (array[indices] for array in self._arrays())
        return PackedRows(ids, labels, position, valid, self.dropped, self.report)

    def in_order(self, size: int) -> Iterator[Batch]:
        """Yield all rows once, ``size`` at a time."""
        for start in range(0, len(self), size):
            yield self.batch(range(start, min(start + size, len(self))))

    def _arrays(self) -> tuple[np.ndarray, ...]:
        return self.ids, self.labels, self.position, self.valid


def pack(documents: Iterable[Document], sequence: int, *, how: Packing) -> PackedRows:
    """Return rows of ``sequence`` tokens, in the order of the documents.

    - packed: documents are concatenated. The rest of a document that does not fit into its row is a separate document in the next
      row, without its beginning.
    - joined: the same tokens at the same places, and each row is one text: tokens see all tokens before them in their row, and a
      document's first token is predicted, too, if it is learned.
    - whole: as packed, but a document that fits into a row is never cut: if it does not fit into this row it begins the next one,
      so that an answer keeps its question.
    - padded: each document has separate rows. Documents longer than a row are always cut, and the rest of a row is padding.
    Documents, and then rows, without a token to predict are left out; ``dropped`` counts their tokens. Raises DataError for rows of
    fewer than 2 tokens.
    """
    if sequence < 2:
        raise DataError(f"rows of {sequence} tokens: expected at least 2, as a token is predicted from the tokens before it")
    usable, left_out = [], 0
    for document in documents:
        if document.targets:
            usable.append(document)
        else:
            left_out += len(document)
    if not usable:
        return PackedRows(*(np.empty((0, sequence), dtype) for dtype in (np.int32, np.int32, np.int32, np.bool_)), dropped=left_out)
    lengths = np.array([len(document) for document in usable], dtype=np.int64)
    starts = np.fromiter(_starts(lengths, sequence, how), np.int64, len(lengths))
    count = -(-int(starts[-1] + lengths[-1]) // sequence)
    begins = np.zeros(count * sequence, np.bool_)
    begins[slice(0, None, sequence) if how == "joined" else np.append(starts, np.arange(0, len(begins), sequence))] = True
    rows = _fill(usable, starts, lengths, begins.reshape(count, sequence))
    teaching = (rows.labels != IGNORED).any(axis=1)
    if teaching.all():
        return PackedRows(*rows._arrays(), dropped=left_out)
    left_out += int(np.count_nonzero(rows.valid[~teaching]))
    return PackedRows(*(array[teaching] for array in rows._arrays()), dropped=left_out)


def _starts(lengths: np.ndarray, sequence: int, how: Packing) -> Iterator[int]:
    """Where each document begins, in tokens from the first row's start."""
    free = 0
    for length in lengths.tolist():
        room = -free % sequence
        if room and (how == "padded" or (how == "whole" and room < length <= sequence)):
            free += room
        yield free
        free += length


def _fill(documents: list[Document], starts: np.ndarray, lengths: np.ndarray, begins: np.ndarray) -> PackedRows:
    """Return all rows, with the documents at their places. begins: ``N T``, the starts of positions."""
    count, sequence = begins.shape
    ids = np.full(count * sequence, PADDING, np.int32)
    learned = np.zeros(count * sequence, np.bool_)
    valid = np.zeros(count * sequence, np.bool_)
    for document, start, length in zip(documents, starts.tolist(), lengths.tolist(), strict=True):
        place = slice(start, start + length)
        ids[place], learned[place], valid[place] = document.ids, document.learned, True
    column = np.arange(sequence, dtype=np.int32)
    position = column - np.maximum.accumulate(np.where(begins, column, 0), axis=1)
    labels = np.where(learned.reshape(count, sequence) & ~begins, ids.reshape(count, sequence), np.int32(IGNORED))
    return PackedRows(ids.reshape(count, sequence), labels, position, valid.reshape(count, sequence))


OF_DOCUMENTS = 2**64 - 1
"""The random stream that shuffles documents before they are packed. Epochs have the numbers from 0, below it."""


@lru_cache(maxsize=4)
def permutation(count: int, seed: int, stream: int) -> np.ndarray:
    """``count`` int64, the numbers 0 … count - 1 in the order of this seed and stream; read-only."""
    # numpy keeps the bits of its bit generators from version to version, but not the numbers of a `Generator`.
    bits = np.random.Philox(key=np.array([seed % 2**64, stream], dtype=np.uint64)).random_raw(count)
    order = np.argsort(np.asarray(bits), kind="stable")
    order.setflags(write=False)
    return order


def rows_of_step(step: int, batch: int, count: int, seed: int) -> list[int]:
    """Return the ``batch`` rows, out of ``count``, of step ``step`` (from 0). Each epoch has its own permutation. If an epoch ends
    inside a batch, rows of the next one fill it: after any number of steps, two rows differ by at most one use. Raises DataError if
    ``count`` or ``batch`` is 0.
    """
    _needs(count, batch)
    rows, first = [], step * batch
    while len(rows) < batch:
        epoch, place = divmod(first + len(rows), count)
        rows += permutation(count, seed, epoch)[place : place + batch - len(rows)].tolist()
    return rows


def steps_of(epochs: float, count: int, batch: int) -> int:
    """Return the fewest steps of ``batch`` rows after which ``count`` rows have been seen ``epochs`` times. Raises DataError."""
    _needs(count, batch)
    # By the decimal digits of the float: 0.1 epochs of 30 rows are 3 rows, not a little more.
    return math.ceil(Fraction(str(epochs)) * count / batch)


def _needs(count: int, batch: int) -> None:
    if count < 1:
        raise DataError("the data are empty: there is no row")
    if batch < 1:
        raise DataError(f"a batch of {batch} rows; it needs at least 1")
