"""Rewrite a built model, with trained weights or under another name: files without changes are linked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.building.folder import complete_folder
from composer.errors import BuildError
from composer.spec.document import Spec
from composer.spec.resolve import Resolved
from composer.weights.card import PICTURE
from composer.weights.config import config_dict, read_recorded_trunk
from composer.weights.output import check_output, check_space, copy_file, copy_files, link_or_copy, whole_or_nothing, write_json
from composer.weights.plan import Plan
from composer.weights.record import (
    CARD,
    CONFIG,
    RECORD,
    TRAINING,
    Record,
    StoredFile,
    TrainedStage,
    describe_file,
    find_known_sha256,
    read_record,
)
from composer.weights.sources import open_model
from composer.weights.stream import TensorToWrite, all_finite, as_bytes, inherit_piece, write_shard
from converters.bounded import MOST_NAMES, read_json, within
from converters.composed import ADAPTER_CONFIG, ADAPTER_KEY, ADAPTER_WEIGHTS
from converters.model_types import STUB
from converters.source import INDEX, Source, open_source
from converters.trunk import EMBEDDING, dtype_name

if TYPE_CHECKING:
    import torch

    from composer.model.modeling import ComposedForCausalLM

ADAPTER = "adapter"


@dataclass(frozen=True)
class Adapter:
    """Low-rank adapters as PEFT keeps them: its config, and tensors by its names."""

    config: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Trained:
    """The result of a run. changed: parameters by their names in ``model``; where that is None, by their names in its files."""

    changed: Mapping[str, torch.Tensor]
    adapter: Adapter | None
    stages: tuple[TrainedStage, ...]
    documents: Mapping[str, Path]
    """Files about the training, by the names that they get."""
    model: ComposedForCausalLM | None = None


def write_trained(model: Path, out: Path, trained: Trained, *, force: bool = False) -> Record:
    """Write the model of the folder ``model`` to ``out`` with its changes, and return its record. Raises BuildError."""
    source = open_model(model)
    record = read_record(source.folder)
    if record is None:
        raise BuildError(f"{model} has no {RECORD}: it was not written by `compose build`.")
    target = check_output(out, source, force=force)
    if trained.model is not None:
        trained = replace(trained, changed=_as_stored(trained.model, trained.changed, record.plan))
    unknown = sorted(trained.changed.keys() - record.plan.parameters.keys())
    if unknown:
        raise BuildError(f"{model} has no parameter {unknown[0]}: the run trained another model.")
    _check_finite(trained, record)
    check_space(target, sum(tensor.nbytes for tensor in trained.changed.values()))
    with whole_or_nothing(target, force=force) as folder:
        copy_files(source.folder, source.small_files, folder)
        files = {name: _file(folder / name, source, record, trained.changed) for name in source.shards}
        if (source.folder / INDEX).is_file():
            write_json(folder / INDEX, read_json(within(source.folder, INDEX), MOST_NAMES))
        files |= _adapter(folder, trained.adapter)
        for name, path in trained.documents.items():
            (folder / TRAINING).mkdir(exist_ok=True)
            copy_file(path, folder / TRAINING / name)
        done = record.model_copy(
            update={
                "files": files,
                "untrained": tuple(name for name in record.untrained if name not in trained.changed),
                "training": (*record.training, *trained.stages),
            }
        )
        config = config_dict(read_recorded_trunk(record.trunk), record.resolved, record.plan.dtype)
        if trained.adapter is not None:
            config[ADAPTER_KEY] = ADAPTER
        return complete_folder(folder, config, done, target.name)


def _as_stored(model: ComposedForCausalLM, changed: Mapping[str, torch.Tensor], plan: Plan) -> dict[str, torch.Tensor]:
    """Return parameters of a model by their names and with their shapes in its files. plan: of these files.

    transformers joins and renames some tensors as it loads them, such as those of experts, and adds a prefix to those of a model
    without its head. Of tied parameters, each that is stored changes.
    """
    from transformers.core_model_loading import revert_weight_conversion

    stored: dict[str, torch.Tensor] = {}
    tied, prefix = model.all_tied_weights_keys.items(), f"{model.base_model_prefix}."
    stored_names = {*plan.parameters, *(prefix + name for name in plan.parameters)}
    for name, tensor in (changed if changed.keys() <= stored_names else revert_weight_conversion(model, dict(changed))).items():
        alike = [name, *(other for other, tied_name in tied if tied_name == name)]
        places = [place for key in alike for place in (key, key.removeprefix(prefix)) if place in plan.parameters]
        stored |= dict.fromkeys(places or [name], tensor)
    return stored


def _check_finite(trained: Trained, record: Record) -> None:
    """Raise BuildError unless all values are finite, also in the type that they are stored in."""
    import torch

    for name, tensor in trained.changed.items():
        dtype = record.plan.parameters[name].dtype
        if not all_finite(tensor.detach()):
            raise BuildError(f"{name} holds values that are not finite; nothing is written.")
        if not all_finite(tensor.detach().to(getattr(torch, dtype))):
            largest = tensor.detach().abs().max().item()
            raise BuildError(
                f"{name} holds values up to {largest:.4g}, too large for {dtype}. Build the model with another --dtype."
            )
    for name, tensor in ({} if trained.adapter is None else trained.adapter.tensors).items():
        if not all_finite(tensor.detach()):
            raise BuildError(f"{name} holds values that are not finite; nothing is written.")


def _file(target: Path, source: Source, record: Record, changed: Mapping[str, torch.Tensor]) -> StoredFile:
    """Link a weight file, or rewrite it if anything in it has changed. Return its entry in the record."""
    shard = source.shards[target.name]
    here = {name for name, entry in record.plan.parameters.items() if entry.output == target.name} & changed.keys()
    # A stored copy of a tied embedding would differ from it then, and transformers would load it as a separate matrix.
    outdated = {source.covered.output_copy} & shard.tensors.keys() if EMBEDDING in changed else set()
    if not here and not outdated:
        placement, digest = link_or_copy(shard.file, target)
        contents = find_known_sha256(source, record, target.name) or digest
        return describe_file(target, placement, origin=shard.file, contents=contents)
    pieces = [
        _prepare_piece(name, changed[name], record.plan.parameters[name].dtype)
        if name in here
        else inherit_piece(name, tensor, tensor.dtype)
        for name, tensor in shard.tensors.items()
        if name not in outdated
    ]
    contents = write_shard(target, pieces)
    return describe_file(target, "rewritten", origin=None, contents=contents)


def _prepare_piece(name: str, tensor: torch.Tensor, dtype: Any) -> TensorToWrite:
    import torch

    def contents() -> Iterator[memoryview]:
        yield as_bytes(tensor.detach().to("cpu", getattr(torch, dtype)))

    return TensorToWrite(name, dtype, tuple(tensor.shape), contents)


def _adapter(folder: Path, adapter: Adapter | None) -> dict[str, StoredFile]:
    if adapter is None:
        return {}
    (folder / ADAPTER).mkdir()
    write_json(folder / ADAPTER / ADAPTER_CONFIG, adapter.config)
    target = folder / ADAPTER / ADAPTER_WEIGHTS
    pieces = [_prepare_piece(name, tensor, dtype_name(tensor.dtype)) for name, tensor in adapter.tensors.items()]
    contents = write_shard(target, pieces)
    return {f"{ADAPTER}/{ADAPTER_WEIGHTS}": describe_file(target, "written", origin=None, contents=contents)}


def write_renamed(model: Path, out: Path, spec: Spec, resolved: Resolved) -> Path:
    """Write the model of the folder ``model`` to ``out``, with the name of ``spec``, which means the same, in its record and card.
    A build at ``out`` is replaced. Raises BuildError. resolved: the spec on the model's source. If it has other names for the heads
    than the model, the model's are kept.
    """
    record, config = read_record(model), open_source(model).config
    if record is None or record.resolved.hash != resolved.hash:
        raise BuildError(f"{model} is no model of {spec.name}.")
    same = (resolved.heads.keys(), resolved.layers) == (record.resolved.heads.keys(), record.resolved.layers)
    if same:
        named = {"name": resolved.name, "paper": resolved.paper, "recipe": resolved.recipe}
        update = {"resolved": record.resolved.model_copy(update=named), "spec": spec.model_dump(mode="json", exclude_unset=True)}
        record = record.model_copy(update=update)
    if _is_written(out, record):
        return out
    target = check_output(out, None, force=out.exists())
    with whole_or_nothing(target, force=out.exists()) as folder:
        files = {}
        for path in sorted(path for path in model.rglob("*") if path.is_file()):
            name = path.relative_to(model).as_posix()
            if name in (CARD, CONFIG, PICTURE, RECORD, STUB):
                continue
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if name not in record.files:
                copy_file(path, folder / name)
                continue
            (placement, digest), file_record = link_or_copy(path, folder / name), record.files[name]
            placed = describe_file(folder / name, file_record.how, origin=None, contents=file_record.sha256 or digest)
            files[name] = placed.model_copy(
                update={"how": file_record.how if placement == "linked" else placement, "origin": file_record.origin}
            )
        config_json = config_dict(read_recorded_trunk(record.trunk), record.resolved, record.plan.dtype)
        if config.get(ADAPTER_KEY) is not None:
            config_json[ADAPTER_KEY] = config[ADAPTER_KEY]
        complete_folder(folder, config_json, record.model_copy(update={"files": files}), target.name)
    return out


def _is_written(out: Path, record: Record) -> bool:
    """True if a folder has this model under this name."""
    if not out.is_dir():
        return False
    written = read_record(out)
    if written is None or (written.spec, written.resolved, written.training) != (record.spec, record.resolved, record.training):
        return False
    return {name: file.header_sha256 for name, file in written.files.items()} == {
        name: file.header_sha256 for name, file in record.files.items()
    } and all((out / name).is_file() for name in (INDEX, CARD, *written.files))
