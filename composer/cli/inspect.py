"""``compose inspect``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from composer.cli.derived import Screen, command
from composer.cli.screen import print_json, print_view, say
from composer.commands.inspect import InspectCommandOptions, run_inspect
from composer.errors import InspectionError
from composer.files import MOST_TEXT, read_text_file
from composer.spec.inherit import short_path


@command(InspectCommandOptions, "quiet", "as_json")
def inspect(options: InspectCommandOptions, screen: Screen) -> None:
    if options.text is not None:
        options = replace(options, text=read_text_file(Path(options.text), InspectionError, MOST_TEXT))
    findings = run_inspect(replace(options, progress=False if screen.hides_progress else lambda group: say(group, err=True)))
    if screen.as_json:
        from composer.inspection.findings import plain

        print_json(plain(findings))
        return
    print_view(findings.view(), wrap=False)
    if options.out is not None:
        say(f"\nThe page, pictures and numbers: {short_path(options.out)}/report.html")
