"""What follows from the kept results of `make gpu-speed`: the tables of docs/measurements.md, and composer/graph/measured.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_rows import path_of, read_rows
from benchmarks.harness import RESULTS

ROOT = Path(__file__).parents[1]
MEASUREMENTS = ROOT / "docs" / "measurements.md"
BEGIN, END = "<!-- tables of benchmarks/results -->\n", "<!-- end of the tables -->\n"
WORTH, AT = 1.2, 8192
"""The speed against the best alternative that an own kernel must have, and the tokens at which it must."""
CLOSE = 5e-2
"""The largest difference between outputs, relative to the largest number, with which figures are compared."""
Row = dict[str, Any]


def measurements(text: str, results: Path = RESULTS) -> str:
    """Return the page with the tables of the kept results; the rest is unchanged."""
    before, begin, tail = text.partition(BEGIN)
    _, end, after = tail.partition(END)
    assert begin, "docs/measurements.md has lost the line where the tables of a GPU begin"
    assert end, "docs/measurements.md has lost the line where the tables of a GPU end"
    return before + begin + "".join(format_sections(results)) + end + after


def format_sections(results: Path) -> Iterator[str]:
    """Yield the section of each table, or a sentence that it was not measured."""
    for table, (title, format_table) in SECTIONS.items():
        path = path_of(table, results)
        rows = read_rows(path)
        if rows:
            yield f"\n### {title}\n\n{describe_machines(rows)}\n\n{format_table(rows)}"
        else:
            yield f"\n{title}: not measured yet. There is no `{path.name}`.\n"
    yield "\n"


def describe_machines(rows: Sequence[Row]) -> str:
    """Return the devices and versions that rows were measured with, in words."""
    machines = {}
    for row in rows:
        about = row["about"]
        versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
        machines[f"{about['device']}, Python {about['python']}, {versions}{', tuned' if about['tuned'] else ''}."] = None
    return "\n".join(machines)


def build_table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, ["---"] * len(header), *lines))


def get_least(figures: Row | None, name: str) -> float | None:
    """Return the least seconds of a run; None if it failed or was not timed."""
    return (figures or {}).get(name, {}).get("least")


def format_kernels(rows: Sequence[Row]) -> str:
    """Return the table of kernels, and that of the rule for them."""
    header = ["row", "kernel, ms", "alternatives, their time over it", "head, ms", "other heads, their time over it", "apart"]
    return build_table(header, map(_format_kernel, rows)) + "\n" + build_table(
        ["kernel", "size", "call", "speed against the best alternative", ""], list_verdicts(rows)
    )  # fmt: skip


def _format_kernel(row: Row) -> list[str]:
    if "failure" in row:
        return [row["row"], row["failure"], "", "", "", ""]
    cells = [row["row"]]
    for kind in ("kernel", "head"):
        figures = row.get(kind, {})
        own = get_least(figures, "own")
        others = [f"{name} {_compare(figures, name, own)}" for name in figures if name != "own"]
        cells += [format_ms(own) or figures.get("own", {}).get("failure", ""), ", ".join(others)]
    return [*cells, f"{max(row['apart'].values(), default=0.0):.0e}"]


def _compare(figures: Row, name: str, own: float | None) -> str:
    return figures[name].get("failure") or format_ratio(get_least(figures, name), own)


def list_verdicts(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Yield each kernel's speed against its best alternative at 8,192 tokens and in decode, and whether that suffices."""
    for row in rows:
        speed = find_speed(row)
        if speed is not None and (row["tokens"] == AT or row["call"] == "decode"):
            call = f"{row['call']}, batch {row['batch']}" if row["call"] == "decode" else row["call"]
            yield [row["row"].partition(" ")[0], row["size"], call, f"{speed:.2f}", "" if speed >= WORTH else f"below {WORTH}"]


def find_speed(row: Row) -> float | None:
    """Return the least time of the alternatives that compute the same over the own time; None if one of them is missing."""
    if "failure" in row or max(row["apart"].values(), default=0.0) > CLOSE:
        return None
    ratios = []
    for kind in ("kernel", "head"):
        figures = row.get(kind, {})
        own = get_least(figures, "own")
        names = [name for name in figures if name in row["apart"]]
        ratios += [least / own for name in names if own and (least := get_least(figures, name))]
    return min(ratios, default=None)


def format_calls(rows: Sequence[Row]) -> str:
    """Return the table of calls of fla's operations."""

    def format_row(row: Row) -> list[str]:
        if "failure" in row:
            return [row["row"], row["failure"], "", ""]
        over = [_overhead(row, figure) for figure in ("least", "launch")]
        return [row["row"], format_ms(get_least(row, "form")) or row["form"].get("failure", ""), *over]

    return build_table(["row", "form, ms", "overhead on the GPU", "overhead of the launch"], map(format_row, rows))


def _overhead(row: Row, figure: str) -> str:
    form, by_hand = row["form"].get(figure), row["by hand"].get(figure)
    return f"{100 * (form / by_hand - 1):+.0f} %" if form and by_hand else row["by hand"].get("failure", "")


def format_models(rows: Sequence[Row]) -> str:
    """Return a table with a line for each workload and a column for each model."""
    measured = {(row["row"].partition(" ")[2], row["row"].partition(" ")[0]): row for row in rows}
    workloads, models = ([*dict.fromkeys(key[place] for key in measured)] for place in (0, 1))

    def format_cell(workload: str, model: str) -> str:
        row, teacher = measured.get((workload, model)), measured.get((workload, "teacher"))
        if row is None or (seconds := get_least(row, "seconds")) is None:
            return "" if row is None else row.get("failure") or row["seconds"]["failure"]
        count = row["batch"] * (row["tokens"] if row["kind"] == "prefill" else 1)
        ratio = format_ratio(get_least(teacher, "seconds"), seconds)
        peak = "" if row["peak_bytes"] is None else f", {row['peak_bytes'] / 1e6:,.0f} MB"
        graph = "" if row["kind"] == "prefill" or row["replayed"] else ", no graph"
        return f"{count / seconds:,.0f} tokens/s{', ' + ratio + '×' if ratio else ''}{peak}{graph}"

    lines = [[workload, *(format_cell(workload, model) for model in models)] for workload in workloads]
    return build_table(["", *models], lines)


def format_training(rows: Sequence[Row]) -> str:
    """Return the table of training."""
    seconds = {row["row"]: get_least(row, "seconds") for row in rows}
    bases = {"transfer": "forward", "lora": "lora teacher (PEFT)"}

    def format_row(row: Row) -> list[str]:
        least = seconds[row["row"]]
        if least is None:
            return [row["row"], row.get("failure") or row["seconds"]["failure"], "", ""]
        over = format_ratio(least, seconds.get(bases.get(row["row"].partition(" ")[0], "")))
        peak = f"{row['peak_bytes'] / 1e6:,.0f}" if "peak_bytes" in row else ""
        return [row["row"], f"{row['tokens'] / least:,.0f}", over, peak]

    return build_table(["run", "tokens/s", "time over the forward pass, or over PEFT's LoRA", "peak MB"], map(format_row, rows))


SECTIONS = {
    "kernels": ("This project's kernels", format_kernels),
    "calls": ("Calls of fla's operations", format_calls),
    "models": ("Whole models", format_models),
    "training": ("Training", format_training),
}


def build_measured_forms(results: Path = RESULTS) -> str:
    """Return the contents of composer/graph/measured.json: forms at 8,192 tokens and in decode, by device and size of the heads. Of
    several batches the smallest speed counts.
    """
    speeds: dict[tuple[Any, ...], float] = {}
    for row in read_rows(path_of("kernels", results)):
        own, without = (get_least(row.get("head"), name) for name in ("own", "without it"))
        decode = row.get("call") == "decode"
        if own and without and row["apart"]["without it"] <= CLOSE and (decode or row["tokens"] == AT):
            gradients = row["call"] == "with backward"
            key = row["form"], row["about"]["device"], row["head_dim"], row["tokens"], decode, gradients
            speeds[key] = min(round(without / own, 2), speeds.get(key, float("inf")))
    names = ("form", "device", "head_dim", "tokens", "one_token", "gradients")
    rows = [dict(zip(names, key, strict=True), speed=speed) for key, speed in speeds.items()]
    return json.dumps({"rows": rows}, indent=1, ensure_ascii=False) + "\n"


def format_ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3f}"


def format_ratio(numerator: float | None, denominator: float | None) -> str:
    return "" if numerator is None or denominator is None else f"{numerator / denominator:.2f}"
