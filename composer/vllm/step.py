"""One step of an inference engine: the tokens of several requests in one line, cut into calls of the heads.

Each request is at its own position in its text: the heads receive rows of one length, or padded to it, each with its own state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from blocks.flow import Tokens

MOST_PADDING = 1.5
"""Places of a padded call over its tokens: above it, chunks of different lengths run in separate calls."""


@dataclass(frozen=True)
class EngineCall:
    """Some requests of a step, as inputs of one call of the heads: ``B`` rows of ``T`` places.

    - length, seen: tokens of this step, and before it, of each request, ``B``.
    """

    rows: Tensor
    """The requests, ``B``, by their number in the step."""
    place: Tensor
    """The place of each token in the line, ``B T``. Padding has that of its row's first token."""
    tokens: Tokens
    """Their positions, and which of them are real."""
    length: Tensor
    seen: Tensor
    most_seen: int
    """The largest of ``seen``."""
    is_new: Tensor | None
    """Which requests begin here, ``B``; None: none of them."""
    all_new: bool
    """Whether all of them do."""

    def take(self, line: Tensor) -> Tensor:
        """``1 N …`` of the whole step to ``B T …`` of this call."""
        return line[0][self.place]

    def put(self, states: Tensor, line: Tensor) -> None:
        """Write ``B T …`` of this call to its places in ``1 N …``."""
        valid = self.tokens.valid
        if valid is None:
            line[0].index_copy_(0, self.place.flatten(), states.flatten(0, 1).to(line.dtype))
        else:
            line[0].index_copy_(0, self.place[valid], states[valid].to(line.dtype))


@dataclass(frozen=True)
class EngineStep:
    """The requests of a step, one after the other."""

    position: Tensor
    """The position of each token in its text, ``N``."""
    starts: tuple[int, ...]
    """Where each request begins in the line, and the end of the last: ``R + 1`` numbers."""
    seen: tuple[int, ...]
    """Tokens of each request before this step, ``R`` numbers."""
    pages: dict[str, Tensor] = field(default_factory=dict)
    """Of each layer with states, by its name, the page of each request, ``R``. Empty: nothing is kept."""

    @cached_property
    def calls(self) -> tuple[EngineCall, ...]:
        """Single tokens in one call, longer chunks in calls without much padding. All layers of the model share them."""
        return tuple(self._call(rows) for rows in self._groups() if rows)

    def _groups(self) -> Iterator[list[int]]:
        length = [end - start for start, end in zip(self.starts, self.starts[1:], strict=False)]
        yield [row for row, tokens in enumerate(length) if tokens == 1]
        group: list[int] = []
        for row in sorted((row for row, tokens in enumerate(length) if tokens > 1), key=length.__getitem__):
            tokens = sum(length[other] for other in group) + length[row]
            if length[row] * (len(group) + 1) > MOST_PADDING * tokens:
                yield group
                group = []
            group.append(row)
        yield group

    def _call(self, rows: list[int]) -> EngineCall:
        device = self.position.device
        first = [self.starts[row] for row in rows]
        length = [self.starts[row + 1] - start for row, start in zip(rows, first, strict=True)]
        seen = [self.seen[row] for row in rows]
        numbers = torch.tensor([rows, first, length, seen], device=device)
        count = torch.arange(max(length), device=device)
        place, valid = numbers[1, :, None] + count, None
        # Padding has the positions that would follow.
        position = self.position[numbers[1]][:, None] + count
        if min(length) < max(length):
            valid = count < numbers[2, :, None]
            place = place.where(valid, numbers[1, :, None])
        begins = [tokens == 0 for tokens in seen]
        is_new = torch.tensor(begins, device=device) if any(begins) else None
        return EngineCall(
            numbers[0], place, Tokens(position, None, valid), numbers[2], numbers[3], max(seen), is_new, all_new=all(begins)
        )
