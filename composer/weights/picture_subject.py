"""The subject of a picture: a model's own spec, or a spec on a source, on its own trunk, or on assumed sizes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from composer.drawing.picture import TYPICAL, TYPICAL_OF
from composer.errors import BuildError, GraphError, SpecError
from composer.spec.document import Spec
from composer.spec.loading import locate
from composer.spec.on_hub import spec_on_hub
from composer.spec.outside import needed_part, recorded_parts, unregistered_kind
from composer.spec.resolve import Resolved, resolve
from composer.spec.sweep import refuse_sweep
from composer.weights.sources import describe_model
from composer.weights.target import TRUNK, target_of
from converters.trunk import dtype_name


@dataclass(frozen=True)
class PictureSubject:
    """A resolved spec; in words, the model whose sizes it has, None for its own; and the dtype that the model computes in."""

    resolved: Resolved
    on: str | None
    dtype: str


def of_model(model: Any) -> PictureSubject | None:
    """The subject for a folder, or for a model in memory; None for anything else. Raises SourceError or BuildError."""
    if isinstance(model, str) and (fetched := spec_on_hub(model)) is not None and fetched.is_dir():
        model = fetched
    if isinstance(model, str | os.PathLike) and Path(model).expanduser().is_dir():
        described = describe_model(model)
        if not described.is_composed:
            raise BuildError(f"{model} is no model that was built here: name a spec, and this as its source (--from {model})")
        return PictureSubject(_resolved(described.config.get("spec"), str(model)), None, described.trunk.dtype)
    config = getattr(model, "config", None)
    if config is None:
        return None
    kind = dtype_name(getattr(model, "dtype", "float32"))
    return PictureSubject(_resolved(getattr(config, "spec", None), f"this {type(model).__name__}"), None, kind)


def on_source(spec: Spec, source: str | os.PathLike[str] | None, revision: str | None) -> PictureSubject:
    """The spec on a source's sizes. Without a source, on the spec's own sizes or, where it has none, on assumed ones. Raises
    SpecError."""
    try:
        if (target := target_of(None, spec, source, revision=revision)) is not None:
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


def _resolved(spec: Any, what: str) -> Resolved:
    if spec is None:
        raise BuildError(f"{what} is no composed model: its config has no spec")
    try:
        return Resolved.model_validate(spec)
    except ValidationError as error:
        if (kind := unregistered_kind(error)) is not None:
            raise BuildError(f"{needed_part(what, kind, recorded_parts(Path(what)))}.") from error
        raise BuildError(f"the spec in the config of {what} cannot be read: {error}") from error
