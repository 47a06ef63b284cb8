"""``compose merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from composer.cli.bars import at_once
from composer.cli.options import Quiet
from composer.cli.screen import heading, without_bars
from composer.spec.inherit import shown
from composer.weights.sources import open_model


def merge(
    model: Annotated[Path, typer.Argument(help="A distilled model, with adapters beside its weights.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FOLDER", help="Where the result goes; if this is left out, MODEL-merged.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is there.")] = False,
    quiet: Quiet = False,
) -> None:
    """Fold a model's adapters into its weights."""
    open_model(model)  # a mistake is told before all that takes seconds to import
    at_once(f"Merging {model}", quiet=quiet)
    from composer.training.merge import merge_adapters

    without_bars()
    target = out if out is not None else Path(f"{model.resolve().name}-merged")
    merge_adapters(model, target, force=force)
    heading(f"Merged {shown(target)}")
