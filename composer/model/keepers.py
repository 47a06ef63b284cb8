"""Who is told where a model comes from, and where it is saved to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


class Keeper(Protocol):
    """Follows what is known of a model through memory, from the folder that it comes from to those that it is saved to."""

    def loaded(self, model: Any, reference: Any, where: Mapping[str, Any]) -> None:
        """It comes from a folder, or from the Hub. where: options of ``from_pretrained``."""
        ...

    def saved(self, model: Any, folder: Path) -> None:
        """Its config and its weights are in a folder now."""
        ...


KEEPERS: list[Keeper] = []
"""Those that are told; rooms above put them here."""
