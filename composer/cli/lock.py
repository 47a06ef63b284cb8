"""``compose lock``."""

from __future__ import annotations

from composer.cli.bars import at_once
from composer.cli.derived import Screen, command
from composer.cli.screen import heading, print_json, say
from composer.commands import locking
from composer.commands.locking import LockOptions
from composer.spec.inherit import shown


@command(LockOptions, "quiet", "as_json")
def lock(options: LockOptions, screen: Screen) -> None:
    at_once(f"Building {options.spec} once", quiet=screen.hides_progress)
    report = locking.run_lock(options)
    if screen.as_json:
        print_json(report.model_dump(mode="json"))
        return
    heading(f"Locked {shown(report.out)}")
    for remark in report.remarks:
        say(f"  {remark}")
