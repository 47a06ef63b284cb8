"""The notebook of examples/ runs from a spec to a shared model, and shows the expected outputs."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient

import composer

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "a-day.ipynb"
FEWER = {
    "steps: 20, batch: 8, warmup: 4": "steps: 8, batch: 4, warmup: 2",
    "steps: 5, batch: 8": "steps: 2, batch: 2",
    "stories,samples=400": "stories,samples=100",
}
"""What the notebook says, and what the test runs in its place."""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for all outputs of the notebook."""
    return tmp_path_factory.mktemp("day")


@pytest.fixture(scope="module")
def shown(work: Path) -> dict[str, dict[str, Any]]:
    """Return the output of each code cell's last line by kind (text, HTML)."""
    kernels = work / "kernels" / "python3"
    kernels.mkdir(parents=True)
    start = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "",
        "language": "python",
    }
    (kernels / "kernel.json").write_text(json.dumps(start))
    environment = {"TEACHER": str(ROOT / "examples" / "teacher"), "WORK": str(work), "IPYTHONDIR": str(work / "ipython")}
    environment |= {"JUPYTER_RUNTIME_DIR": str(work / "runtime"), "JUPYTER_PLATFORM_DIRS": "1"}
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    book: Any = nbformat.read(NOTEBOOK, as_version=4)
    sources = "".join(cell.source for cell in book.cells)
    for cell in book.cells:
        for written, fewer in FEWER.items():
            assert written in sources
            cell.source = cell.source.replace(written, fewer)
    specs = KernelSpecManager(kernel_dirs=[str(work / "kernels")], ensure_native_kernel=False)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (environment | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}).items():
            patch.setenv(name, value)
        client = NotebookClient(book, timeout=300, kernel_name="python3")
        client.create_kernel_manager().kernel_spec_manager = specs
        client.execute(env=dict(os.environ))
    outputs = {}
    ours = [cell for cell in book.cells if cell.cell_type == "code"]
    printed = [output.text for cell in ours[:-1] for output in cell.outputs if output.output_type == "stream"]
    assert not printed, "of the functions none prints; the last cell is transformers'"
    for cell in ours:
        results = [output.data for output in cell.outputs if output.output_type == "execute_result"]
        outputs[cell.source.splitlines()[-1]] = results[-1] if results else {}
    return outputs


def html_of(shown: dict[str, dict[str, Any]], line: str) -> str:
    """Return a cell's HTML. It has text, too."""
    (data,) = (data for last, data in shown.items() if last.startswith(line))
    assert data["text/plain"]
    return data["text/html"]


def test_reports_show_themselves(shown: dict[str, dict[str, Any]]) -> None:
    assert "head.memory" in html_of(shown, "composer.diff(")
    assert "Why this form:" in html_of(shown, "costs")
    assert "def head(" in html_of(shown, "composer.code(")
    assert "fresh.safetensors" in html_of(shown, "built")
    assert "Once upon a time" in html_of(shown, 'composer.generate("distilled"')
    assert "matches its record" in html_of(shown, 'composer.verify("whole")')
    tables = [line for line, data in shown.items() if "<table>" in data.get("text/html", "")]
    assert len(tables) >= 9


def test_the_student_has_learned(shown: dict[str, dict[str, Any]], work: Path) -> None:
    """The error of trained heads is smaller than that of untrained ones."""
    text = shown["distilled"]["text/plain"]
    layers = re.findall(r"transfer +layer \d +([\d.]+) +([\d.]+)", text)
    assert layers
    assert all(float(after) < float(before) for before, after in layers)
    rows = re.findall(r"^  (teacher|untrained|student) +([\d.]+)", shown["scores"]["text/plain"], re.MULTILINE)
    stories, passkeys = dict(rows[:3]), dict(rows[3:])
    assert float(stories["teacher"]) < float(stories["student"]) < float(stories["untrained"])
    assert float(passkeys["teacher"]) == 1


def test_speeds_and_variants_are_compared(shown: dict[str, dict[str, Any]], work: Path) -> None:
    assert re.search(r"512 +whole +[\d.]+×", shown["times"]["text/plain"])
    report = json.loads((work / "ablation" / "report.json").read_text())
    assert [variant["values"] for variant in report["variants"]] == [{"head.memory.0.size": 8}, {"head.memory.0.size": 32}]
    assert "attention MSE" in html_of(shown, "ablation")


def test_what_is_saved_is_the_same_model(shown: dict[str, dict[str, Any]], work: Path) -> None:
    assert shown['same, composer.verify("shared").ok']["text/plain"] == "(True, True)"
    assert composer.verify(work / "shared").ok


def test_no_outputs_are_kept_in_the_file() -> None:
    book: Any = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(book)
    assert not [cell for cell in book.cells if cell.cell_type == "code" and (cell.outputs or cell.execution_count)]
