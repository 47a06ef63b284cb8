"""``compose view``."""

from __future__ import annotations

from composer.cli.derived import Screen, command
from composer.cli.screen import say
from composer.commands import viewing
from composer.commands.viewing import ViewOptions


@command(ViewOptions)
def view(options: ViewOptions, screen: Screen) -> None:
    served = viewing.run_view(options)
    say(f"{served.address}  (Ctrl-C ends it)")
    served.wait()
