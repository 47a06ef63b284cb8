"""``compose draw``."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from composer.cli.derived import Screen, command
from composer.cli.screen import print_document, say
from composer.commands.draw import DrawOptions, run_draw


@command(DrawOptions)
def draw(options: DrawOptions, screen: Screen) -> None:
    if options.out is None and sys.stdout.isatty():  # a terminal cannot show SVG
        options = replace(options, out=Path(f"{_name_of(options.spec)}.svg"))
    picture = run_draw(options)
    if options.out is None:
        print_document(picture.svg.removesuffix("\n"))
    else:
        say(f"{options.out}  {picture.width:.0f} × {picture.height:.0f} pixels")


def _name_of(spec: Any) -> str:
    """Return the last word of a spec's name, such as lolcats for specs/lolcats.yaml, as a file may be called."""
    name = Path(str(spec)).resolve().name if str(spec).strip("./") == "" else Path(str(spec)).name
    return re.sub(r"[^\w.-]+", "-", re.sub(r"\.ya?ml$", "", name)).strip("-.") or "spec"
