"""Rows that a model generates together: their prompts are read as one left-padded batch, and then one token a step.

States of a fixed size have the same shape after any text, so the rows of such a model are one batch from their first new token on,
whenever they began. Caches that grow stay apart.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from composer.model.cache import CACHE, ComposedCache

if TYPE_CHECKING:
    from composer.serving.engine import TextRow

PIECE = 1024
"""Tokens of all prompts of a group that are read in one call, so that other groups do not wait long."""


class DecodingGroup:
    """Rows with one cache. Rows of the same prompt share its reading."""

    def __init__(self, model: Any, rows: Sequence[TextRow]) -> None:
        self.model, self.rows = model, list(rows)
        prompts = {id(row.prompt): row.prompt for row in rows}
        places = {prompt: place for place, prompt in enumerate(prompts)}
        self.prompt_of_row = [places[id(row.prompt)] for row in rows]
        self.longest = max(map(len, prompts.values()))
        device = model.device
        padded = [[0] * (self.longest - len(prompt)) + list(prompt) for prompt in prompts.values()]
        real = [[0] * (self.longest - len(prompt)) + [1] * len(prompt) for prompt in prompts.values()]
        self.ids, self.mask = torch.tensor(padded, device=device), torch.tensor(real, device=device)
        self.read = 0
        self.cache: Any = None
        is_composed = hasattr(model.config, "read_spec")
        # A composed model can read a prompt in pieces. Some of transformers' own models cannot.
        self.piece = max(1, PIECE // len(prompts)) if is_composed else self.longest
        names = inspect.signature(model.forward).parameters
        # A model that reads images would keep positions from one call to the next, which may be another group's.
        self.passes_positions = "position_ids" in names and (not is_composed or model.base.is_inside)
        self.constant: dict[str, Any] = {"use_cache": True, **({"logits_to_keep": 1} if "logits_to_keep" in names else {})}

    @property
    def is_reading(self) -> bool:
        """Whether a part of the prompts has not been read yet."""
        return self.read < self.longest

    def advance(self) -> None:
        """Read a piece of the prompts, or the last tokens, and draw the next token of each row."""
        self._keep([place for place, row in enumerate(self.rows) if not row.job.is_abandoned.is_set()])
        if not self.rows:
            return
        if self.is_reading:
            until = min(self.read + self.piece, self.longest)
            mask = self.mask[:, :until]
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, self.read :]
            logits = self._call(self.ids[:, self.read : until], positions, attention_mask=mask)
            self.read = until
            if self.is_reading:
                return
            self._select(self.prompt_of_row)
            logits = logits[self.prompt_of_row]
        else:
            positions = torch.tensor([[len(row.prompt) + row.count - 1] for row in self.rows], device=self.ids.device)
            # A composed model's cache counts the tokens itself.
            masked = {} if isinstance(self.cache, ComposedCache) else {"attention_mask": self.mask}
            logits = self._call(self.ids, positions, **masked)
        logits = logits.float().cpu()
        tokens = [row.advance(scores) for row, scores in zip(self.rows, logits, strict=True)]
        self.ids = torch.tensor([[token or 0] for token in tokens], device=self.ids.device)
        if not isinstance(self.cache, ComposedCache):
            self.mask = torch.cat((self.mask, torch.ones_like(self.mask[:, :1])), dim=1)
        self._keep([place for place, token in enumerate(tokens) if token is not None])

    def absorb(self, other: DecodingGroup) -> bool:
        """Add the rows of another group, if both have read their prompts, and their states can be in one batch."""
        if self.is_reading or other.is_reading or not (self.rows and other.rows) or not isinstance(self.cache, ComposedCache):
            return False
        if not self.cache.append(other.cache):
            return False
        self.rows += other.rows
        self.ids = torch.cat((self.ids, other.ids))
        return True

    def _call(self, ids: Tensor, positions: Tensor, **options: Any) -> Tensor:
        """Run the model, and return the logits after the last column: B V."""
        options |= {**self.constant, "input_ids": ids}
        if self.cache is not None:
            options[CACHE] = self.cache
        if self.passes_positions:
            options["position_ids"] = positions
        outputs = self.model(**options)
        self.cache = outputs[CACHE]
        return outputs.logits[:, -1]

    def _keep(self, places: list[int]) -> None:
        """Keep the rows at these places."""
        if len(places) == len(self.rows):
            return
        self.rows = [self.rows[place] for place in places]
        if self.is_reading:
            self.prompt_of_row = [self.prompt_of_row[place] for place in places]
        elif self.rows:
            self.ids = self.ids[places]
            self._select(places)

    def _select(self, places: list[int]) -> None:
        """Put the rows of the cache into this order. Rows may be left out, or repeated."""
        indices = torch.tensor(places, device=self.ids.device)
        if not isinstance(self.cache, ComposedCache):
            self.mask = self.mask[indices]
        # Hybrids' layers have attention's batch_select_indices, which leaves their states as they are. reorder_cache has both.
        has_own = type(self.cache).batch_select_indices is not Cache.batch_select_indices
        select: Any = self.cache.batch_select_indices if has_own else self.cache.reorder_cache
        select(indices)
