"""``compose new`` and ``compose schema``."""

from __future__ import annotations

from composer.cli.derived import Screen, command
from composer.cli.screen import print_json, say
from composer.commands import starting
from composer.commands.starting import NewOptions, SchemaOptions


@command(NewOptions)
def new(options: NewOptions, screen: Screen) -> None:
    path = starting.run_new(options)
    say(f"Wrote {path}. Next: compose check {path}")


@command(SchemaOptions)
def schema(options: SchemaOptions, screen: Screen) -> None:
    print_json(starting.run_schema(options))
