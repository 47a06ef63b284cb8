"""The record of a model that transformers saves: ``save_pretrained``, and what calls it, such as ``Trainer``, keep it.

It is the record of the folder that the model was loaded from, or the one that a build would have written. Added are the save by
transformers, the number of tensors whose values have changed since, and the hashes of the folder's files. It does not say how the
values changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers.utils.hub import cached_file

from composer.errors import BuildError, ComposerError
from composer.files import sha256, write_whole
from composer.model.callbacks import KEEPERS
from composer.notices import warn_caller
from composer.weights.check import problems_of
from composer.weights.contents import BLOCK, as_tensor, blocks, same_contents
from composer.weights.origin import Origin, values_at_first
from composer.weights.plan import Dropped, Inherited, Plan
from composer.weights.record import RECORD, Record, SavedByTransformers, read_record, stored_file, versions
from composer.weights.side_files import CONFIG
from converters.composed import ADAPTER_KEY
from converters.errors import ConverterError
from converters.shard import BYTES, StoredTensor
from converters.source import GENERATION_CONFIG, INDEX, Source, open_source

BESIDE = (CONFIG, GENERATION_CONFIG, INDEX)
"""The files that transformers writes beside the weights."""


class _Records:
    """Keeps the record of a folder with the model that is loaded from it, and writes one where the model is saved."""

    def loaded(self, model: Any, reference: Any, where: Mapping[str, Any]) -> None:
        """Remembers the record beside the weights, where there is one that can be read. reference: None for weights in memory."""
        if reference is None:
            return
        try:
            path = cached_file(
                str(reference),
                RECORD,
                **where,
                _raise_exceptions_for_gated_repo=False,
                _raise_exceptions_for_missing_entries=False,
                _raise_exceptions_for_connection_errors=False,
            )
            record = None if path is None else read_record(Path(path).parent)
        except (BuildError, OSError, ValueError):
            return
        if path is not None and record is not None:
            model._origin = Origin(record, Path(path).parent, sha256(Path(path)))

    def saved(self, model: Any, folder: Path) -> None:
        """Puts the record beside the weights. Where that fails, a warning says why, and the save itself succeeds."""
        if getattr(model, "_hf_peft_config_loaded", False):
            if getattr(model.config, ADAPTER_KEY, None) is not None:
                warn_caller(
                    f"{folder} is saved without its model: of one with adapters transformers writes these alone, and nothing else "
                    "that was trained; fold them into the weights (`compose merge`), and load and save what comes out"
                )
            return  # a folder of adapters alone has no record
        if not isinstance(model._origin, Origin):
            return
        try:
            record = record_of_saved(model._origin, folder)
            write_whole(folder / RECORD, record.model_dump_json(indent=2) + "\n")
        except (ComposerError, ConverterError, OSError) as error:
            warn_caller(f"{folder} is saved without {RECORD}, its record: {error}")


def keep_records() -> None:
    """From now on, keep the record of every composed model that is loaded, and write it where the model is saved."""
    if not any(isinstance(keeper, _Records) for keeper in KEEPERS):
        KEEPERS.append(_Records())


def record_of_saved(origin: Origin, folder: Path) -> Record:
    """The record for a folder that transformers has saved a model to. Raises ComposerError and ConverterError."""
    known, saved = origin.record, open_source(folder)
    said = saved.config.get("spec_hash")
    if said != known.spec_hash:
        raise BuildError(f"its config.json has the spec {said}, and the model was built with {known.spec_hash}")
    plan = _plan(known.plan, saved)
    if problems := problems_of(folder, known.resolved, plan):
        raise BuildError("; ".join(problems))
    same = _unchanged(origin, saved, plan)
    save = SavedByTransformers(
        after=origin.sha256,
        tensors=len(same),
        changed=None if None in same.values() else sum(one is False for one in same.values()),
        versions=versions(),
    )
    return known.model_copy(
        update={
            "trunk": asdict(saved.trunk),
            "plan": plan,
            "files": {
                name: stored_file(shard.file, "written", origin=None, contents=sha256(shard.file))
                for name, shard in saved.shards.items()
            },
            "documents": {name: sha256(folder / name) for name in BESIDE if (folder / name).is_file()},
            "untrained": tuple(name for name in known.untrained if same.get(name) is not False),
            "saved": (*known.saved, save),
        }
    )


def _plan(known: Plan, saved: Source) -> Plan:
    """The plan of the saved folder: each parameter's origin as in the plan before, and the file that now holds it."""
    copies = {saved.covered.output_copy, *saved.covered.passed_over} & saved.tensors.keys()
    parameters = {}
    for name, tensor in saved.tensors.items():
        if name not in copies:
            entry = known.parameters.get(name) or Inherited(tensor=name, file="", output="", shape=tensor.shape, dtype=tensor.dtype)
            now = {"output": tensor.file.name, "shape": tensor.shape, "dtype": tensor.dtype}
            parameters[name] = entry.model_copy(update=now)
    again = {
        str(name): Dropped(
            file=saved.tensors[str(name)].file.name, shape=saved.tensors[str(name)].shape, reason="a copy, or no weight"
        )
        for name in copies
    }
    update = {"dtype": saved.trunk.dtype, "parameters": parameters, "dropped": known.dropped | again, "shards": ()}
    return known.model_copy(update=update)


def _unchanged(origin: Origin, saved: Source, plan: Plan) -> dict[str, bool | None]:
    """For each parameter, whether it still has its first values; None where these can no longer be read."""
    before, at_first = _values(origin, saved.folder), values_at_first(origin.record)
    found: dict[str, bool | None] = {}
    for name in plan.parameters:
        entry = origin.record.plan.parameters.get(name)
        own = entry.tensor if origin.sha256 is None and isinstance(entry, Inherited) else name
        value = before[own] if own in before else at_first(name) if origin.sha256 is None else None
        found[name] = None if value is None else _same(value, saved.tensors[name])
    return found


def _values(origin: Origin, folder: Path) -> Mapping[str, StoredTensor]:
    """The stored tensors of the model's origin; none where its folder is gone, has changed, or has just been written over."""
    if origin.folder is None or not origin.folder.is_dir() or origin.folder.samefile(folder):
        return {}
    try:
        if origin.sha256 is not None and sha256(origin.folder / RECORD) != origin.sha256:
            return {}
        source = open_source(origin.folder)
    except (ConverterError, OSError):
        return {}
    known = origin.record.source
    if origin.sha256 is None and (known is None or known.config_sha256 != source.config_sha256):
        return {}
    return source.tensors


def _same(before: StoredTensor | torch.Tensor, now: StoredTensor) -> bool:
    """Whether a stored tensor has the values that ``before`` has in its type. before: stored, or in memory."""
    if isinstance(before, StoredTensor) and before.dtype == now.dtype:
        return same_contents(before, now)
    count, step = math.prod(now.shape), BLOCK // 8
    if math.prod(before.shape) != count:
        return False
    for first in range(0, count, step):
        last = min(first + step, count)
        one = _part(before, first, last) if isinstance(before, StoredTensor) else before.reshape(-1)[first:last]
        other = _part(now, first, last)
        if not torch.equal(one.to(other.dtype), other):
            return False
    return True


def _part(tensor: StoredTensor, first: int, last: int) -> torch.Tensor:
    """The numbers of a stored tensor from ``first`` to ``last``, fewer than a block holds."""
    width = BYTES[tensor.dtype]
    (block,) = blocks(tensor.file, tensor.start + first * width, tensor.start + last * width)
    return as_tensor(block, tensor.dtype)
