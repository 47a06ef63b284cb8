"""``compose lock``."""

from __future__ import annotations

from composer.cli.bars import at_once
from composer.cli.derived import Screen, command
from composer.cli.screen import print_report
from composer.commands.lock import LockOptions, run_lock


@command(LockOptions, "quiet", "as_json")
def lock(options: LockOptions, screen: Screen) -> None:
    at_once(f"Building {options.spec} once", quiet=screen.hides_progress)
    report = run_lock(options)
    print_report(report, as_json=screen.as_json)
