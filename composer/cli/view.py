"""``compose view``."""

from __future__ import annotations

from composer.cli.derived import Screen, command
from composer.cli.screen import say
from composer.commands.view import ViewOptions, run_view


@command(ViewOptions)
def view(options: ViewOptions, screen: Screen) -> None:
    served = run_view(options)
    say(f"{served.address}  (Ctrl-C ends it)")
    served.wait()
