"""``compose verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from composer.cli.bars import file_bars
from composer.cli.options import Json, Quiet
from composer.cli.screen import heading, plural, print_json, print_table, short_hashes

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
    from composer.weights.verify import verify as checks_of

    with file_bars("reading", quiet=quiet) as moved:
        report = checks_of(model, moved)
    if as_json:
        print_json({**report.model_dump(mode="json"), "ok": report.ok})
    else:
        rows = [(check.outcome, check.what, check.subject, short_hashes(check.detail)) for check in report.checks]
        print_table(rows, headers=("outcome", "what", "of", ""), indent=0)
        typer.echo()
        unchecked = f"; {len(report.unchecked)} could not be checked" if report.unchecked else ""
        good = f"{model} is what its record says{unchecked}"
        typer.echo(f"Record: SHA-256 {report.record_sha256}")
        heading(
            good if report.ok else f"{model} does not match its record: {plural(len(report.failed), 'check')} failed{unchecked}"
        )
    if not report.ok:
        raise typer.Exit(MISMATCH)
