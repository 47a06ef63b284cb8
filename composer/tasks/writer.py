"""A text in a tokenizer's own tokens: how long it is, which of them are its answers, and how much filler fits.

Texts that a tokenizer cannot write, or that a model cannot read, are refused in the same words wherever a model reads a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from random import Random
from typing import Any, TypeVar

import numpy as np

from composer.errors import TaskError

Arrangement = TypeVar("Arrangement")
Span = tuple[int, int]
"""Characters of a text, from and up to."""


class Writer:
    """A tokenizer of transformers, with special tokens only on request."""

    def __init__(self, tokenizer: Any) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise TaskError(
                f"{type(tokenizer).__name__} does not map tokens to characters. Use a fast tokenizer, which has a tokenizer.json."
            )
        self.tokenizer = tokenizer
        self._checked: set[str] = set()

    @cached_property
    def begin(self) -> list[int]:
        """BOS where the tokenizer itself begins a text with it, or nothing."""
        return [token for token in self.tokenizer("").input_ids[:1] if token == self.tokenizer.bos_token_id]

    @cached_property
    def end(self) -> list[int]:
        """EOS, or nothing where the tokenizer has none."""
        return [] if self.tokenizer.eos_token_id is None else [self.tokenizer.eos_token_id]

    @cached_property
    def ordinary(self) -> list[int]:
        """The ids of all tokens but the special ones, in order."""
        added = self.tokenizer.added_tokens_decoder
        special = {*self.tokenizer.all_special_ids, *(token for token, content in added.items() if content.special)}
        return sorted(set(self.tokenizer.get_vocab().values()) - special)

    def encode(self, text: str, *, begin: bool = True) -> list[int]:
        """begin: with BOS before it, where the tokenizer has one there."""
        ids = self.tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        return [*self.begin, *ids] if begin else ids

    def encode_spans(self, text: str, spans: Sequence[Span]) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        """Return the text with BOS, and which of its tokens have characters in one of the spans, which are in order and apart."""
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        answer, place = [False] * len(self.begin), 0
        for start, end in encoded.offset_mapping:
            while place < len(spans) and spans[place][1] <= start:
                place += 1
            answer.append(place < len(spans) and end > spans[place][0])
        return (*self.begin, *encoded.input_ids), tuple(answer)

    def decode(self, ids: Iterable[int]) -> str:
        """Without special tokens."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def count(self, text: str) -> int:
        """Tokens of a text, BOS included."""
        return len(self.encode(text))

    def round_trips(self, text: str) -> bool:
        """Whether the tokens of a text decode to all of it."""
        return self.decode(self.encode(text)).strip() == text.strip()

    def check(self, text: str) -> None:
        """Raise ``TaskError`` if a text does not survive its tokens, and so could not be answered."""
        if text in self._checked:
            return
        if not self.round_trips(text):
            decoded = self.decode(self.encode(text)).strip()
            raise TaskError(
                f'The tokenizer cannot write "{text}": it decodes to "{decoded}". '
                "Use a tokenizer that has the words and characters of the task, or choose another task."
            )
        self._checked.add(text)


def fit(count: Callable[[int], int], limit: int, name: str, max_units: int | None = None, unit: str = "") -> int:
    """Return the number of units of filler that keeps a text within ``limit`` tokens: n with count(n) ≤ limit < count(n + 1). most:
    the largest number of units, if it is limited. unit: their name.

    The search interpolates linearly between both ends, and bisects every third time: tokens are nearly proportional to filler, so a
    few counts suffice. Raises ``TaskError`` if not even the text without filler fits, or if all filler leaves room.
    """
    low, at_low = 0, count(0)
    least = at_low
    if least > limit:
        raise TaskError(f"{name} needs at least {least} tokens, not {limit}.")
    high, at_high = 1, count(1)
    while at_high <= limit:
        if high == max_units:
            if at_high == limit:
                return high
            raise TaskError(
                f"{name}: all {max_units} {unit} make {at_high} tokens, not {limit}. Set a shorter length, or provide more text."
            )
        low, at_low = high, at_high
        rate = max((at_high - least) / high, 1e-9)
        high = min(max(low + 1, round((limit - least) / rate)), 8 * low)
        high = high if max_units is None else min(high, max_units)
        at_high = count(high)
    step = 0
    while high - low > 1:
        share = 0.5 if step % 3 == 2 else (limit - at_low) / (at_high - at_low)
        middle = min(max(low + round(share * (high - low)), low + 1), high - 1)
        tokens = count(middle)
        if tokens <= limit:
            low, at_low = middle, tokens
        else:
            high, at_high = middle, tokens
        step += 1
    return low


def fullest(
    rng: Random, lay: Callable[[int], Arrangement], count: Callable[[Arrangement], int], limit: int, name: str
) -> Arrangement:
    """What ``lay`` makes of as many units of filler as fit. It draws from ``rng`` the same numbers for each amount that is tried.

    Raises ``TaskError`` if not even the text without filler fits.
    """
    state = rng.getstate()

    def laid(filler: int) -> Arrangement:
        rng.setstate(state)
        return lay(filler)

    return laid(fit(lambda filler: count(laid(filler)), limit, name))


MOST_UNKNOWN = 0.02
"""The share of unknown tokens in a text from which a warning is due."""


def unknown_token(tokenizer: Any) -> int | None:
    """Return the token that a tokenizer writes for unknown text; None where it has none, or where that token has another use."""
    other = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    return None if tokenizer.unk_token_id in other else tokenizer.unk_token_id


def hardly_written(subject: str, ids: np.ndarray | Sequence[int], unknown: int | None) -> str | None:
    """Return the warning for texts that the tokenizer cannot write; None for others. subject: the texts in words. unknown: the
    token of ``unknown_token``."""
    ids = np.asarray(ids)
    share = float((ids == unknown).mean()) if unknown is not None and ids.size else 0.0
    if share <= MOST_UNKNOWN:
        return None
    return (
        f"{share:.0%} of the tokens of {subject} are the tokenizer's token for unknown text, so most of their content is lost. Use "
        "texts that the model's tokenizer can write."
    )


def without_embedding(subject: str, ids: np.ndarray | Sequence[int], vocabulary: int, tokenizer: Any) -> str | None:
    """Return the error for texts with a token that the model has no embedding for; None for others. subject: the texts in words.
    vocabulary: the number of the model's embeddings."""
    ids = np.asarray(ids)
    if not ids.size or (ids.min() >= 0 and ids.max() < vocabulary):
        return None
    wrong = int(ids.max()) if ids.max() >= vocabulary else int(ids.min())
    return (
        f"{subject}: token {wrong:,} is not among the model's {vocabulary:,}: the tokenizer ({len(tokenizer):,} tokens) does not "
        "fit the model. Use the model's own tokenizer"
    )
