"""``compose export``."""

from __future__ import annotations

from composer.cli.bars import at_once
from composer.cli.derived import Screen, command
from composer.cli.screen import heading, print_json, say
from composer.commands import exporting
from composer.commands.exporting import ExportOptions
from composer.spec.inherit import shown


@command(ExportOptions, "quiet", "as_json")
def export(options: ExportOptions, screen: Screen) -> None:
    at_once(f"Exporting {options.model}", quiet=screen.hides_progress)
    report = exporting.run_export(options)
    if screen.as_json:
        print_json(report.model_dump(mode="json"))
        return
    heading(f"Exported {shown(report.out)}")
    for remark in report.remarks:
        say(f"  {remark}")
