"""Builds a model in memory, without a folder: from a model that is in memory already, or from nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from composer.errors import BuildError, ComposerError, SourceError
from composer.model.classes import Composed, class_of, configuration_for
from composer.spec.external_parts import list_stored_parts
from composer.spec.resolve import Resolved
from composer.system.devices import check_memory
from composer.system.notices import warn_caller
from composer.weights.config import config_dict, own_parameters, trunk_from
from composer.weights.plan import Plan, Weights, make_plan
from composer.weights.record import (
    Record,
    StoredLicence,
    StoredSource,
    describe_source,
    find_untrained,
    licence_in,
    record_of,
    versions,
)
from composer.weights.save import Origin, initial_values_of, keep_records
from composer.weights.sources import describe_model, is_hub_id
from composer.weights.stream import count_not_finite, initial_values, not_finite
from converters.bounded import list_first
from converters.composed import family_of
from converters.config import decode_floats, encode_floats
from converters.coverage import cover
from converters.errors import ConverterError
from converters.source import Source
from converters.trunk import EMBEDDING, OF_CACHES, OUTPUT, Dtype, Sizes, Trunk, dtype_name, is_composed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

IN_MEMORY = "(a model in memory)"
"""The folder of the source in a record, for a source that was in memory."""


class _Typed(NamedTuple):
    """The shape and the type of a tensor in memory."""

    shape: tuple[int, ...]
    dtype: Dtype


def trunk_of(model: PreTrainedModel) -> Sizes:
    """Return the trunk of a model in memory, with the dtype that it has there. Raises ``SourceError``."""
    config = encode_floats(model.config.to_dict())
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
    """Build a composed model with the weights of ``model``, on its device and in evaluation mode.

    - model: of any family that has a converter, or itself composed; parameters of its heads that the new spec has, too, are kept.
    - dtype: of the copies; None leaves them as they are.
    - share: False copies every weight; with True, training the student trains ``model``, too.
    - spec_document: the spec as it was written, for the record of later saves; without it there is no record.
    - opened: the folder that ``model`` has just been read from, for the same record.

    A warning lists what is not kept. Raises ``SourceError`` and ``BuildError``.
    """
    trunk = trunk_of(model)
    if share and dtype is not None and dtype != trunk.dtype:
        raise BuildError(f"Weights cannot be shared with a model of {trunk.dtype} and be {dtype}: leave `share` or `dtype` out.")
    tensors = model.state_dict()
    plan = make_plan(resolved, trunk, _weights_of(model, trunk, tensors, opened), dtype=None if share else dtype)
    _warn_about_dropped(plan)
    values = {
        name: tensors[entry.tensor] if share else tensors[entry.tensor].to(getattr(torch, entry.dtype), copy=True)
        for name, entry in plan.inherited.items()
    }
    values |= {name: tensor.to(model.device) for name, tensor in _fresh_values(plan, resolved, seed)}
    if opened is None:
        _check_finite({entry.tensor: tensors[entry.tensor] for entry in plan.inherited.values()}, values, plan.dtype)
    trunk = replace(trunk, dtype=plan.dtype)
    student = _assemble(resolved, trunk, values, dict(model.named_buffers()))
    if spec_document is not None:
        source_record = None if opened is None else record_of(opened)
        source = _source_of(model) if opened is None else describe_source(opened, source_record)
        untrained = find_untrained(plan, opened, source_record)
        before: Origin | None = getattr(model, "_origin", None)
        if opened is None and before is not None:
            names = [name for name in before.record.untrained if name in plan.inherited]
            untrained = (*untrained, *_still_untrained(before, names, tensors))
        record = _record(resolved, spec_document, plan, trunk, source, seed, untrained)
        student._origin = Origin(record, None if opened is None else opened.folder, None)
    if (settings := getattr(model, "generation_config", None)) is not None:  # a classifier has none
        student.generation_config = copy.deepcopy(settings)
        for name in OF_CACHES:
            setattr(student.generation_config, name, None)
    return student


def build_fresh(
    resolved: Resolved, *, spec_document: Mapping[str, Any] | None = None, dtype: Dtype | None = None, seed: int = 0
) -> Composed:
    """Build a model without a source, whose spec describes the trunk, in evaluation mode. All of its values are random.

    spec_document: for the record of later saves; without it they write none. Raises ``BuildError``.
    """
    trunk = trunk_from(resolved, dtype or "float32")
    plan = make_plan(resolved, trunk)
    check_memory(plan.total_bytes, f"the parameters of {resolved.name}")
    model = _assemble(resolved, trunk, dict(_fresh_values(plan, resolved, seed, trunk)))
    if spec_document is not None:
        record = _record(resolved, spec_document, plan, trunk, None, seed, tuple(plan.fresh))
        model._origin = Origin(record, None, None)
    return model


def _weights_of(model: PreTrainedModel, trunk: Sizes, tensors: Mapping[str, torch.Tensor], opened: Source | None) -> Weights:
    """Return the weights of a model in memory. opened: the folder that it was read from. Raises SourceError."""
    for name, tensor in tensors.items():
        if tensor.is_meta or not tensor.is_floating_point():
            kind = "is not in memory (offloaded)" if tensor.is_meta else f"is {tensor.dtype}, not a floating type"
            raise SourceError(f"{name} {kind}. Load the model whole and without quantisation, or build from its folder.")
    config = encode_floats(model.config.to_dict())
    try:
        covered = cover(family_of(config), trunk, tensors)
    except ConverterError as error:
        raise SourceError(str(error)) from error
    return Weights(
        name="this one",
        config=config,
        covered=covered,
        tensors={name: _Typed(tuple(tensor.shape), dtype_name(tensor.dtype)) for name, tensor in tensors.items()},
        are_equal=lambda first, second: torch.equal(tensors[first], tensors[second]),
        files={} if opened is None else {name: tensor.file.name for name, tensor in opened.tensors.items()},
        shards={},
        notes=(),
    )


def _fresh_values(plan: Plan, resolved: Resolved, seed: int, trunk: Trunk | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    parameters = own_parameters(resolved, trunk)
    return ((name, initial_values(name, parameters[name], entry.dtype, seed)) for name, entry in plan.fresh.items())


def _check_finite(source: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor], dtype: str) -> None:
    """Raise BuildError if a tensor of a model in memory has values that are not finite, as it is or in ``dtype``."""
    counts = {name: count for name, tensor in source.items() if (count := count_not_finite(tensor.detach()))}
    if counts:
        raise BuildError(not_finite("The model in memory", counts))
    if too_large := [name for name, tensor in values.items() if count_not_finite(tensor.detach())]:
        raise BuildError(f"The weights of the model are too large for {dtype}: {list_first(too_large)}. Choose another dtype.")


def _warn_about_dropped(plan: Plan) -> None:
    """Warn about the heads' parameters that the student does not use. In a build, the plan in the folder lists them."""
    reasons: dict[str, list[str]] = {}
    for name, entry in plan.dropped.items():
        if is_composed(name):
            reasons.setdefault(entry.reason, []).append(name)
    if reasons:
        lines = [f"  {len(names)} such as {names[0]}: {reason}" for reason, names in reasons.items()]
        text = "\n".join(["The model has composed heads, and these parameters of them are not kept:", *lines])
        warn_caller(text)


def _assemble(
    resolved: Resolved, trunk: Sizes, values: dict[str, torch.Tensor], buffers: Mapping[str, torch.Tensor] | None = None
) -> Composed:
    """Return the composed model with these values, in evaluation mode. buffers: of its source, for those that are in no file."""
    keep_records()
    document = config_dict(trunk, resolved, trunk.dtype)
    config = configuration_for(document["model_type"]).from_dict(decode_floats(document))
    with torch.device("meta"):
        model = class_of(config)(config)
    if isinstance(trunk, Trunk) and trunk.tied_embeddings and trunk.labels is None:
        values = values | {OUTPUT: values[EMBEDDING]}
    model.load_state_dict(values, strict=True, assign=True)
    for name, buffer in list(model.named_buffers()):
        if buffer.is_meta and buffers is not None:
            module, _, buffer_name = name.rpartition(".")
            # A long call stretches the frequencies of `dynamic` rotations in the source. The student has seen no call.
            first = buffers.get(name.replace("inv_freq", "original_inv_freq"), buffers[name])
            model.get_submodule(module).register_buffer(buffer_name, first.clone(), persistent=False)
    model.tie_weights()
    return model.eval()


def _record(
    resolved: Resolved,
    spec_document: Mapping[str, Any],
    plan: Plan,
    trunk: Sizes,
    source: StoredSource | None,
    seed: int,
    untrained: tuple[str, ...],
) -> Record:
    """Return the record of a model in memory, which has no files."""
    return Record(
        spec=dict(spec_document),
        resolved=resolved,
        spec_hash=resolved.hash,
        source=source,
        seed=seed,
        trunk=asdict(trunk),
        plan=plan,
        files={},
        untrained=untrained,
        parts=list_stored_parts(resolved),
        versions=versions(),
    )


def _still_untrained(before: Origin, names: Iterable[str], tensors: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Yield the named parameters that still have their initial values, or whose initial values are unknown."""
    initial = initial_values_of(before.record)
    for name in names:
        value = initial(name)
        if value is None or torch.equal(value.to(tensors[name].dtype), tensors[name].detach().cpu()):
            yield name


def _source_of(model: PreTrainedModel) -> StoredSource:
    """Return a record's entry for a source in memory, as far as the model records where it was loaded from."""
    named, config = str(model.name_or_path or ""), model.config
    folder = Path(named).expanduser()
    is_here = bool(named) and (folder / "config.json").is_file()
    licence, before = StoredLicence(), getattr(model, "_origin", None)
    try:
        config_sha256 = describe_model(folder).config_sha256 if is_here else ""
        licence = licence_in(folder, before.record if isinstance(before, Origin) else None) if is_here else licence
    except (ComposerError, ConverterError):
        is_here, config_sha256 = False, ""
    return StoredSource(
        family=str(config.model_type),
        folder=str(folder.resolve()) if is_here else IN_MEMORY,
        repo_id=named if not is_here and is_hub_id(named) else None,
        revision=None,
        commit=getattr(config, "_commit_hash", None),
        config_sha256=config_sha256,
        spec_hash=getattr(config, "spec_hash", None),
        licence=licence,
    )
