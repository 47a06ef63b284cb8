"""``compose verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import composer
from composer.cli.options import Json, Quiet
from composer.cli.screen import heading, print_json, print_table, say

MISMATCH = 1


def verify(
    model: Annotated[Path, typer.Argument(help="A folder that `compose build` has written.")],
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Check a built model against its record.

    Spec, config, coverage, shapes, hashes of all files, finite values. The exit code is 1 where something does not match.
    Whoever changes a folder can change its record, too: compare the record's SHA-256 with the one that its author published.
    """
    report = composer.verify(model, progress=not quiet)
    if as_json:
        print_json({**report.model_dump(mode="json"), "ok": report.ok})
    else:
        table = report.table
        print_table(table.rows, headers=table.headers, indent=0)
        say()
        say(f"Record: SHA-256 {report.record_sha256}")
        heading(report.verdict(str(model)))
    if not report.ok:
        raise typer.Exit(MISMATCH)
