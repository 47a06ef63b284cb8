"""Reports that runs write into their folders: as JSON, as tables in Markdown, and as pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from blocks.part import Closed
from composer.files import write_whole
from composer.plotting import plotting, save
from composer.tables import Readable

TABLE = "table.md"
Pictures = Callable[[Any], Iterable[tuple[str, Any]]]
"""Yields names and figures, drawn with matplotlib's pyplot."""


class RunReport(Readable, Closed):
    """The results of a run. ``view`` returns their tables and notes."""

    def write(self, folder: Path, name: str) -> None:
        """Write the report as JSON to the file ``name``, and as Markdown to ``table.md``. Raises OSError."""
        write_whole(folder / name, self.model_dump_json(indent=2) + "\n")
        write_whole(folder / TABLE, self.view().markdown())


def write_pictures(pictures: Pictures, folder: Path, stale: Iterable[str] = ()) -> list[Path]:
    """Write each picture to ``NAME.png``, whole or not at all. Returns their paths. Raises OSError.

    stale: glob patterns of pictures of earlier reports, which are removed at the end unless they were written again.
    """
    written = []
    with plotting() as pyplot:
        for name, figure in pictures(pyplot):
            written.append(folder / f"{name}.png")
            save(figure, written[-1])
    for path in (path for pattern in stale for path in folder.glob(pattern)):
        if path not in written:
            path.unlink()
    return written
