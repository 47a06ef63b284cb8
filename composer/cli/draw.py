"""``compose draw``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import composer
from composer.cli.options import MaybeFrom, Revision, Seq, Set
from composer.cli.screen import print_document, say
from converters.trunk import Dtype


def draw(
    spec: Annotated[
        str,
        typer.Argument(
            help="A YAML file, the name of a shipped spec, a sweep's variant as SWEEP:VARIANT, or the folder of a built model.",
            show_default=False,
        ),
    ],
    source: MaybeFrom = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="An .svg file; left out, stdout.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    seq: Seq = "4k",
    dtype: Annotated[Dtype | None, typer.Option(help="What states are counted in; left out, the source's own, or float32.")] = None,
    settings: Set = None,
    revision: Revision = None,
) -> None:
    """Draw a spec, or a built model, as SVG.

    The picture has the graph of each head, with the bytes of its memories, and the map of layers. Without --from it is drawn on its
    own trunk or, where it has none, on the sizes of Llama-3.2-1B. It reads the source's config.json alone.
    """
    found = composer.draw(
        spec, source, overrides=settings or (), revision=revision, sequence=seq, dtype=dtype, out=out, force=force
    )
    if out is None:
        print_document(found.svg.removesuffix("\n"))
    else:
        say(f"{out}  {found.width:.0f} × {found.height:.0f} pixels")
