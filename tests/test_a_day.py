"""The notebook of examples/ runs from a spec to a shared model, and shows the expected outputs."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import nbformat
import pytest

import composer
from pages.notebook import NOTEBOOK, clean, run

pytestmark = [pytest.mark.long, pytest.mark.full]  # make test runs the same functions by the examples of docs/python.md

FEWER = {
    "steps: 40, batch: 8, warmup: 4": "steps: 8, batch: 4, warmup: 2",
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
    """Return the outputs of a run with fewer steps."""
    book = run(work, FEWER)
    return results_of(book)


def results_of(book: Any) -> dict[str, dict[str, Any]]:
    """Return the output of each code cell's last line by kind (text, HTML)."""
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


def test_reports_have_an_html_view(shown: dict[str, dict[str, Any]]) -> None:
    assert "head.memory" in html_of(shown, "composer.diff(")
    assert "Why this form:" in html_of(shown, "costs")
    assert "def head(" in html_of(shown, "composer.code(")
    assert "fresh.safetensors" in html_of(shown, "built")
    assert "Once upon a time" in html_of(shown, 'composer.generate("distilled"')
    assert "matches its record" in html_of(shown, 'composer.verify("whole")')
    tables = [line for line, data in shown.items() if "<table>" in data.get("text/html", "")]
    assert len(tables) >= 9


def test_distillation_lowers_the_errors_and_the_loss(shown: dict[str, dict[str, Any]], work: Path) -> None:
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


def test_saved_and_loaded_models_are_equal(shown: dict[str, dict[str, Any]], work: Path) -> None:
    assert shown['same, composer.verify("shared").ok']["text/plain"] == "(True, True)"
    assert composer.verify(work / "shared").ok


@pytest.fixture(scope="module")
def kept() -> Any:
    """Return the notebook as it is in the repository."""
    book: Any = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(book)
    return book


def repetitions(data: dict[str, Any]) -> int:
    """Return how often a generated text has its most frequent sentence."""
    return max(Counter(re.split(r"[.\n]\s*", data["text/plain"])).values())


def text_of(results: dict[str, dict[str, Any]], model: str) -> dict[str, Any]:
    return next(data for line, data in results.items() if line.startswith(f"composer.generate({model}, story"))


def test_the_untrained_model_repeats_words_and_the_trained_model_writes_a_story(
    shown: dict[str, dict[str, Any]], kept: Any
) -> None:
    results = results_of(kept)
    for run_of_now in (results, shown):
        assert repetitions(text_of(run_of_now, '"built"')) > 5
        assert repetitions(text_of(run_of_now, "TEACHER")) < 3
    assert repetitions(text_of(results, '"distilled"')) < 4


def test_notebook_outputs_match_their_cells_and_contain_no_machine_paths(shown: dict[str, dict[str, Any]], kept: Any) -> None:
    """They have the kinds of a new run, and the cell about times has none."""
    results = results_of(kept)
    assert results.keys() == {line for wanted in (shown,) for line in wanted}
    for line, data in results.items():
        assert data.keys() == ({} if line == "times" else shown[line]).keys(), f"{line}: run `make notebook`"
    as_cleaned = nbformat.from_dict(kept)
    clean(as_cleaned, Path("/nowhere"))
    assert as_cleaned == kept, "run `make notebook`"
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert not re.search(r"/tmp/|/home/|/work/|/root/", text)
