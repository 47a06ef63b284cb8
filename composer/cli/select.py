"""``compose select``."""

from __future__ import annotations

from dataclasses import replace

from composer.cli.bars import training_steps
from composer.cli.derived import Screen, command
from composer.cli.screen import heading, print_json, print_table, say
from composer.commands import selection
from composer.commands.selection import SelectOptions
from composer.selection.report import remarks, table


@command(SelectOptions, "quiet", "as_json")
def select(options: SelectOptions, screen: Screen) -> None:
    with training_steps(quiet=screen.quiet, visible=not screen.as_json) as watch:
        report = selection.run_select(replace(options, progress=watch or False))
    if screen.as_json:
        print_json(report.model_dump(mode="json"))
        return
    scores = table(report)
    print_table(scores.rows, headers=scores.headers, right=scores.figures, wrap=False)
    for remark in remarks(report):
        say(remark)
    heading(f"Kept: {', '.join(map(str, report.keep))}")
