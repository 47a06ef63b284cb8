"""``build`` and ``load``: models with the heads of a spec and the weights of a source, in memory and as folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from composer.building.build import BuildOptions, ModelOptions, run_build, run_build_in_memory
from composer.errors import BuildError, translate_errors
from composer.graph.lowering import AUTO
from composer.options.arguments import DtypeLike, named_dtype
from composer.options.classes import function_of
from composer.options.command import Screen, command
from composer.reporting.progress import silent_transformers
from composer.reporting.terminal import print_json, print_view
from composer.spec.external_parts import PartReference, use_parts
from composer.spec.inherit import short_path
from composer.weights.sources import local_folder

if TYPE_CHECKING:
    from composer.model.classes import Composed

build = function_of(ModelOptions, run_build_in_memory, "build")
build_folder = function_of(BuildOptions, run_build, "build_folder")


@command(BuildOptions, "quiet", "as_json")
def build_command(options: BuildOptions, screen: Screen) -> None:
    report = run_build(replace(options, progress=not screen.quiet))
    if screen.as_json:
        print_json(report.model_dump(mode="json"))
        return
    view = report.view(options.seed)
    if screen.quiet and not options.dry_run:
        view = view._replace(title=f"Built {short_path(report.out)}", tables=())
    print_view(view, wrap=False)


@translate_errors
def load(
    folder: str | os.PathLike[str],
    *,
    dtype: DtypeLike | None = None,
    device: str = "cpu",
    backend: str = AUTO,
    parts: PartReference | Sequence[PartReference] = (),
) -> Composed:
    """Return a built model, in evaluation mode. Unlike ``from_pretrained`` it refuses a folder that lacks a parameter.

    - backend: which forms run its heads: auto (the first that fits), reference, torch, fla, triton, or another that a part has.
    - parts: Python modules or files (.py) with your own parts. Those of installed packages need no option.
    """
    use_parts(parts)
    dtype = named_dtype(dtype, BuildError)
    where = local_folder(folder)
    with silent_transformers():
        from composer.weights.load import load_model

        return load_model(where, dtype, device, backend)
