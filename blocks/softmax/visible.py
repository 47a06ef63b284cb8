"""Which entries each query of a call sees."""

from __future__ import annotations

from dataclasses import dataclass

from blocks.legend import Bool, Int, Tensor, torch


@dataclass(frozen=True)
class Visible:
    """Which of the state's and the call's entries each token of the call sees, a rectangle of it at a time."""

    position: Int[Tensor, "B E"]
    segment: Int[Tensor, "B E"] | None
    held: int
    reach: Int[Tensor, "B T"] | None

    def __call__(self, tokens: slice, entries: slice) -> Bool[Tensor, "B t e"]:
        """Return the mask in which token t, at entry held + t, sees ``held`` entries, itself included, or itself and the ``reach``
        entries before it."""
        entry = torch.arange(self.position.shape[1], device=self.position.device)
        back = entry[self.held :][tokens, None] - entry[entries]
        farthest = self.held - 1 if self.reach is None else self.reach[:, tokens, None]
        visible = (self.position[:, entries] >= 0)[:, None] & (back >= 0) & (back <= farthest)
        if self.segment is not None:
            visible = visible & (self.segment[:, self.held :][:, tokens, None] == self.segment[:, None, entries])
        return visible
