"""``compose push``."""

from __future__ import annotations

from dataclasses import replace

from composer.cli.bars import at_once
from composer.cli.derived import Screen, command
from composer.cli.screen import print_report
from composer.commands.push import PushOptions, run_push
from composer.progress import on_terminal


@command(PushOptions, "quiet", "as_json")
def push(options: PushOptions, screen: Screen) -> None:
    at_once(f"Reading {options.pushed}", quiet=screen.hides_progress)
    report = run_push(replace(options, progress=not screen.hides_progress and on_terminal()))
    print_report(report, as_json=screen.as_json)
