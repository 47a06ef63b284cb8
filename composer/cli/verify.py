"""``compose verify``."""

from __future__ import annotations

from dataclasses import replace

import typer

from composer.cli.derived import Screen, command
from composer.cli.screen import heading, print_json, print_table, say
from composer.commands.verify import VerifyOptions, run_verify

MISMATCH = 1


@command(VerifyOptions, "quiet", "as_json")
def verify(options: VerifyOptions, screen: Screen) -> None:
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
