"""The record of a model that transformers saves: ``save_pretrained``, and what calls it, such as ``Trainer``, keep it.

It is the record of the folder that the model was loaded from, or the one that a build would have written. Added are the save by
transformers, the number of tensors whose values have changed since, and the hashes of the folder's files. It does not record how
the values changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.utils.hub import cached_file

from composer.errors import BuildError, ComposerError
from composer.model.adapters import KEEPERS
from composer.system.files import sha256, write_whole
from composer.system.notices import warn_caller
from composer.weights.config import own_parameters, read_recorded_trunk
from composer.weights.output import STUB_TEXT, copy_files
from composer.weights.plan import Inherited, Plan, make_plan, weights_of
from composer.weights.record import CONFIG, RECORD, Record, SavedByTransformers, describe_file, read_record, versions
from composer.weights.stream import BLOCK, as_tensor, blocks, initial_values, same_contents
from composer.weights.verify import problems_of
from converters.bounded import MOST_CONFIG, read_json
from converters.composed import ADAPTER_KEY
from converters.errors import ConverterError
from converters.model_types import AUTO_MAP, STUB
from converters.quantised import quantisation_of
from converters.shard import BYTES, StoredTensor, read_packed_shard
from converters.source import GENERATION_CONFIG, INDEX, Source, open_source, weight_files
from converters.trunk import Trunk

BESIDE = (CONFIG, GENERATION_CONFIG, INDEX)
"""The files that transformers writes beside the weights."""


@dataclass(frozen=True)
class Origin:
    """The state of a model when it was loaded or built in this process.

    record: of the folder that the model was loaded from; for a model built in memory, the record that a build would have written.
    folder: the folder with its values, inherited ones under the source's names; None where no folder has them. sha256: of the
    record's file; None for a model built in memory.
    """

    record: Record
    folder: Path | None
    sha256: str | None


def initial_values_of(record: Record) -> Callable[[str], torch.Tensor | None]:
    """Return a function of a parameter's name to its initial values, which follow from the seed; None if it is not fresh."""
    trunk = read_recorded_trunk(record.trunk)
    parameters = own_parameters(record.resolved, trunk if isinstance(trunk, Trunk) else None)
    fresh = record.plan.fresh
    return lambda name: (
        initial_values(name, parameters[name], fresh[name].dtype, record.seed) if name in fresh and name in parameters else None
    )


class _Records:
    """Keeps the record of a folder with the model that is loaded from it, and writes one where the model is saved."""

    def after_load(self, model: Any, reference: Any, load_options: Mapping[str, Any]) -> None:
        """Keep the record beside the weights, if there is one that can be read. reference: None for weights in memory."""
        if reference is None:
            return
        try:
            path = cached_file(
                str(reference),
                RECORD,
                **load_options,
                _raise_exceptions_for_gated_repo=False,
                _raise_exceptions_for_missing_entries=False,
                _raise_exceptions_for_connection_errors=False,
            )
            record = None if path is None else read_record(Path(path).parent)
        except (BuildError, OSError, ValueError):
            return
        if path is not None and record is not None:
            model._origin = Origin(record, Path(path).parent, sha256(Path(path)))

    def after_save(self, model: Any, folder: Path) -> None:
        """Write the record beside the weights. If that fails, log a warning with the reason; the save itself succeeds."""
        if getattr(model, "_hf_peft_config_loaded", False):
            if getattr(model.config, ADAPTER_KEY, None) is not None:
                warn_caller(
                    f"{folder} is saved without its model: transformers writes only the adapters of such a model. Fold them into "
                    "the weights (`compose merge`), and load and save the result"
                )
            return  # a folder of adapters alone has no record
        if getattr(model.config, "auto_map", None) == AUTO_MAP:
            write_whole(folder / STUB, STUB_TEXT)
        if not isinstance(model._origin, Origin):
            return
        try:
            _copy_licence(model._origin, folder)
            packed = quantisation_of(read_json(folder / CONFIG, MOST_CONFIG)) is not None
            record = _record_of_packed(model._origin, folder) if packed else _record_of_saved(model._origin, folder)
            write_whole(folder / RECORD, record.model_dump_json(indent=2) + "\n")
        except (ComposerError, ConverterError, OSError) as error:
            warn_caller(f"{folder} is saved without {RECORD}, its record: {error}")


def keep_records() -> None:
    """From now on, keep the record of every composed model that is loaded, and write it where the model is saved."""
    if not any(isinstance(keeper, _Records) for keeper in KEEPERS):
        KEEPERS.append(_Records())


def write_unpacked_record(packed: Path, folder: Path) -> None:
    """Write the record of a model whose quantised weights were unpacked into a folder. packed: the folder of these. Raises
    ComposerError, ConverterError and OSError."""
    packed_record = read_record(packed)
    if packed_record is not None:
        record = _record_of_saved(Origin(packed_record, None, sha256(packed / RECORD)), folder)
        write_whole(folder / RECORD, record.model_dump_json(indent=2) + "\n")


def _record_of_packed(origin: Origin, folder: Path) -> Record:
    """Return the record for a folder with quantised weights. Its plan is that of the weights before. Raises ConverterError."""
    record, shards = origin.record, weight_files(folder, read_packed_shard)
    save = SavedByTransformers(after=origin.sha256, tensors=len(record.plan.parameters), changed=None, versions=versions())
    files = {
        name: describe_file(shard.file, "written", origin=None, contents=sha256(shard.file), shard=shard)
        for name, shard in shards.items()
    }
    return record.model_copy(update={"files": files, "documents": _documents(record, folder), "saved": (*record.saved, save)})


def _documents(record: Record, folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the files beside saved weights."""
    names = (*BESIDE, *(() if record.source is None else record.source.licence.files))
    return {name: sha256(folder / name) for name in names if (folder / name).is_file()}


def _record_of_saved(origin: Origin, folder: Path) -> Record:
    """Return the record for a folder that transformers has saved a model to. Raises ComposerError and ConverterError."""
    record, saved = origin.record, open_source(folder)
    spec_hash = saved.config.get("spec_hash")
    if spec_hash != record.spec_hash:
        raise BuildError(f"its config.json has the spec {spec_hash}, and the model was built with {record.spec_hash}")
    plan = make_plan(record.resolved, saved.trunk, weights_of(saved), before=record.plan)
    if problems := problems_of(folder, record.resolved, plan):
        raise BuildError("; ".join(problems))
    same = _compare_with_initial(origin, saved, plan)
    save = SavedByTransformers(
        after=origin.sha256,
        tensors=len(same),
        changed=None if None in same.values() else sum(is_same is False for is_same in same.values()),
        versions=versions(),
    )
    return record.model_copy(
        update={
            "trunk": asdict(saved.trunk),
            "plan": plan,
            "files": {
                name: describe_file(shard.file, "written", origin=None, contents=sha256(shard.file))
                for name, shard in saved.shards.items()
            },
            "documents": _documents(record, folder),
            "untrained": tuple(name for name in record.untrained if same.get(name) is not False),
            "saved": (*record.saved, save),
        }
    )


def _copy_licence(origin: Origin, folder: Path) -> None:
    """Copy the files with the licence of a model's source, which transformers does not save. Raises OSError."""
    source = origin.record.source
    if source is None or origin.folder is None:
        return
    missing = [name for name in source.licence.files if (origin.folder / name).is_file() and not (folder / name).exists()]
    copy_files(origin.folder, missing, folder)


def _compare_with_initial(origin: Origin, saved: Source, plan: Plan) -> dict[str, bool | None]:
    """Return for each parameter whether it still has its initial values; None if these can no longer be read."""
    before, initial = _values(origin, saved.folder), initial_values_of(origin.record)
    unchanged: dict[str, bool | None] = {}
    for name in plan.parameters:
        entry = origin.record.plan.parameters.get(name)
        tensor_name = entry.tensor if origin.sha256 is None and isinstance(entry, Inherited) else name
        value = before[tensor_name] if tensor_name in before else initial(name) if origin.sha256 is None else None
        unchanged[name] = None if value is None else _has_values(saved.tensors[name], value)
    return unchanged


def _values(origin: Origin, folder: Path) -> Mapping[str, StoredTensor]:
    """Return the stored tensors of the model's origin; none if its folder is missing, has changed, or was just overwritten."""
    if origin.folder is None or not origin.folder.is_dir() or origin.folder.samefile(folder):
        return {}
    try:
        if origin.sha256 is not None and sha256(origin.folder / RECORD) != origin.sha256:
            return {}
        source = open_source(origin.folder)
    except (ConverterError, OSError):
        return {}
    recorded = origin.record.source
    if origin.sha256 is None and (recorded is None or recorded.config_sha256 != source.config_sha256):
        return {}
    return source.tensors


def _has_values(stored: StoredTensor, values: StoredTensor | torch.Tensor) -> bool:
    """True if a stored tensor has the values that ``values``, stored or in memory, has in its type."""
    if isinstance(values, StoredTensor) and values.dtype == stored.dtype:
        return same_contents(values, stored)
    count, step = math.prod(stored.shape), BLOCK // 8
    if math.prod(values.shape) != count:
        return False
    for first in range(0, count, step):
        last = min(first + step, count)
        expected = _part(values, first, last) if isinstance(values, StoredTensor) else values.reshape(-1)[first:last]
        part = _part(stored, first, last)
        if not torch.equal(expected.to(part.dtype), part):
            return False
    return True


def _part(tensor: StoredTensor, first: int, last: int) -> torch.Tensor:
    """Return the values of a stored tensor from ``first`` to ``last``, fewer than a block holds."""
    width = BYTES[tensor.dtype]
    (block,) = blocks(tensor.file, tensor.start + first * width, tensor.start + last * width)
    return as_tensor(block, tensor.dtype)
