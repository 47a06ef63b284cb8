"""The values on the edges of a head: the tokens of a call, pairs that memories evict, partial attentions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

from blocks.legend import Bool, Float, Int, Shaped, Tensor, torch
from blocks.tensors import last_entries, may_read_numbers, where_present

# Not frozen: frozen dataclasses are three times as slow to create, and a decode step creates dozens. No field is set after
# creation.


@dataclass(slots=True)
class Tokens:
    """The tokens of one call. A row has its real tokens first, and padding, if any, after them.

    position: place of each token in its own document, from 0.
    segment: which document of the row each token belongs to, not decreasing; 0 continues the state that was handed in, so a
        document that starts at the first token has 1. None: all tokens continue it.
    valid: which tokens are real. None: all of them.
    index: place of each token in its row, over all calls and documents. None: as positions, which count on in each document.
    tables: a cache of values that depend on the tokens alone, and that several layers need.
    call: of a piece of a call, the tokens of all of it, and the columns of the piece.
    ahead: the later tokens of the call that each token sees, as tokens of an image do in some models. Softmax over all pairs
        follows it; all other memories are causal. None: no token sees a later one.
    coordinates: in models that rotate by three numbers a token, as by the place in an image, these numbers. None: position alone.
    columns: the columns of the tokens before padding was moved to the end. None: it was not moved.
    """

    position: Int[Tensor, "B T"]
    segment: Int[Tensor, "B T"] | None = None
    valid: Bool[Tensor, "B T"] | None = None
    index: Int[Tensor, "B T"] | None = None
    tables: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)
    call: tuple[Tokens, slice] | None = field(default=None, repr=False, compare=False)
    ahead: Bool[Tensor, "B T T"] | None = None
    coordinates: Int[Tensor, "B T 3"] | None = None
    columns: Int[Tensor, "B T"] | None = field(default=None, repr=False, compare=False)

    def cut(self, columns: slice) -> Tokens:
        """Return some consecutive tokens, numbered as a separate call."""
        segment = self.segment
        if segment is not None:
            before = segment[:, columns.start - 1, None] if columns.start else 0
            segment = segment[:, columns] - before
        valid, index, places = (
            None if entries is None else entries[:, columns] for entries in (self.valid, self.index, self.coordinates)
        )
        return Tokens(self.position[:, columns], segment, valid, index, coordinates=places)

    def first(self, count: int) -> Tokens:
        """Return the tokens of the first columns of the call."""
        tokens = self.cut(slice(0, count))
        if tokens.valid is not None and self.columns is not None:
            return replace(tokens, valid=tokens.valid & (self.columns[:, :count] < count))
        return tokens

    def count(self) -> Int[Tensor, " B"]:
        """Return the number of real tokens of each row."""
        return torch.full_like(self.position[:, 0], self.position.shape[1]) if self.valid is None else self.valid.sum(1)

    def to(self, device: torch.device) -> Tokens:
        """Return the same tokens on another device, with a cache of their own."""
        optional = self.segment, self.valid, self.index, self.coordinates, self.columns
        segment, valid, index, places, columns = (None if entries is None else entries.to(device) for entries in optional)
        return Tokens(self.position.to(device), segment, valid, index, coordinates=places, columns=columns)

    def once(self, key: tuple[Any, ...], compute: Callable[[], Any]) -> Any:
        """Return a value of ``tables``, computed at its first use."""
        if key not in self.tables:
            self.tables[key] = compute()
        return self.tables[key]

    def tail(self, extended: Shaped[Tensor, "B E ..."], count: int) -> Tensor:
        """Return the ``count`` entries up to each row's last real token, out of ``count`` earlier entries and those of the
        call."""
        return last_entries(extended, self.valid, count)

    def extend_segment(self, count: int) -> Int[Tensor, "B E"] | None:
        """Return the segments of ``count`` earlier entries, which belong to the document of the state, and of the call's
        entries."""
        if self.segment is None:
            return None
        return torch.cat((self.segment.new_zeros(self.segment.shape[0], count), self.segment), dim=1)

    def last_segment(self) -> Int[Tensor, "B 1"]:
        """Return the document at the end of each row."""
        assert self.segment is not None
        if self.valid is None:
            return self.segment[:, -1:]
        return self.segment.gather(1, (self.valid.sum(1, keepdim=True) - 1).clamp(min=0)) * self.valid.any(1, keepdim=True)

    def each_document(self, compute: Callable[..., tuple[Tensor, ...]], *states: Shaped[Tensor, "B T ..."]) -> tuple[Tensor, ...]:
        """Return the results of a function, ``B T …``, that is called with the states of each document alone; rows of one document
        each are computed at once."""
        if self.segment is None:
            return compute(*states)
        lengths = self.once(("lengths of documents",), self._document_lengths)
        documents = zip(*(tensor.flatten(0, 1)[None].split(lengths, dim=1) for tensor in states), strict=True)
        results = zip(*(compute(*document) for document in documents), strict=True)
        return tuple(torch.cat(parts, dim=1).squeeze(0).unflatten(0, self.position.shape) for parts in results)

    def _document_lengths(self) -> list[int]:
        assert self.segment is not None
        row = torch.arange(self.segment.shape[0], device=self.segment.device)[:, None] * (self.segment.max() + 1)
        return (row + self.segment).flatten().unique_consecutive(return_counts=True)[1].tolist()

    def in_row(self) -> Int[Tensor, "B T"]:
        """Return the place of each token in its row."""
        return self.position if self.index is None else self.index

    def tail_is_current(self, count: int) -> Bool[Tensor, "B P"] | None:
        """Return which entries of ``tail`` belong to the document at the end of the row; None if all do."""
        extended = self.extend_segment(count)
        return None if extended is None else self.tail(extended, count) == self.last_segment()


@runtime_checkable
class Rotation(Protocol):
    """A ``Position`` of ``blocks.positions``, which rotates queries and keys by their positions."""

    idle: ClassVar[bool]

    @property
    def base(self) -> tuple[object, ...]: ...
    def rotate(self, states: Tensor, position: Tensor) -> Tensor: ...
    def rotate_back(self, states: Tensor, position: Tensor) -> Tensor: ...
    def rotate_tokens(self, states: Tensor, tokens: Tokens) -> Tensor: ...


@dataclass(slots=True)
class Pairs:
    """Pairs of one key and one value: those of the call, one per token, or those that a memory evicts during it.

    key: rotated by ``rotation`` at its position (None: not rotated). convolved: the key for feature maps, not rotated, with its own
    number of heads (None: the head has no convolution, and the maps read ``key``). position: position in the document, -1
    for an absent pair; with an axis of heads if each query head has its own pairs. arrival: the column of the token at which each
    pair is evicted, not decreasing over the pairs of a row. None: pair and token share their column. numbers: further numbers of
    each pair (rates, errors), by name. tokens: the tokens of the call, for pairs of these tokens that have not been in a memory;
    None for evicted pairs. max_per_token: the largest number of pairs that are evicted at one token. known_present: True if all
    positions have been read, and each entry is a pair.
    """

    key: Float[Tensor, "B E K D"]
    convolved: Float[Tensor, "B E N D"] | None
    value: Float[Tensor, "B E K V"]
    position: Int[Tensor, "B E"] | Int[Tensor, "B E K"]
    arrival: Int[Tensor, "B E"] | None = None
    numbers: Mapping[str, Float[Tensor, "B E n"]] = field(default_factory=dict)
    rotation: Rotation | None = None
    tokens: Tokens | None = None
    max_per_token: int = 1
    known_present: bool = False

    def rotate(self, rotation: Rotation) -> Float[Tensor, "B E K D"]:
        """Return the keys, rotated by ``rotation``."""
        if self.rotation is rotation or (rotation.idle if self.rotation is None else self.rotation.base == rotation.base):
            return self.key
        if self.rotation is None and self.tokens is not None:
            return rotation.rotate_tokens(self.key, self.tokens)
        return self._rotate_key(rotation, self.key if self.rotation is None else self.rotation.rotate_back(self.key, self.position))

    def mappable(self, rotation: Rotation) -> Float[Tensor, "B E N D"]:
        """Return the keys that enter a feature map, rotated by ``rotation``."""
        return self.rotate(rotation) if self.convolved is None else self._rotate_key(rotation, self.convolved)

    def to_storage(self, rotation: Rotation) -> Pairs:
        """Return the pairs as a memory stores them, with keys rotated by ``rotation``."""
        return replace(self, key=self.rotate(rotation), rotation=rotation)

    def _rotate_key(self, rotation: Rotation, key: Tensor) -> Tensor:
        return rotation.rotate(key, self.position) if self.tokens is None else rotation.rotate_tokens(key, self.tokens)

    @property
    def present(self) -> Bool[Tensor, "B E"] | Bool[Tensor, "B E K"]:
        return self.position >= 0

    @property
    def all_present(self) -> bool:
        """True if every entry is known to be a pair: its position has been read, or the pairs are those of the call and no token
        is padding."""
        return self.known_present or (self.tokens is not None and self.tokens.valid is None)

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> Pairs:
        """Apply a function to all tensors of the pairs. The arrival is dropped."""
        key, convolved = change(self.key), None if self.convolved is None else change(self.convolved)
        numbers = {name: change(entries) for name, entries in self.numbers.items()}
        return Pairs(key, convolved, change(self.value), change(self.position), numbers=numbers, rotation=self.rotation)

    def append(self, later: Pairs) -> Pairs:
        """Concatenate these pairs and ``later``. Numbers that ``later`` lacks are 0 there."""

        def join(these: Tensor, those: Tensor | None) -> Tensor:
            if those is None:
                those = these.new_zeros(*later.key.shape[:2], *these.shape[2:])
            return torch.cat((these, those), dim=1)

        key, convolved = join(self.key, later.key), None if self.convolved is None else join(self.convolved, later.convolved)
        numbers = {name: join(entries, later.numbers.get(name)) for name, entries in self.numbers.items()}
        return Pairs(
            key,
            convolved,
            join(self.value, later.value),
            join(self.position, later.position),
            numbers=numbers,
            rotation=self.rotation,
        )


@dataclass(slots=True)
class Features:
    """Mapped pairs: features of the keys (N heads, or fewer that are shared), values, and which entries are pairs (None: all).

    arrival, max_per_token: as in ``Pairs``. rate: the write strength of each pair, for memories that need it.
    """

    key: Float[Tensor, "B E N F"]
    value: Float[Tensor, "B E K V"]
    present: Bool[Tensor, "B E"] | Bool[Tensor, "B E K"] | None
    arrival: Int[Tensor, "B E"] | None = None
    rate: Float[Tensor, "B E n"] | None = None
    max_per_token: int = 1

    def cut(self, entries: slice) -> Features:
        """Return some consecutive pairs."""
        key, value, present, arrival, rate = (
            None if states is None else states[:, entries]
            for states in (self.key, self.value, self.present, self.arrival, self.rate)
        )
        assert key is not None
        assert value is not None
        return Features(key, value, present, arrival, rate, self.max_per_token)

    def fill_absent(self, entries: Tensor, absent: float) -> Tensor:
        """Fill ``B E h …`` with ``absent`` where there is no pair."""
        if self.present is None or (may_read_numbers(self.present) and bool(self.present.all())):
            return entries
        return where_present(entries, self.present, absent)


@dataclass(slots=True)
class Partial:
    """The output of a memory, normalised, and the natural logarithm of its mass.

    lse: -inf where the memory is empty (the output is 0 there). None if no read needs it, or if the output is a raw numerator
    without a mass; a raw numerator has no bound and keeps the accumulating dtype. logit: the memory's own weight in the head's
    read, before any sigmoid: one a head, or one a token and head. None: none. maximum: the largest logit that an exact memory saw,
    -inf where none; None for memories that are not exact.
    """

    output: Float[Tensor, "B T H V"]
    lse: Float[Tensor, "B T H"] | None
    logit: Float[Tensor, " H"] | Float[Tensor, "B T H"] | None = None
    maximum: Float[Tensor, "B T H"] | None = None
