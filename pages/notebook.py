"""Runs examples/a-day.ipynb and writes its outputs into it, without times and paths. ``make notebook``."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "examples" / "a-day.ipynb"
TIMES = "times"
"""The tag of a cell whose output is about the machine. Its output is not kept."""
SECONDS = re.compile(r"\b\d[\d,.]*(?= (?:ms|s|min)\b)")


def run(work: Path, replaced: Mapping[str, str] | None = None) -> Any:
    """Return the notebook after a run, with all its outputs. work: the folder for everything that it writes.

    replaced: text in its cells, and what runs in its place. Raises an error if a cell fails.
    """
    kernels = work / "kernels" / "python3"
    kernels.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernels / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "", "language": "python"}))
    environment = os.environ | {
        "TEACHER": str(ROOT / "examples" / "teacher"),
        "WORK": str(work),
        "IPYTHONDIR": str(work / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(work / "runtime"),
        "JUPYTER_PLATFORM_DIRS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    book: Any = nbformat.read(NOTEBOOK, as_version=4)
    sources = "".join(cell.source for cell in book.cells)
    for written, instead in (replaced or {}).items():
        if written not in sources:
            raise ValueError(f"no cell of {NOTEBOOK.name} has the text {written!r}")
        for cell in book.cells:
            cell.source = cell.source.replace(written, instead)
    client = NotebookClient(book, timeout=600, kernel_name="python3")
    client.create_kernel_manager().kernel_spec_manager = KernelSpecManager(
        kernel_dirs=[str(kernels.parent)], ensure_native_kernel=False
    )
    # With this variable, ipykernel's launcher removes the first entry of PYTHONPATH where that is the current folder.
    environment.pop("PYTHONSAFEPATH", None)
    client.execute(env=environment)
    return book


def clean(book: Any, work: Path) -> None:
    """Keep the results of cells alone, in place, and remove what differs from run to run: times, paths, bars, counts."""
    for cell in book.cells:
        cell.metadata = {key: value for key, value in cell.metadata.items() if key == "tags"}
        if cell.cell_type != "code":
            continue
        cell.execution_count = None
        kept = [] if TIMES in cell.metadata.get("tags", ()) else [o for o in cell.outputs if o.output_type == "execute_result"]
        for output in kept:
            output.execution_count, output.metadata = None, {}
            for kind, text in output.data.items():
                without_paths = text.replace(str(work), "WORK").replace(str(ROOT), "composer")
                output.data[kind] = SECONDS.sub("…", without_paths)
        cell.outputs = kept
    book.metadata.pop("widgets", None)
    book.metadata["language_info"] = {"name": "python"}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder).resolve()
        book = run(work)
        clean(book, work)
    nbformat.validate(book)
    nbformat.write(book, NOTEBOOK)
    print(f"Wrote {NOTEBOOK.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
