"""``compose export``."""

from __future__ import annotations

from composer.cli.bars import at_once
from composer.cli.derived import Screen, command
from composer.cli.screen import print_report
from composer.commands.export import ExportOptions, run_export


@command(ExportOptions, "quiet", "as_json")
def export(options: ExportOptions, screen: Screen) -> None:
    at_once(f"Exporting {options.model}", quiet=screen.hides_progress)
    report = run_export(options)
    print_report(report, as_json=screen.as_json)
