"""``compose new``."""

from __future__ import annotations

from typing import Annotated

import typer

import composer
from composer.cli.screen import say


def new(
    name: Annotated[str, typer.Argument(help="The new spec is NAME.yaml; NAME may be a path.")],
    like: Annotated[str | None, typer.Option(metavar="SPEC", help="Start from a copy of this spec or built model.")] = None,
) -> None:
    """Write a commented spec to start from."""
    path = composer.new(name, like)
    say(f"Wrote {path}. Next: compose check {path}")
