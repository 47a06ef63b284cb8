"""``compose merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import composer
from composer.cli.bars import at_once
from composer.cli.options import Json, Quiet
from composer.cli.screen import heading, print_json
from composer.spec.inherit import shown


def merge(
    model: Annotated[Path, typer.Argument(help="A distilled model, with adapters beside its weights.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FOLDER", help="Where the result goes; if this is left out, MODEL-merged.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is there.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Fold a model's adapters into its weights."""
    at_once(f"Merging {model}", quiet=quiet or as_json)
    report = composer.merge(model, out, force=force)
    if as_json:
        print_json(report.model_dump(mode="json"))
    else:
        heading(f"Merged {shown(report.out)}")
