"""``compose parts``."""

from __future__ import annotations

from collections.abc import Sequence

from composer.cli.derived import Screen, command
from composer.cli.screen import heading, print_json, print_table, say
from composer.commands.parts import PartFacts, PartsOptions, run_parts


@command(PartsOptions, "as_json")
def parts(options: PartsOptions, screen: Screen) -> None:
    report = run_parts(options)
    if screen.as_json:
        print_json([part.model_dump(mode="json") for part in report.parts])
    elif options.name is None:
        _print_list(report.parts)
        say("\nFields, defaults and sources of one: compose parts NAME")
    else:
        for index, part in enumerate(report.parts):
            if index:
                say()
            _print_part(part)


def _print_list(parts: Sequence[PartFacts]) -> None:
    for index, role in enumerate(dict.fromkeys(part.role for part in parts)):
        if index:
            say()
        heading(role)
        print_table([(part.kind, part.equation) for part in parts if part.role == role])


def _print_part(part: PartFacts) -> None:
    heading(f"{part.kind} ({part.role})")
    print_table([(paragraph,) for paragraph in part.description.split("\n\n")])
    print_table([("equation", part.equation), ("source", part.source)])
    for field in part.fields:
        say(f"\n  {field.name}: {field.default_text}")
        print_table([(field.type,), *([(field.description,)] if field.description else [])], indent=6)
