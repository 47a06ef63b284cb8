"""Reads arguments as people write them: one value or several, and words out of a list."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, get_args

from composer.errors import ComposerError, name_of
from composer.spec.places import brief, nearest
from converters.trunk import Dtype, dtype_name

if TYPE_CHECKING:
    import torch

DtypeLike: TypeAlias = "Dtype | torch.dtype"
"""A type of weights: ``"bfloat16"`` or ``torch.bfloat16``."""
Reference = str | os.PathLike[str]
"""A folder, or a model of the Hub: ``OWNER/NAME``."""


def several(said: Reference | Sequence[Reference] | None) -> tuple[str, ...]:
    """One or more references, as a tuple of text."""
    if said is None:
        return ()
    return tuple(
        name_of(one) for one in ([said] if isinstance(said, str | os.PathLike) or not isinstance(said, Iterable) else said)
    )


def path_of(said: Reference | None) -> Path | None:
    return None if said is None else Path(said)


def check_known(option: str, said: str, known: Iterable[str], refusal: type[ComposerError] = ComposerError) -> None:
    """Raises ``refusal`` for a word that is not in ``known``."""
    known = list(known)
    if said not in known:
        raise refusal(f"{option}: {brief(said)} is not known{nearest(said, known) or '.'} Known: {', '.join(known)}.")


def named_dtype(said: object, refusal: type[ComposerError] = ComposerError) -> Dtype | None:
    """A type of weights by its name; ``torch.bfloat16`` is ``bfloat16``, too. Raises ``refusal`` where there is no such type."""
    if said is None:
        return None
    name = dtype_name(said)
    check_known("--dtype", name, get_args(Dtype), refusal)
    return name
