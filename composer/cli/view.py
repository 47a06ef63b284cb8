"""``compose view``."""

from __future__ import annotations

from typing import Annotated

import typer

import composer
from composer.cli.options import MaybeFrom, Revision
from composer.cli.screen import say


def view(
    spec: Annotated[
        str | None,
        typer.Argument(help="A YAML file, or the name of a shipped spec. It is read, and never written.", show_default=False),
    ] = None,
    source: MaybeFrom = None,
    port: Annotated[int | None, typer.Option(help="Of the page; left out, the first free one from 7860.")] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open it in a browser.")] = True,
    revision: Revision = None,
) -> None:
    """Edit a spec on a page of its own.

    On the left is the YAML; on the right, as one types, are mistakes with their lines, the picture, the program and what it costs.
    Its sizes are the source's, where one is named, and may be typed. The page is served on this machine alone, and takes Gradio:
    pip install 'attention-composer[view]'.
    """
    served = composer.view(spec, source, port=port, browser=browser, revision=revision)
    say(f"{served.address}  (Ctrl-C ends it)")
    served.wait()
