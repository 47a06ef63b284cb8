"""``compose diff``."""

from __future__ import annotations

from composer.cli.derived import Screen, command
from composer.cli.screen import heading, print_json, print_table, say
from composer.commands.diff import DiffOptions, run_diff
from composer.spec.inherit import short_path
from composer.spec.places import join_path


@command(DiffOptions, "as_json")
def diff(options: DiffOptions, screen: Screen) -> None:
    report = run_diff(options)
    if screen.as_json:
        rows = [row.model_dump(mode="json") | {"path": join_path(row.path)} for row in report.differences]
        print_json({"specs": report.specs, "same": report.same, "hashes": report.hashes, "differences": rows})
        return
    if rows := report.rows():
        heading(report.title)
        print_table(rows)
    for line in (*report.summary(), *([] if options.draw is None else [f"Picture: {short_path(options.draw)}"])):
        say(line)
