"""One text as tokens, each with whether it is to be learned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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
