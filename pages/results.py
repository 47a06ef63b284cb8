"""Writes docs/reference/json.md: every JSON that a command prints or writes, with the fields of its schema. ``make docs``."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
from pydantic import BaseModel

from blocks.part import field_docs
from composer.ablation.report import AblationReport
from composer.benching.report import BenchReport
from composer.building.folder import BuildReport
from composer.commands.distill import MergeReport
from composer.commands.export import ExportReport
from composer.commands.generate import Generated
from composer.commands.read import ReadText
from composer.commands.sample import Sampled
from composer.evaluation.cells import CellKey, SampleResult
from composer.evaluation.report import EvaluationReport, HarnessResult
from composer.exporting.folder import ExportRecord
from composer.inspection.findings import Findings
from composer.inspection.folder import OF_A_HEAD, SUMMARY
from composer.publishing.push import PushReport
from composer.selection.report import HeadSelection, Selection
from composer.spec.explained import Explanation
from composer.spec.resolve import Resolved
from composer.training.logits_writing import WrittenLogits
from composer.training.run import TrainingReport
from composer.training.stored_logits import LogitsRecord
from composer.training.tracking import TrackedRun
from composer.weights.record import Record
from composer.weights.sources import Manifest
from composer.weights.verify import VerifyReport

PRINTED: dict[str, tuple[str, type[BaseModel] | tuple[str, ...] | None]] = {
    "ablate": ("", AblationReport),
    "bench": ("", BenchReport),
    "build": ("", BuildReport),
    "calibrate": ("", TrainingReport),
    "check": ("a list, one per spec or variant", ("spec", "ok", "says", "hash", "mistakes", "notes")),
    "diff": ("", ("specs", "same", "hashes", "differences")),
    "distill": ("", TrainingReport),
    "eval": ("", EvaluationReport),
    "explain": ("", Explanation),
    "export": ("", ExportReport),
    "generate": ("", Generated),
    "inspect": ("", Findings),
    "logits": ("", WrittenLogits),
    "merge": ("", MergeReport),
    "parts": ("a list, one per part", ("role", "kind", "description", "equation", "source", "fields")),
    "push": ("", PushReport),
    "read": ("", ReadText),
    "sample": ("", Sampled),
    "select": ("and `rules`, the `layers` of its `document`", Selection),
    "select --heads": ("the same of key heads:", HeadSelection),
    "show": ("the spec; with `--from` or `--fresh` the resolved document, and its `hash`; without SPEC, purposes by name", None),
    "tasks": ("a list, one per task", ("name", "scored", "description", "source", "options")),
    "train": ("", TrainingReport),
    "verify": ("and `ok`", VerifyReport),
}
"""Commands with --json: a remark, and its schema, or the keys if it has none."""
KEY = ", ".join(f"`{key}`" for key in CellKey._fields)
WRITTEN: dict[str, tuple[str, type[BaseModel] | None]] = {
    "`composition.json` of a model": ("its origin and meaning:", Record),
    "`unpacked.json` of the cache": ("the quantised files and the unpacked ones:", Manifest),
    "`config.json` of a model": ("transformers' config, with `spec`, the resolved document, and `spec_hash`", None),
    "`export.json` of `export`": ("where it comes from:", ExportRecord),
    "`results.json` of `eval`": ("", EvaluationReport),
    "`run.json` of `eval`": ("its `setting`", None),
    "`samples.jsonl` of `eval`": (f"a line per sample: {KEY}, and the fields of", SampleResult),
    "`lm-eval.jsonl` of `eval`": ("a line per model:", HarnessResult),
    "`bench.json` of `bench`": ("", BenchReport),
    "`logits.json` of `logits`": ("", LogitsRecord),
    "`report.json` of `ablate`": ("", AblationReport),
    "`selection.json` of `select`": ("and `rules`, the `layers` of its `document`; no `out`", Selection),
    "`selection.json` of `select --heads`": ("the same of key heads:", HeadSelection),
    "`heads.json` of `select --heads`": ("the settings that must not change when a run continues", None),
    f"`{SUMMARY}` of `inspect`": (
        f"and the `pictures`' names; of `heads` only {', '.join(f'`{key}`' for key in OF_A_HEAD)}",
        Findings,
    ),
    "`PICTURE.json` of `inspect`": ("the numbers of the picture, see [inspect.md](../inspect.md#what-is-on-the-page)", None),
    "`run.json` of a training": ("the settings that must not change when a run continues", None),
    "`tracked.json` of a training with `--track`": ("", TrackedRun),
    "`log.jsonl` of a training": ("a line per step or evaluation: `stage`, `step`, and its figures", None),
}
"""Files that commands write."""
ELSEWHERE = (Resolved,)
"""Documents of specs, which docs/spec.md describes: their parts are not listed here."""
INTRODUCTION = """\
# JSON

The JSON that commands print with `--json` and write to files, with the fields of each schema. `make docs` writes this page from the
schemas, which refuse unknown fields.

Losses are `nats`: the mean of −ln p per token; `perplexity` is exp of that. Shares are 0 to 1, sizes bytes, times seconds. An
`array` is nested lists, with null for no number. Texts have `\\u` escapes for control characters, invisible characters and those
that change the direction of text. Messages and tables escape them, too. Documents (the text of `generate`, the YAML of `show`, the
SVG of `draw`) are escaped on a terminal only.

| exit code | |
|---|---|
| 0 | success. A pipe that closes early (`compose show lolcats \\| head -1`) does not change it |
| 1 | `verify` found a mismatch, or a variant of `ablate` failed |
| 2 | a mistake, or output that cannot be written |
| 130 | Ctrl-C |

A mistake is printed to stderr as text, and with `--json` also to stdout as `{"mistakes": […]}`, each with `message` and, if known,
`file`, `line`, `column` (from 1) and `path`, such as `head.memory[0].size`. `compose check --json` has those of each spec in its
answers.
"""


def page() -> str:
    """Return the page."""
    schemas: dict[str, type[BaseModel]] = {}
    lines = [INTRODUCTION, "## Printed\n", "| command | JSON |", "|---|---|"]
    for command, (words, shape) in PRINTED.items():
        lines.append(f"| `{command} --json` | {_describe(words, shape, schemas)} |")
    lines += ["\n## Written\n", "| file | JSON |", "|---|---|"]
    for file, (words, shape) in WRITTEN.items():
        lines.append(f"| {file} | {_describe(words, shape, schemas)} |")
    for name, schema in schemas.items():
        lines += [f"\n## {name}\n", _plain(inspect.getdoc(schema) or ""), "\n| field | | |", "|---|---|---|"]
        for field, info in ((field, info) for field, info in schema.model_fields.items() if not info.exclude):
            lines.append(f"| `{field}` | {_type(info.annotation)} | {_plain(field_docs(schema).get(field, ''))} |")
    return "\n".join(lines) + "\n"


def _describe(words: str, shape: type[BaseModel] | tuple[str, ...] | None, schemas: dict[str, type[BaseModel]]) -> str:
    """Return the JSON of a command or file in words, with a link to its schema. schemas: receives those that it contains."""
    if shape is None:
        return words
    if isinstance(shape, tuple):
        return ": ".join(filter(None, (words, ", ".join(f"`{key}`" for key in shape))))
    schemas |= {schema.__name__: schema for schema in _inside(shape)}
    link = f"[{shape.__name__}](#{shape.__name__.lower()})"
    return f"{link}, {words}" if words.startswith("and ") else " ".join(filter(None, (words, link)))


def _inside(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield a schema, and those of its fields, each after the one that contains it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if annotation in ELSEWHERE:
            return
        yield annotation
        for field in annotation.model_fields.values():
            yield from _inside(field.annotation)
        return
    for argument in get_args(annotation):
        yield from _inside(argument)


def _type(annotation: Any) -> str:
    """Return a type as Python writes it, without modules, and with JSON's null. Bounds of values are left out."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(inside[0])
    if origin in (Union, UnionType):
        return r" \| ".join(map(_type, inside))
    if origin is Literal:
        return r" \| ".join(json.dumps(choice) for choice in inside)
    if origin not in (None, np.ndarray):
        return f"{origin.__name__}[{', '.join(map(_type, inside))}]"
    if annotation is Ellipsis:
        return "..."
    plain = origin or annotation
    return {type(None): "null", Path: "str", np.ndarray: "array"}.get(plain) or getattr(plain, "__name__", str(plain))


def _plain(text: str) -> str:
    return " ".join(text.replace("``", "`").split()).replace("|", r"\|")
