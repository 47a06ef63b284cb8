"""The tables of docs/measurements.md that follow from files of benchmarks/results: what was measured on a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MEASUREMENTS = ROOT / "docs" / "measurements.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- tables of benchmarks/results -->\n", "<!-- end of the tables -->\n"
MODELS = ("llama-3.2-1b", "llama-3.1-8b")
Result = dict[str, Any]


def measurements(text: str, results: Path = RESULTS) -> str:
    """Return the page with the tables of those files that exist; the rest is unchanged."""
    before, begin, tail = text.partition(BEGIN)
    _, end, after = tail.partition(END)
    assert begin, "docs/measurements.md has lost the line where the tables of a GPU begin"
    assert end, "docs/measurements.md has lost the line where the tables of a GPU end"
    return before + begin + "".join(sections(results)) + end + after


def sections(results: Path) -> Iterable[str]:
    """Return the contents of each file, or that it is missing."""
    files = {"forms_cuda": forms, "own_kernels_cuda": heads, **{f"whole_models_{size}_cuda": models for size in MODELS}}
    for name, format_result in files.items():
        path = results / f"{name}.json"
        if path.exists():
            result = json.loads(path.read_text(encoding="utf-8"))
            yield f"\n### `{path.name}`\n\n{machine(result)}\n\n{format_result(result)}\n{aims(result)}"
        else:
            yield f"\nThere is no `{path.name}`: it has not been run.\n"
    yield "\n"


def machine(result: Result) -> str:
    """Return the device, the dtype and the versions of a run, in words."""
    about = result["about"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    return f"{about['device']}, {about['dtype']}, Python {about['python']}, {versions}."


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, ["---"] * len(header), *lines))


def forms(result: Result) -> str:
    """Return the tables of ``benchmarks/forms.py``."""

    def line(row: Result) -> list[str]:
        label = [row["form"], f"{row['tokens']:,}", "yes" if row["backward"] else ""]
        if row["failure"] is not None:
            return [*label, row["failure"], "", ""]
        least = {name: times["least"] if times else None for name, times in row["seconds"].items()}
        return [*label, ms(least["form"]), ratio(least["form"], least["by hand"]), ratio(least["attention"], least["form"])]

    header = ["form", "tokens", "with backward", "ms", "over fla by hand", "attention over it"]
    return table(header, map(line, result["rows"])) + "\n" + errors((row["form"], row) for row in result["errors"])


def heads(result: Result) -> str:
    """Return the tables of ``benchmarks/own_kernels.py``."""

    def line(name: str, row: Result) -> list[str]:
        least = {kind: row[kind]["least"] if row.get(kind) else None for kind in ("triton", "torch", "fla", "softmax")}
        own = least["triton"]
        if own is None:
            return [name, row.get("failure", "out of memory"), "", "", ""]
        return [name, ms(own), *(ratio(least[kind], own) for kind in ("torch", "fla", "softmax"))]

    lines = [line(name, row) for name, row in result["rows"].items()]
    return table(["", "own, ms", "torch / own", "fla / own", "softmax / own"], lines) + "\n" + errors(result["errors"].items())


def models(result: Result) -> str:
    """Return the table of ``benchmarks/whole_models.py``."""
    from benchmarks.whole_models import format_columns

    return table(*format_columns(result["rows"]))


def errors(rows: Iterable[tuple[str, Result]]) -> str:
    lines = [[name, f"{row['error']:.1e}", "yes" if row["finite"] else "no"] for name, row in rows]
    return table(["", "error against float64", "finite far out"], lines)


def aims(result: Result) -> str:
    """Return a table of the goals, and whether each is met."""
    lines = [
        [goal["goal"], "" if goal["found"] is None else f"{goal['found']:.3g}", f"{goal['way']} {goal['bound']:g}", goal["verdict"]]
        for goal in result["goals"]
    ]
    return "\n" + table(["goal", "found", "goal", ""], lines)


def ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3f}"


def ratio(numerator: float | None, denominator: float | None) -> str:
    return "" if numerator is None or denominator is None else f"{numerator / denominator:.2f}"
