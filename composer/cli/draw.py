"""``compose draw``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import composer
from composer.cli.options import MaybeFrom, Revision, Set
from composer.errors import ComposerError
from composer.files import write_whole
from converters.trunk import Dtype

if TYPE_CHECKING:
    from composer.drawing.picture import Picture


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
    seq: Annotated[int, typer.Option(min=1, metavar="TOKENS", help="Length at which a state that grows is counted.")] = 4096,
    dtype: Annotated[Dtype | None, typer.Option(help="What states are counted in; left out, the source's own, or float32.")] = None,
    settings: Set = None,
    revision: Revision = None,
) -> None:
    """Draw a spec, or a built model, as SVG.

    The picture has the graph of each head, with the bytes of its memories, and the map of layers. Without --from it is drawn on its
    own trunk or, where it has none, on the sizes of Llama-3.2-1B. It reads the source's config.json alone.
    """
    check_svg(out)
    found = composer.draw(spec, source, overrides=settings or (), revision=revision, sequence=seq, dtype=dtype)
    if out is None:
        typer.echo(found.svg, nl=False)
    else:
        save(found, out, force=force)


def check_svg(out: Path | None) -> None:
    """Raises ComposerError for a file of another kind."""
    if out is not None and out.suffix != ".svg":
        raise ComposerError(f"{out}: pictures are SVG; name a file that ends in .svg")


def save(found: Picture, out: Path, *, force: bool, quiet: bool = False) -> None:
    """Writes the picture and, unless ``quiet``, says so. Raises ComposerError."""
    try:
        write_whole(out, found.svg, replace=force)
    except FileExistsError:
        raise ComposerError(f"{out} is there already; --force replaces it, or choose another name") from None
    except OSError as error:
        raise ComposerError(f"{out} cannot be written: {error.strerror}") from None
    if not quiet:
        typer.echo(f"{out}  {found.width:.0f} × {found.height:.0f} pixels")
