"""The folder of a bench: it is locked and checked before anything is timed, and written at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from composer.benching.report import PHASES, BenchReport
from composer.errors import BenchError
from composer.files import failing_as, visible_in, write_whole
from composer.locks import working_in

BENCH, TABLE = "bench.json", "table.md"


@contextmanager
def bench_folder(folder: Path, *, force: bool) -> Iterator[None]:
    """Makes the folder of a bench, and locks it for the block; a folder that cannot be written is an error before the first run.

    force: replace the bench that is there. Raises BenchError.
    """
    with working_in(folder, BenchError, "Another bench is at work on"):
        check_free(folder, force=force)
        yield


def check_free(folder: Path, *, force: bool) -> None:
    """Raises BenchError where the folder holds other files, or a bench that is not to be replaced."""
    if (folder / BENCH).is_file():
        if not force:
            raise BenchError(f"{folder} holds a bench, and times are not added to. Choose another --out, or replace it: --force.")
    elif visible_in(folder):
        raise BenchError(f"{folder} holds no {BENCH}, so no bench wrote it. Move it away, or choose another --out.")


def write_report(report: BenchReport, folder: Path) -> None:
    """Writes ``bench.json``, ``table.md``, and a picture of each kind of workload. Raises BenchError."""
    from composer.benching.plots import draw
    from composer.benching.table import markdown

    with failing_as(BenchError, f"{folder} cannot be written to", "Choose another --out."):
        write_whole(folder / BENCH, report.model_dump_json(indent=2) + "\n")
        write_whole(folder / TABLE, markdown(report))
    with failing_as(BenchError, f"The pictures in {folder} cannot be written", f"{BENCH} is there."):
        for kind in PHASES:
            (folder / f"{kind}.png").unlink(missing_ok=True)  # of the bench that is replaced
        draw(report, folder)
