"""Windows of a text file, to be scored by their loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import PositiveInt

from blocks.part import Closed
from composer.errors import TaskError
from composer.files import MOST_TEXT, read_text_file
from composer.tasks.base import Sample, Scored, stamp
from composer.tasks.writer import Writer


@dataclass(frozen=True)
class LazySamples:
    """The samples of a task at one length, each made when it is needed. draw: makes the sample of an index below ``count``."""

    count: int
    draw: Callable[[int], Sample]


class Perplexity(Closed):
    """Windows of exactly this length, BOS included, that do not overlap. If a text has more of them than samples, the
    samples are spread over all of it."""

    source: ClassVar[str] = "the loss of a language model on any text"
    scored: ClassVar[Scored] = "loss"
    provenance: ClassVar[None] = None
    """Its text is a file that its options name."""

    kind: Literal["perplexity"] = "perplexity"
    text: Path
    """A UTF-8 text file, all of which is read as one text."""
    samples: PositiveInt = 100
    """How many windows at most."""

    @property
    def name(self) -> str:
        return self.kind

    def windows(self, writer: Writer, length: int) -> LazySamples:
        """Raise ``TaskError`` if the text is shorter than one window."""
        ids = _tokens(writer.tokenizer, self.text, stamp(self.text))
        fresh = length - len(writer.begin)
        whole = len(ids) // fresh if fresh > 0 else 0
        if whole == 0:
            raise TaskError(f"{self.text} has {len(ids):,} tokens, too few for one window of {length:,}.")
        count = min(whole, self.samples)

        def window(index: int) -> Sample:
            start = index * whole // count * fresh
            cut = (*writer.begin, *ids[start : start + fresh].tolist())
            return Sample(cut, (False,) * len(cut), writer.decode(cut))

        return LazySamples(count, window)


@lru_cache(maxsize=2)
def _tokens(tokenizer: Any, path: Path, _: tuple[int, int]) -> np.ndarray:
    """Return all tokens of a text file, int32. The last argument is the file's stamp: a changed file is read again."""
    text = read_text_file(path, TaskError, MOST_TEXT)
    # Not verbose: a text may well be longer than what the model was made for.
    return np.asarray(tokenizer(text, add_special_tokens=False, verbose=False).input_ids, dtype=np.int32)
