"""``compose select``."""

from __future__ import annotations

from dataclasses import replace

from composer.cli.bars import training_steps
from composer.cli.derived import Screen, command
from composer.cli.screen import heading, print_json, print_view
from composer.commands.select import SelectOptions, run_select
from composer.selection.report import Selection


@command(SelectOptions, "quiet", "as_json")
def select(options: SelectOptions, screen: Screen) -> None:
    with training_steps(quiet=screen.quiet, visible=not screen.as_json) as watch:
        report = run_select(replace(options, progress=watch or False))
    if screen.as_json:
        print_json(report.model_dump(mode="json"))
        return
    print_view(report.view(), wrap=False)
    kept = report.keep if isinstance(report, Selection) else [f"{some.layer}.{head}" for some in report.keep for head in some.heads]
    heading(f"Kept: {', '.join(map(str, kept))}")
