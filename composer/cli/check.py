"""``compose check``."""

from __future__ import annotations

from dataclasses import replace

import typer

from composer.cli.derived import Screen, command
from composer.cli.screen import print_json, print_table, say
from composer.commands.check import CheckOptions, CheckReport, run_check
from composer.errors import ComposerError, mistakes_of

MISTAKE = 2


@command(CheckOptions, "quiet", "as_json")
def check(options: CheckOptions, screen: Screen) -> None:
    try:
        report = run_check(options)
    except ComposerError as error:
        if not screen.as_json:
            raise
        report = without_source(run_check(replace(options, source=None, revision=None)), error)
        say(str(error), err=True)
    if screen.as_json:
        print_json([check.model_dump(mode="json") for check in report.checks])
    else:
        _print(report, quiet=screen.quiet)
    if not report.ok:
        raise typer.Exit(MISTAKE)


def without_source(report: CheckReport, error: ComposerError) -> CheckReport:
    """Add the mistake that the source cannot be read to each spec of a report."""
    return report.model_copy(
        update={
            "checks": tuple(
                check.model_copy(update={"ok": False, "says": "", "hash": None, "mistakes": (*check.mistakes, *mistakes_of(error))})
                for check in report.checks
            )
        }
    )


def _print(report: CheckReport, *, quiet: bool) -> None:
    if (rows := report.rows()) and not quiet:
        print_table(rows, indent=0, wrap=False)
    for line in report.mistakes if quiet else report.summary():
        say(line, err=not report.ok)
