"""Turn tokens into text piece by piece. No piece ends inside a character, or inside a text that ends the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

CONTEXT = 8
"""Tokens before a text that decide how its first token is written, such as with a space."""
MOST_PENDING = 16
"""Tokens that may wait for the rest of a character. A character has at most 4 bytes; bytes that are no text would wait forever."""
REPLACEMENT = "\ufffd"
"""The character that decoders write for bytes that are no text, or not yet."""


class PieceDecoder:
    """Decodes tokens one after another, without special tokens.

    context: the tokens before the text, which are not in it. special: the tokenizer's ``special_tokens``.
    """

    def __init__(self, tokenizer: Any, special: frozenset[int], context: Sequence[int] = ()) -> None:
        self.tokenizer, self.special = tokenizer, special
        self.ids = [token for token in context[-CONTEXT:] if token not in special]
        self.decoded = len(self.ids)

    def add(self, token: int) -> str:
        """Return the text that this token completes, which may be empty."""
        if token in self.special:
            return ""
        self.ids.append(token)
        piece = self._undecoded()
        if not piece or (piece.endswith(REPLACEMENT) and len(self.ids) - self.decoded < MOST_PENDING):
            return ""
        del self.ids[: self.decoded]
        self.decoded = len(self.ids)
        return piece

    def end(self) -> str:
        """Return the rest of the text."""
        return self._undecoded()

    def _undecoded(self) -> str:
        before, whole = (self.tokenizer.decode(ids) if ids else "" for ids in (self.ids[: self.decoded], self.ids))
        return whole[len(before) :]


def special_tokens(tokenizer: Any) -> frozenset[int]:
    """Return the tokens that are no text, such as the one that ends a turn."""
    added = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(added | set(tokenizer.all_special_ids))


class StopFinder:
    """Finds the first of some texts that end an answer. Text that may be the beginning of such a text is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = stops
        self.held = ""
        self.has_stopped = False

    def add(self, piece: str) -> str:
        """Return the text that is certain not to belong to a stop. After a stop, ``has_stopped`` is True."""
        text, self.held = self.held + piece, ""
        places = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        if places:
            self.has_stopped = True
            return text[: min(places)]
        count = max((self._count_begun(text, stop) for stop in self.stops), default=0)
        self.held = text[len(text) - count :]
        return text[: len(text) - count]

    def end(self) -> str:
        """Return the text that is held back."""
        held, self.held = self.held, ""
        return held

    @staticmethod
    def _count_begun(text: str, stop: str) -> int:
        """Return the length of the longest end of a text that is a beginning of a stop."""
        return next((count for count in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:count])), 0)
