"""``compose new`` and ``compose schema``."""

from __future__ import annotations

from composer.cli.derived import Screen, command
from composer.cli.screen import print_json, say
from composer.commands.new import NewOptions, SchemaOptions, run_new, run_schema


@command(NewOptions)
def new(options: NewOptions, screen: Screen) -> None:
    path = run_new(options)
    say(f"Wrote {path}. Next: compose check {path}")


@command(SchemaOptions)
def schema(options: SchemaOptions, screen: Screen) -> None:
    print_json(run_schema(options))
