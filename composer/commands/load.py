"""``load``: a built model in memory. It is for Python alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from composer.arguments import DtypeLike, named_dtype
from composer.errors import BuildError, translate_errors
from composer.graph.lowering import AUTO
from composer.progress import silent_transformers
from composer.spec.external_parts import PartReference, use_parts
from composer.weights.sources import local_folder

if TYPE_CHECKING:
    from composer.model.classes import Composed


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
