"""The folder of a bench: whether it may stand there, and what is written."""

from __future__ import annotations

import tempfile
from pathlib import Path

from composer.benching.report import KINDS, Report
from composer.errors import BenchError
from composer.evaluation.standing import write_whole

BENCH, TABLE = "bench.json", "table.md"


def prepare(folder: Path, *, force: bool) -> None:
    """Whether a bench can be written to a folder, which is made; nobody wants to hear of it at the end. force: replace one.

    Raises BenchError.
    """
    if folder.exists() and not folder.is_dir():
        raise BenchError(f"{folder} is a file, and results would stand there. Move it away, or choose another --out.")
    if (folder / BENCH).is_file():
        if not force:
            raise BenchError(f"{folder} holds a bench, and times are not added to. Choose another --out, or replace it: --force.")
    elif folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise BenchError(f"{folder} holds no {BENCH}, so no bench wrote it. Move it away, or choose another --out.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise BenchError(f"{folder} cannot be written to: {error.strerror or error}. Choose another --out.") from error


def write_report(report: Report, folder: Path) -> None:
    """``bench.json``, ``table.md``, and a picture of each kind that was asked for. Raises ComposerError."""
    from composer.benching.plots import draw
    from composer.benching.table import markdown

    write_whole(folder / BENCH, report.model_dump_json(indent=2) + "\n")
    write_whole(folder / TABLE, markdown(report))
    try:
        for kind in KINDS:
            (folder / f"{kind}.png").unlink(missing_ok=True)  # of the bench that stood there
        draw(report, folder)
    except OSError as error:
        raise BenchError(f"{folder}: the pictures cannot be written ({error.strerror or error}); {BENCH} is there.") from error
