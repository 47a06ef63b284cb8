"""``compose read``."""

from __future__ import annotations

from dataclasses import replace

from composer.cli.bars import at_once
from composer.cli.derived import Screen, command
from composer.cli.screen import print_report
from composer.commands.read import ReadOptions, run_read


@command(ReadOptions, "quiet", "as_json")
def read(options: ReadOptions, screen: Screen) -> None:
    at_once(f"Reading {options.model}", quiet=screen.hides_progress)
    report = run_read(replace(options, progress=not screen.hides_progress))
    print_report(report, as_json=screen.as_json)
