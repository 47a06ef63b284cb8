"""Counts of the data that were read."""

from __future__ import annotations

from typing import Literal

from blocks.part import Closed


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
