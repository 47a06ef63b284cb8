"""The sizes that a spec is resolved on: those of a source, or those that the spec gives itself."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from composer.errors import ComposerError
from composer.spec.dimensions import Dimensions
from composer.spec.document import Spec
from composer.spec.inherit import own_source
from composer.weights.dimensions import dimensions
from composer.weights.sources import describe_model
from converters.length_rotations import LengthRotation

TRUNK = "its own trunk"
SIZES = "the sizes that it was resolved for"


@dataclass(frozen=True)
class Target:
    """The sizes that a spec is resolved on. on: their origin in words. size: None for the spec's own trunk. dtype: of the weights.

    windows: for each layer of a source, the tokens that a query sees, None for all; None where all layers see all.
    rotations: the layers of a source whose rotary frequencies depend on the length of the text so far.
    """

    on: str
    size: Dimensions | None
    dtype: str
    windows: Sequence[int | None] | None = None
    rotations: Mapping[int, LengthRotation] = field(default_factory=dict)


def target_of(
    named: object, spec: Spec, source: str | os.PathLike[str] | None = None, *, fresh: bool = False, revision: str | None = None
) -> Target | None:
    """The sizes of ``source``; else those of the built model that ``named`` is, of the spec's own trunk, or those in the spec; None
    where it has none. named: how the user names the spec. fresh: take the spec's own trunk. Raises ComposerError."""
    if source is not None and fresh:
        raise ComposerError("a spec is resolved on a source (--from) or on a trunk of its own (--fresh), not both: leave one out")
    if source is None and not fresh:
        source = own_source(named)
    if source is not None:
        trunk = describe_model(source, revision).trunk
        return Target(str(source), dimensions(trunk), trunk.dtype, trunk.windows, trunk.length_rotations)
    if fresh or spec.trunk is not None:
        return Target(TRUNK, None, "float32")
    return None if spec.dimensions is None else Target(SIZES, spec.dimensions, "float32")
