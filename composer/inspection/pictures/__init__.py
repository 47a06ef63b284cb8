"""Pictures of the findings: each is drawn from numbers in a JSON file beside it."""

from __future__ import annotations

from collections.abc import Iterator

from composer.inspection.findings import Findings
from composer.inspection.pictures import attention, parts
from composer.inspection.pictures.attention import DrawnFigure
from composer.reporting.plotting import add_title, plotting


def draw_all(findings: Findings) -> Iterator[DrawnFigure]:
    """Yield all pictures that the findings have numbers for. Each figure is closed before the next is drawn."""
    with plotting() as pyplot:
        for room in (attention, parts):
            for picture in room.pictures(pyplot, findings):
                add_title(picture.figure, f"{picture.title} ({findings.model})")
                yield picture
                pyplot.close(picture.figure)
