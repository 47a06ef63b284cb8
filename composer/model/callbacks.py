"""Callbacks of ``from_pretrained`` and ``save_pretrained``, by which the record of a model follows it from folder to folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


class Keeper(Protocol):
    """Keeps the record of a model while it is in memory, and writes it into every folder that the model is saved to."""

    def after_load(self, model: Any, reference: Any, where: Mapping[str, Any]) -> None:
        """The model has been loaded from a folder or the Hub. where: the options of ``from_pretrained``."""
        ...

    def after_save(self, model: Any, folder: Path) -> None:
        """The config and the weights of the model have been written to a folder."""
        ...


KEEPERS: list[Keeper] = []
"""All that are called. Packages on floors above add theirs as they are imported."""
