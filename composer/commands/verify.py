"""``verify``: whether a built model still matches its record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import typer

from composer.errors import ComposerError, translate_errors
from composer.options.classes import argument, function_of, option, options_class
from composer.options.command import Screen, command
from composer.options.shared import ON_HUB, PROGRESS, PartsOption, to_text
from composer.reporting.progress import BarUpdate, progress_callback, silent_transformers
from composer.reporting.terminal import heading, print_json, print_table, say
from composer.vllm import problem_of_vllm
from composer.weights.sources import local_folder
from composer.weights.verify import VerifyReport
from converters.composed import EXPORT


@options_class
class VerifyOptions(PartsOption):
    """Check a built or exported model against its record.

    Spec, config, coverage, shapes, hashes of all files, finite values. Of an export: hashes of all files, its Python file, and its
    logits against those of the model. The exit code is 1 where something does not match. Whoever changes a folder can change its
    record, too: compare the record's SHA-256 with the hash that its author published.
    """

    example: ClassVar[str] = 'assert composer.verify("lawcat-mine").ok'
    model: str = argument(f"A folder that `compose build` or `compose export` wrote, {ON_HUB}.", converter=to_text)
    served: bool = option(
        "Serve it by vLLM in this process, too, and compare greedy text and log-probabilities with `generate`, in float32.",
        default=False,
    )
    progress: bool | Callable[[str, int, int], None] = option(PROGRESS, default=False, is_checked=False, is_hidden=True)


@translate_errors
def run_verify(options: VerifyOptions) -> VerifyReport:
    folder = local_folder(options.model, all_files=True)
    if options.served and (problem := problem_of_vllm()):
        raise ComposerError(problem)
    report = _against_record(folder, options)
    if not options.served:
        return report
    with silent_transformers():
        from composer.vllm.check import check_served

        return report.model_copy(update={"checks": report.checks + check_served(folder)})


def _against_record(folder: Path, options: VerifyOptions) -> VerifyReport:
    if (folder / EXPORT).is_file():
        with silent_transformers():
            from composer.exporting.verify import verify_export

            return verify_export(folder)
    from composer.weights.verify import verify as checks_of

    with progress_callback(options.progress, bar_of, "name", "bar", "bytes", "speed") as watch:
        return checks_of(folder, watch)


verify = function_of(VerifyOptions, run_verify)


def bar_of(name: str, done: int, total: int) -> BarUpdate:
    """Return the progress of reading a file, as a bar shows it."""
    return BarUpdate(f"reading {name}", done, total)


MISMATCH = 1


@command(VerifyOptions, "quiet", "as_json")
def verify_command(options: VerifyOptions, screen: Screen) -> None:
    report = run_verify(replace(options, progress=not screen.quiet))
    if screen.as_json:
        print_json({**report.model_dump(mode="json"), "ok": report.ok})
    else:
        table = report.table
        print_table(table.rows, headers=table.headers, indent=0)
        say()
        say(f"Record: SHA-256 {report.record_sha256}")
        heading(report.verdict(options.model))
    if not report.ok:
        raise typer.Exit(MISMATCH)
