"""``compose draw``."""

from __future__ import annotations

from composer.cli.derived import Screen, command
from composer.cli.screen import print_document, say
from composer.commands.draw import DrawOptions, run_draw


@command(DrawOptions)
def draw(options: DrawOptions, screen: Screen) -> None:
    picture = run_draw(options)
    if options.out is None:
        print_document(picture.svg.removesuffix("\n"))
    else:
        say(f"{options.out}  {picture.width:.0f} × {picture.height:.0f} pixels")
