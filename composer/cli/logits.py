"""``compose logits``."""

from __future__ import annotations

from dataclasses import replace

from composer.cli.bars import at_once
from composer.cli.derived import Screen, command
from composer.cli.screen import print_json, print_view
from composer.commands.logits import LogitsCommandOptions, run_logits


@command(LogitsCommandOptions, "quiet", "as_json")
def logits(options: LogitsCommandOptions, screen: Screen) -> None:
    at_once(f"Reading {options.teacher}", quiet=screen.hides_progress)
    written = run_logits(replace(options, progress=not screen.hides_progress))
    if screen.as_json:
        print_json(written.model_dump(mode="json"))
    else:
        print_view(written.view(), wrap=False)
