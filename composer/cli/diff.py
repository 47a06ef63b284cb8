"""``compose diff``."""

from __future__ import annotations

from composer.cli.derived import Screen, command
from composer.cli.screen import heading, print_json, print_table, say
from composer.commands import specs
from composer.commands.specs import DiffOptions
from composer.spec.inherit import shown
from composer.spec.places import dotted


@command(DiffOptions, "as_json")
def diff(options: DiffOptions, screen: Screen) -> None:
    found = specs.run_diff(options)
    if screen.as_json:
        rows = [row.model_dump(mode="json") | {"path": dotted(row.path)} for row in found.differences]
        print_json({"specs": found.specs, "same": found.same, "hashes": found.hashes, "differences": rows})
        return
    if rows := found.rows():
        heading(found.title)
        print_table(rows)
    for line in (*found.summary(), *([] if options.draw is None else [f"Picture: {shown(options.draw)}"])):
        say(line)
