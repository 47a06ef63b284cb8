"""The sizes that a spec is resolved on, or drawn on: those of a source, those of the spec itself, or assumed ones."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from composer.errors import BuildError, ComposerError, GraphError, SpecError
from composer.spec.built_models import spec_on_hub
from composer.spec.dimensions import Dimensions
from composer.spec.document import Spec
from composer.spec.external_parts import find_unregistered_kind, needed_part_message, read_recorded_parts
from composer.spec.inherit import own_source
from composer.spec.loading import locate
from composer.spec.resolve import Resolved, resolve
from composer.spec.sweep import refuse_sweep
from composer.weights.config import dimensions
from composer.weights.sources import describe_model
from converters.rotary import LengthRotation
from converters.trunk import Sizes, dtype_name

TRUNK = "its own trunk"
SIZES = "the sizes that it was resolved for"


@dataclass(frozen=True)
class Target:
    """The sizes that a spec is resolved on. on: their origin in words. size: None for the spec's own trunk. dtype: of the weights.
    trunk: of the source; None without one."""

    on: str
    size: Dimensions | None
    dtype: str
    trunk: Sizes | None = None

    @property
    def windows(self) -> Sequence[int | None] | None:
        """For each layer of the source, the tokens that a query sees, None for all; None where all layers see all."""
        return None if self.trunk is None else self.trunk.windows

    @property
    def rotations(self) -> Mapping[int, LengthRotation]:
        """The layers of the source whose rotary frequencies depend on the length of the text so far."""
        return {} if self.trunk is None else self.trunk.length_rotations


def target_of(
    named: object,
    spec: Spec,
    source: str | os.PathLike[str] | None = None,
    *,
    fresh: bool = False,
    revision: str | None = None,
    text_only: bool = False,
) -> Target | None:
    """Return the sizes of ``source``, of the built model ``named``, of the spec's own trunk, or in the spec; None if it has none.

    named: how the user names the spec. fresh: use the spec's own trunk. text_only: use the text decoder of ``source``. Raises
    ComposerError.
    """
    if source is not None and fresh:
        raise ComposerError("a spec is resolved on a source (--from) or on its own trunk (--fresh), not both: leave one out")
    if source is None and not fresh:
        source = own_source(named)
    if source is not None:
        trunk = describe_model(source, revision, text_only=text_only).trunk
        return Target(str(source), dimensions(trunk), trunk.dtype, trunk)
    if fresh or spec.trunk is not None:
        return Target(TRUNK, None, "float32")
    return None if spec.dimensions is None else Target(SIZES, spec.dimensions, "float32")


@dataclass(frozen=True)
class PictureSubject:
    """A resolved spec; in words, the model whose sizes it has, None for its own; and the dtype that the model computes in."""

    resolved: Resolved
    on: str | None
    dtype: str


def of_model(model: Any) -> PictureSubject | None:
    """Return the subject for a folder, or for a model in memory; None for anything else. Raises SourceError or BuildError."""
    if isinstance(model, str) and (fetched := spec_on_hub(model)) is not None and fetched.is_dir():
        model = fetched
    if isinstance(model, str | os.PathLike) and Path(model).expanduser().is_dir():
        described = describe_model(model)
        if not described.is_composed:
            raise BuildError(f"{model} is no model that was built here: name a spec, and this as its source (--from {model})")
        return PictureSubject(_resolve(described.config.get("spec"), str(model)), None, described.trunk.dtype)
    config = getattr(model, "config", None)
    if config is None:
        return None
    kind = dtype_name(getattr(model, "dtype", "float32"))
    return PictureSubject(_resolve(getattr(config, "spec", None), f"this {type(model).__name__}"), None, kind)


def on_source(
    spec: Spec, source: str | os.PathLike[str] | None, revision: str | None, *, text_only: bool = False
) -> PictureSubject:
    """Return the spec on a source's sizes. Without a source, it has its own sizes or, if it has none, assumed ones. Raises
    SpecError."""
    from composer.drawing.picture import TYPICAL, TYPICAL_OF

    try:
        if (target := target_of(None, spec, source, revision=revision, text_only=text_only)) is not None:
            return PictureSubject(resolve(spec, target.size), None if target.on == TRUNK else target.on, target.dtype)
        refuse_sweep(spec)
    except GraphError as error:
        raise locate(error, spec) from error
    try:
        return PictureSubject(resolve(spec, TYPICAL), TYPICAL_OF, "float32")
    except GraphError as error:
        problem = locate(error, spec)
        raise SpecError(
            f"{problem}\nNo source is named, so sizes are those of {TYPICAL_OF}: --from SOURCE names another"
        ) from error


def _resolve(spec: Any, model_name: str) -> Resolved:
    if spec is None:
        raise BuildError(f"{model_name} is no composed model: its config has no spec")
    try:
        return Resolved.model_validate(spec)
    except ValidationError as error:
        if (kind := find_unregistered_kind(error)) is not None:
            raise BuildError(f"{needed_part_message(model_name, kind, read_recorded_parts(Path(model_name)))}.") from error
        raise BuildError(f"the spec in the config of {model_name} cannot be read: {error}") from error
