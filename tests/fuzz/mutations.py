"""Random changes of documents (as trees of mappings and lists, with extreme values) and of bytes."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

DIGITS, HUGE, DEEP = "@digits", "@huge", "@deep"
"""What no tree of Python's can hold, by name: a number of 5,000 digits, one beyond floats, and lists in lists in lists."""
RAW = {DIGITS: "9" * 5000, HUGE: "1e999", DEEP: "[" * 20_000 + "]" * 20_000}
NUMBERS = (0, 1, -1, 2, 3, 7, 64, 1000, 10**6, 2**31 - 1, 2**31, 2**53, 2**62, 2**63 - 1, 2**63, 10**30, -(10**30))
FLOATS = (0.0, -0.0, 0.5, 1.0, 1e-308, 1e30, 1e308, math.nan, math.inf, -math.inf)
TEXTS = (
    "",
    ".",
    "..",
    "/",
    "a/b",
    "../a",
    "\0",
    "a\0b",
    "\ud800",
    "é",
    "x" * 300,
    "x" * 5000,
    "{i}",
    "all",
    "0:8:2",
    "1/4",
    "null",
    "64",
)
WORDS = (
    "composed",
    "llama",
    "F32",
    "BF16",
    "float32",
    "window",
    "state",
    "full",
    "latents",
    "delta",
    "softmax",
    "hedgehog",
    "head",
)
SHAPES: tuple[Any, ...] = ([], {}, [[]], [{}], {"kind": "window"}, [0], [1, 2], [2**62, 2**62], ["full"], {"": 0}, [None])
VALUES = st.sampled_from((None, True, False, *NUMBERS, *FLOATS, *TEXTS, *WORDS, *SHAPES, *RAW))
CHANGES = ("replace", "replace", "replace", "remove", "copy", "wrap", "rename", "add", "repeat")
EDITS = st.lists(st.tuples(st.integers(0, 2**16), st.sampled_from(CHANGES), VALUES, st.integers(0, 2**16)), min_size=1, max_size=4)
"""Of a tree: which of its values, what becomes of it, with what, and with which other one."""
CUTS = st.lists(
    st.tuples(
        st.integers(0, 2**16),
        st.integers(0, 40),
        st.sampled_from(
            ["", " ", "\n", "[", "]", "{", "}", ":", ",", '"', "0", "-", "\0", "é", "\t", "&a", "*a", "!!a", "1e", *RAW]
        ),
    ),
    min_size=1,
    max_size=4,
)
"""Of a text: from where, how many bytes go, and what stands there in their place."""


def edited(tree: Any, edits: Sequence[tuple[int, str, Any, int]]) -> Any:
    """Return a tree changed at some places."""
    root = [copy.deepcopy(tree)]
    for place, change, value, other in edits:
        spots = list(_spots(root))
        holder, key = spots[place % len(spots)]
        spot, second = holder[key], spots[other % len(spots)]
        replacement = copy.deepcopy(second[0][second[1]]) if change == "copy" else copy.deepcopy(value)
        if change in ("replace", "copy"):
            holder[key] = replacement
        elif change == "wrap":
            holder[key] = [spot]
        elif change == "remove" and holder is not root:
            del holder[key]
        elif change == "rename" and isinstance(holder, dict):
            holder[value if isinstance(value, str) else str(value)] = holder.pop(key)
        elif change == "add" and isinstance(spot, dict):
            spot[str(other)] = replacement
        elif change in ("add", "repeat") and isinstance(spot, list):
            spot.extend(copy.deepcopy(spot) if change == "repeat" else [replacement])
    return root[0]


def _spots(holder: Any) -> Any:
    """Return every place of a tree: its container, and its key or index there."""
    for key, inside in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
        yield holder, key
        if isinstance(inside, dict | list):
            yield from _spots(inside)


def cut(text: bytes, cuts: Sequence[tuple[int, int, str]]) -> bytes:
    """Return a text changed at some places."""
    for place, length, put in cuts:
        start = place % (len(text) + 1)
        text = text[:start] + RAW.get(put, put).encode() + text[start + length :]
    return text


def as_json(tree: Any) -> bytes:
    """Return the tree as JSON, with values that Python's writer does not accept."""
    text = json.dumps(tree)
    for name, raw in RAW.items():
        text = text.replace(json.dumps(name), raw)
    return text.encode()
