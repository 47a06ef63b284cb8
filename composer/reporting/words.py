"""Figures in words: what people read of sizes, counts and hashes, on a terminal and in a notebook."""

from __future__ import annotations

import re
from collections.abc import Sequence

SHORT_HASH = 12


def size(count: float) -> str:
    """Bytes in words: 1.5 KiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def quantity(count: float) -> str:
    """Return a number in words: 1.5 million."""
    for unit, scale in ((" billion", 1e9), (" million", 1e6)):
        if abs(count) >= scale:
            return f"{count / scale:.2f}{unit}"
    return f"{count:,.0f}"


def ratio(factor: float) -> str:
    """Return how many times as small: 19.5×."""
    return f"{factor:,.2f}×" if factor < 10 else f"{factor:,.1f}×" if factor < 1000 else f"{factor:,.0f}×"


def duration(seconds: float) -> str:
    """Return a time in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.0f} h"


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"


def ranges(numbers: Sequence[int], to: str = " to ", comma: str = ", ") -> str:
    """0 to 3, 6."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return comma.join(str(first) if first == last else f"{first}{to}{last}" for first, last in spans)


def layers_in_words(numbers: Sequence[int]) -> str:
    """layers 0 to 3, 6."""
    return f"layer{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"


def short_hashes(text: str) -> str:
    """Return the text with its hashes cut short, for people."""
    return re.sub(rf"\b([0-9a-f]{{{SHORT_HASH}}})[0-9a-f]{{{64 - SHORT_HASH}}}\b", r"\1…", text)
