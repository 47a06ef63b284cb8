"""``compose view``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from composer.cli.options import MaybeFrom, Revision
from composer.errors import SpecError
from composer.spec.inherit import find_spec, not_found, shown
from composer.spec.shipped import shipped_specs
from composer.viewing.page import launch, made_with, page
from composer.viewing.reading import MOST_TEXT, Place
from composer.weights.dimensions import dimensions
from composer.weights.sources import describe_model
from converters.bounded import read_bytes


def view(
    spec: Annotated[
        str | None,
        typer.Argument(help="A YAML file, or the name of a shipped spec. It is read, and never written.", show_default=False),
    ] = None,
    source: MaybeFrom = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Of the page; left out, the first free one from 7860.")] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open it in a browser.")] = True,
    revision: Revision = None,
) -> None:
    """Edit a spec on a page of its own.

    On the left is the YAML; on the right, as one types, are mistakes with their lines, the picture, the program and what it costs.
    Its sizes are the source's, where one is named, and may be typed. The page is served on this machine alone, and takes Gradio:
    pip install 'attention-composer[view]'.
    """
    made_with()
    text, place = _opened(spec)
    if source is not None:
        place = Place(place.called, place.folder, dimensions(describe_model(source, revision).trunk))
    made = page(text, place)
    address = launch(made, port=port, open_browser=browser, block=False)
    typer.echo(f"{address}  (Ctrl-C ends it)")
    made.block_thread()


def _opened(spec: str | None) -> tuple[str | None, Place]:
    """The text, and where it stands: what a file extends is looked for beside it. Raises SpecError."""
    if spec is None:
        return None, Place()
    path = find_spec(spec, Path())
    if path is None:
        raise SpecError(not_found(spec, Path()))
    own = path not in shipped_specs().values()
    try:
        text = read_bytes(path, 4 * MOST_TEXT).decode("utf-8-sig")
    except OSError as error:
        raise SpecError(f"{shown(path)}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{shown(path)}: not UTF-8: save the file in that encoding") from None
    return text, Place(path.name, path.parent if own else None)
