"""A student from a model that is in memory already, without a folder in between."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from composer.errors import BuildError, SourceError
from composer.notices import warn_caller
from composer.spec.resolve import Resolved
from composer.weights.dimensions import dimensions
from composer.weights.finite import count_not_finite, not_finite
from composer.weights.meaning import stored_heads
from composer.weights.origin import origin_in_memory
from composer.weights.plan import Assignment, assign, dtype_of
from composer.weights.stream import filled
from converters.bounded import listed
from converters.canonical import EMBEDDING, OUTPUT, is_composed
from converters.coverage import cover
from converters.errors import ConverterError
from converters.families import family_of
from converters.source import Source
from converters.trunk import Dtype, Sizes, Trunk, dtype_name

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from composer.model.classes import Composed


def trunk_of(model: PreTrainedModel) -> Sizes:
    """The trunk of a model in memory, in the dtype it has there. Raises ``SourceError``."""
    config = model.config.to_dict()
    try:
        trunk = family_of(config).read_config(config, [])
        return replace(trunk, dtype=dtype_name(model.dtype))
    except ConverterError as error:
        raise SourceError(str(error)) from error


def build_from_model(
    resolved: Resolved,
    model: PreTrainedModel,
    *,
    dtype: Dtype | None = None,
    seed: int = 0,
    share: bool = False,
    spec_document: Mapping[str, Any] | None = None,
    opened: Source | None = None,
) -> Composed:
    """A composed model with the weights of ``model``, on its device and in evaluation mode.

    - model: of any family that has a converter, or itself composed; parameters of its heads that the new spec has, too, are kept.
    - dtype: of the copies; None leaves them as they are.
    - share: False copies every weight; with True, whatever trains the student trains ``model``, too.
    - spec_document: the spec as it was written, for the record of later saves; without it there is no record.
    - opened: the folder that ``model`` has just been read from, for the same record.

    A warning says what is not kept. Raises ``SourceError`` and ``BuildError``.
    """
    trunk = trunk_of(model)
    if share and dtype is not None and dtype != trunk.dtype:
        raise BuildError(f"Weights cannot be shared with a model of {trunk.dtype} and be {dtype}: leave `share` or `dtype` out.")
    if resolved.dimensions != dimensions(trunk):
        raise BuildError("The spec was resolved against another model than this one. Resolve it against this one.")
    source = model.state_dict()
    assignment = _assignment(resolved, model, trunk, source)
    _warn_about_dropped(assignment)

    device, trunk = model.device, replace(trunk, dtype=dtype or trunk.dtype)
    weights = {name: source[own] for name, own in assignment.inherited.items()}
    if not share:
        weights = {name: _copied(weight, assignment, name, dtype) for name, weight in weights.items()}
    for name, fresh in assignment.fresh.items():
        weights[name] = filled(name, fresh, dtype_of(fresh, trunk.dtype), seed).to(device)
    if opened is None:
        _check_finite({own: source[own] for own in assignment.inherited.values()}, weights, trunk.dtype)
    student = assembled(resolved, trunk, weights, dict(model.named_buffers()))
    if spec_document is not None:
        student._origin = origin_in_memory(student, resolved, spec_document, assignment, model, opened, seed)
    if (settings := getattr(model, "generation_config", None)) is not None:  # a classifier has none
        student.generation_config = copy.deepcopy(settings)
    return student


def _copied(weight: torch.Tensor, assignment: Assignment, name: str, dtype: Dtype | None) -> torch.Tensor:
    """A copy of a parameter, in the dtype of the plan. Buffers are copied elsewhere, and keep their dtype in any model."""
    import torch

    return weight.clone() if dtype is None else weight.to(getattr(torch, assignment.dtype(name, dtype, dtype)), copy=True)


def _check_finite(source: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor], dtype: str) -> None:
    """Raise BuildError where a tensor of a model in memory has values that are not finite, as it is or in ``dtype``."""
    counts = {name: count for name, tensor in source.items() if (count := count_not_finite(tensor.detach()))}
    if counts:
        raise BuildError(not_finite("The model in memory", counts))
    if too_large := [name for name, tensor in weights.items() if count_not_finite(tensor.detach())]:
        raise BuildError(f"The weights of the model are too large for {dtype}: {listed(too_large)}. Choose another dtype.")


def _warn_about_dropped(assignment: Assignment) -> None:
    """Warn about the tensors that the student does not use. In a build, the plan in the folder lists them."""
    reasons: dict[str, list[str]] = {}
    for own, reason in assignment.dropped.items():
        if is_composed(own):
            reasons.setdefault(reason, []).append(own)
    if reasons:
        lines = [f"  {len(names)} such as {names[0]}: {reason}" for reason, names in reasons.items()]
        text = "\n".join(["The model has heads of its own, and these parameters of them are not kept:", *lines])
        warn_caller(text)


def assembled(
    resolved: Resolved, trunk: Sizes, weights: dict[str, torch.Tensor], buffers: Mapping[str, torch.Tensor] | None = None
) -> Composed:
    """The composed model with these weights, which are all that it has, in evaluation mode. buffers: of its source; files have
    none."""
    import torch

    from composer.model.classes import class_of, configuration_for
    from composer.weights.config import config_dict
    from composer.weights.saved import keep_records

    keep_records()
    document = config_dict(trunk, resolved, trunk.dtype)
    config = configuration_for(document["model_type"]).from_dict(document)
    with torch.device("meta"):
        model = class_of(config)(config)
    if isinstance(trunk, Trunk) and trunk.tied_embeddings and trunk.labels is None:
        weights = weights | {OUTPUT: weights[EMBEDDING]}
    model.load_state_dict(weights, strict=True, assign=True)
    for name, buffer in list(model.named_buffers()):
        if buffer.is_meta and buffers is not None:
            module, _, own = name.rpartition(".")
            model.get_submodule(module).register_buffer(own, buffers[name].clone(), persistent=False)
    model.tie_weights()
    return model.eval()


def _assignment(resolved: Resolved, model: PreTrainedModel, trunk: Sizes, source: Mapping[str, torch.Tensor]) -> Assignment:
    import torch

    for name, tensor in source.items():
        if tensor.is_meta or not tensor.is_floating_point():
            kind = "is not in memory (offloaded)" if tensor.is_meta else f"is {tensor.dtype}, not a floating type"
            raise SourceError(f"{name} {kind}. Load the model whole and without quantisation, or build from its folder.")
    try:
        covered = cover(family_of(model.config.to_dict()), trunk, source)
    except ConverterError as error:
        raise SourceError(str(error)) from error
    heads = stored_heads(model.config.to_dict())
    return assign(resolved, covered, source, lambda one, other: torch.equal(source[one], source[other]), heads)
