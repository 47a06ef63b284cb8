"""Exact memories computed with one Python list per row: which pairs are evicted when, and softmax over the stored pairs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from blocks.flow import Pairs, Tokens
from blocks.legend import Shape
from tests.blocks.support import owner, random


@dataclass
class Row:
    """One row: its documents, its tokens so far, and the pairs in a memory of ``size`` pairs (None: unbounded). terraced: the
    memory holds the document's current chunk of ``size`` tokens and the chunk before it.
    """

    lengths: list[int]
    size: int | None
    terraced: bool = False

    def __post_init__(self) -> None:
        self.tokens = [(number, place) for number, length in enumerate(self.lengths) for place in range(length)]
        self.at = 0
        self.held: list[int] = []

    def take(self, real: int) -> Iterator[tuple[int, list[int], list[int]]]:
        """Yield, for each of the next real tokens, the token, the evicted pairs and the stored pairs."""
        for token in range(self.at, self.at + real):
            place = self.tokens[token][1]
            if place == 0:
                self.held.clear()
            evicted = 0
            if self.size is not None and self.terraced:
                evicted = self.size if place % self.size == 0 and place >= 2 * self.size else 0
            elif self.size is not None:
                evicted = len(self.held) == self.size
            gone, self.held = self.held[:evicted], [*self.held[evicted:], token]
            yield token, gone, list(self.held)
        self.at += real


def pairs_at(states: Tensor, position: list[list[int]], convolved: Tensor | None = None) -> Pairs:
    """Return pairs whose keys equal their values, at these positions."""
    return Pairs(states, convolved, states, torch.tensor(position))


@dataclass
class Call:
    """One call: the number of real tokens in each row, and the number of columns."""

    real: list[int]
    columns: int


class Stream:
    """Rows of documents that a memory receives call by call, with padding at the end."""

    def __init__(
        self, shape: Shape, rows: list[list[int]], size: int | None, convolved: int = 0, *, terraced: bool = False
    ) -> None:
        self.shape, self.rows = shape, [Row(lengths, size, terraced) for lengths in rows]
        longest = max(sum(lengths) for lengths in rows)
        self.query = random(len(rows), longest, shape.heads, shape.head_dim)
        self.key = random(len(rows), longest, shape.key_heads, shape.head_dim)
        self.value = random(len(rows), longest, shape.key_heads, shape.head_dim)
        self.convolved = random(len(rows), longest, convolved, shape.head_dim) if convolved else self.key

    def call(self, call: Call) -> tuple[Tensor, Pairs, Tokens]:
        """Return the tensors of a call. Padding has its own numbers and meaningless positions."""
        batch, columns = len(self.rows), call.columns

        def columns_of(states: Tensor) -> Tensor:
            filled = 9 * random(batch, columns, *states.shape[2:])
            for index, (row, real) in enumerate(zip(self.rows, call.real, strict=True)):
                filled[index, :real] = states[index, row.at : row.at + real]
            return filled

        position = torch.full((batch, columns), 77)
        segment = torch.zeros(batch, columns, dtype=torch.int64)
        for index, (row, real) in enumerate(zip(self.rows, call.real, strict=True)):
            number = row.tokens[row.at - 1][0] if row.at else 0
            for column in range(columns):
                if column < real:
                    position[index, column] = row.tokens[row.at + column][1]
                    segment[index, column] = row.tokens[row.at + column][0] - number
                elif real:
                    segment[index, column] = segment[index, real - 1]
        valid = torch.arange(columns) < torch.tensor(call.real)[:, None]
        tokens = Tokens(position, segment, None if valid.all() else valid)
        present = position.masked_fill(~valid, -1)
        pairs = Pairs(columns_of(self.key), columns_of(self.convolved), columns_of(self.value), present)
        return columns_of(self.query), pairs, tokens

    def attention(self, row: int, token: int, held: list[int], head: int, turn: Tensor) -> tuple[Tensor, Tensor]:
        """Return the softmax of one query over the stored pairs, and the logarithm of its mass. ``turn``: the factors of rope, T
        × D/2.
        """
        key_head = owner(head, self.shape.heads, self.shape.key_heads)
        places = self.rows[row].tokens

        def rotated(states: Tensor, which: list[int]) -> Tensor:
            first, second = states[row, which].chunk(2, dim=-1)
            return torch.complex(first, second) * turn[[places[pair][1] for pair in which]]

        query, keys = rotated(self.query[:, :, head], [token]), rotated(self.key[:, :, key_head], held)
        scaled = (query * keys.conj()).real.sum(-1) / math.sqrt(self.shape.head_dim)
        return scaled.softmax(0) @ self.value[row, held, key_head], scaled.logsumexp(0)
