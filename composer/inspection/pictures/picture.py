"""A picture, and the numbers that it is drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DrawnFigure:
    """name: of its files. title, says: above and below it on the page. data: what stands in its JSON."""

    name: str
    title: str
    says: str
    figure: Any
    data: Any
