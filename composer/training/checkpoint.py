"""Checkpoints of a stage, from which a stopped run continues: each is a folder that appears whole or not at all.

- ``process-N.safetensors``: parameters, the best of them, and optimiser states. Of a sharded tensor each process writes its own
  rows; all other tensors are in the first process's file.
- ``facts.json``: everything except tensors, random states, the SHA-256 of every file, and its own. It has no code, so a checkpoint
  may be from an untrusted source.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from blocks.part import Closed
from composer.errors import TrainingError, first_line
from composer.system.files import failing_as, move_folder, partial_of, sha256, sync
from composer.system.json_files import first_problem
from composer.training.options import AGAIN
from composer.training.processes import by_all, by_first, count, own_rows, rank
from composer.training.unit import Unit, UnitFacts
from composer.weights.stream import TensorToWrite, as_bytes, write_shard
from converters.bounded import MOST_CONFIG, parse_json, problem_with, read_text
from converters.trunk import dtype_name

FACTS = "facts.json"
NAME = "step-{:08d}"
_NAMED = re.compile(r"step-[0-9]{8,}")
TENSORS = "process-{}.safetensors"
Result = TypeVar("Result")
OfKind = TypeVar("OfKind", bound=Closed)


class ProcessFacts(Closed):
    """A process's share of a checkpoint: the SHA-256 of its file, and its random states as hexadecimal digits."""

    sha256: str
    random: str
    random_cuda: str | None


class CheckpointFacts(Closed):
    """The contents of ``facts.json``. units: by name; processes: by rank; state: as ``save`` has it."""

    format: Literal[1] = 1
    units: dict[str, UnitFacts]
    processes: tuple[ProcessFacts, ...]
    state: dict[str, Any]


def save(folder: Path, step: int, units: Sequence[Unit], state: Mapping[str, Any], again: str = AGAIN) -> None:
    """Write a checkpoint after ``step`` steps, then remove the one before. Raises TrainingError if it cannot be written. The
    message asks the user to free space, and ends with ``again``."""
    target = folder / NAME.format(step)
    partial = partial_of(target)
    failed = f"The checkpoint of step {step} could not be written to {folder}"
    previous = "No earlier checkpoint exists" if newest(folder) is None else "The previous checkpoint is kept"
    with failing_as(TrainingError, failed, f"{previous}. Free some space, and {again}."):
        try:
            by_first(lambda: _begin(folder, partial))
            processes = tuple(by_all(lambda: _write(partial / TENSORS.format(rank()), units)))
            stored = CheckpointFacts(units={unit.name: unit.facts() for unit in units}, processes=processes, state=dict(state))
            by_first(lambda: _complete(partial, target, stored))
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def _begin(folder: Path, partial: Path) -> None:
    for stale in folder.glob(partial_of(folder / "*").name):  # left by a run that was killed
        shutil.rmtree(stale, ignore_errors=True)
    partial.mkdir(parents=True)


def _write(file: Path, units: Sequence[Unit]) -> ProcessFacts:
    """Write this process's file: its rows of sharded tensors and, in the first process, all other tensors."""
    parts = {name: (own_rows(tensor)[0], tensor) for name, tensor in _tensors(units).items()}
    pieces = [_piece(name, local) for name, (local, tensor) in parts.items() if rank() == 0 or local is not tensor]
    digest = write_shard(file, pieces, lambda count: None)
    sync(file)
    device = _cuda(units)
    random_cuda = None if device is None else _digits(torch.cuda.get_rng_state(device))
    return ProcessFacts(sha256=digest, random=_digits(torch.get_rng_state()), random_cuda=random_cuda)


def _piece(name: str, tensor: Tensor) -> TensorToWrite:
    return TensorToWrite(name, dtype_name(tensor.dtype), tuple(tensor.shape), lambda: iter([as_bytes(tensor.cpu())]))


def _complete(partial: Path, target: Path, stored: CheckpointFacts) -> None:
    """Replace the previous checkpoint by this one, once all of it is on the disk."""
    (partial / FACTS).write_text(_text(stored.model_dump(mode="json", by_alias=True)), encoding="utf-8")
    for path in (partial / FACTS, partial):
        sync(path)
    replaced = move_folder(partial, target)  # of a run that was stopped after this step, with the same numbers
    sync(target.parent)
    if replaced is not None:
        shutil.rmtree(replaced, ignore_errors=True)
    for older in _checkpoints(target.parent):
        if older != target:
            shutil.rmtree(older, ignore_errors=True)


def newest(folder: Path) -> Path | None:
    """Return the last complete checkpoint, if there is one."""
    return by_first(lambda: next(reversed(_checkpoints(folder)), None))


def read_state(checkpoint: Path, kind: type[OfKind]) -> OfKind:
    """Return the ``state`` that ``save`` wrote. Raises TrainingError if the checkpoint is damaged."""
    return _run_undamaged(checkpoint, lambda: _valid(kind, _read_facts(checkpoint).state))


def restore(checkpoint: Path, units: Sequence[Unit]) -> None:
    """Load units and random states, once the checksums of all files have been checked.

    There may be more or fewer processes than when it was written; additional ones keep their own random states. Raises
    TrainingError if the checkpoint is damaged.
    """
    by_all(lambda: _run_undamaged(checkpoint, lambda: _check(checkpoint)))
    by_all(lambda: _run_undamaged(checkpoint, lambda: _restore(checkpoint, units)))


def _check(checkpoint: Path) -> None:
    """Check this process's share of the files."""
    for number, process in list(enumerate(_read_facts(checkpoint).processes))[rank() :: count()]:
        if sha256(checkpoint / TENSORS.format(number)) != process.sha256:
            raise ValueError(f"{TENSORS.format(number)} is not what was written")


def _restore(checkpoint: Path, units: Sequence[Unit]) -> None:
    stored = _read_facts(checkpoint)
    for unit in units:
        unit.restore(stored.units[unit.name])
    with ExitStack() as opened, torch.no_grad():
        holders: dict[str, list[Any]] = {}
        for number in range(len(stored.processes)):
            file = opened.enter_context(safe_open(checkpoint / TENSORS.format(number), "pt"))
            for name in file.keys():  # noqa: SIM118 - no dict
                holders.setdefault(name, []).append(file)
        for name, tensor in _tensors(units).items():
            _fill(tensor, name, holders[name])
    if rank() < len(stored.processes):
        process, device = stored.processes[rank()], _cuda(units)
        try:
            torch.set_rng_state(_state(process.random))
            if device is not None and process.random_cuda is not None:
                torch.cuda.set_rng_state(_state(process.random_cuda), device)
        except RuntimeError as error:
            raise ValueError(f"a random state is none: {error}") from error


def _fill(tensor: Tensor, name: str, files: Sequence[Any]) -> None:
    """Copy the rows that this process holds of a tensor out of the files, each of which has the rows after those of the last."""
    local, first = own_rows(tensor)
    if not local.dim():
        local.fill_(files[0].get_tensor(name).item())
        return
    filled, passed = 0, 0
    for file in files:
        part = file.get_slice(name)
        rows, *row_shape = part.get_shape()
        if row_shape != list(local.shape[1:]):
            raise ValueError(f"{name} has another shape")
        start, end = max(first - passed, 0), min(first + len(local) - passed, rows)
        if start < end:
            local[filled : filled + end - start].copy_(part[start:end])
            filled += end - start
        passed += rows
    if filled != len(local) or passed != len(tensor):
        raise ValueError(f"{name} has {passed:,} rows")


def _read_facts(checkpoint: Path) -> CheckpointFacts:
    """Raise ValueError if the file does not match its own checksum."""
    text = read_text(checkpoint / FACTS, MOST_CONFIG)
    facts = parse_json(text)["facts"]
    if text != _text(facts):
        raise ValueError(f"{FACTS} is not what was written")
    return _valid(CheckpointFacts, facts)


def _valid(kind: type[OfKind], facts: Any) -> OfKind:
    """Return the facts by their schema, whose types are strict. Raises ValueError with the field and what was expected."""
    try:
        return kind.model_validate_json(json.dumps(facts), strict=True)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from error


def _text(facts: Any) -> str:
    """Return the contents of ``facts.json``, to the byte."""
    return json.dumps({"sha256": hashlib.sha256(json.dumps(facts).encode()).hexdigest(), "facts": facts})


def _tensors(units: Sequence[Unit]) -> dict[str, Tensor]:
    return {f"{unit.name}/{name}": tensor for unit in units for name, tensor in unit.tensors().items()}


def _digits(state: Tensor) -> str:
    return bytes(as_bytes(state)).hex()


def _state(digits: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(digits), dtype=torch.uint8)


def _cuda(units: Sequence[Unit]) -> torch.device | None:
    """Return the GPU that the units learn on, if they do on one."""
    devices = (parameter.device for unit in units for parameter in unit.parameters.values())
    return next((device for device in devices if device.type == "cuda"), None)


def damaged_error(checkpoint: Path, problem: str) -> TrainingError:
    """Return the error for a checkpoint that cannot be continued from."""
    return TrainingError(
        f"The checkpoint {checkpoint} is damaged: {problem}. Remove it to repeat the stage from its start, or start again with "
        "--force."
    )


def _run_undamaged(checkpoint: Path, act: Callable[[], Result]) -> Result:
    try:
        return act()
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        why = problem_with(error) if isinstance(error, OSError) else first_line(error)
        raise damaged_error(checkpoint, why) from error


def _checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, in the order of their steps. They are moved there whole, so one without its files is
    damaged, which its reader reports. Raises TrainingError if the folder cannot be listed."""
    with failing_as(TrainingError, f"The checkpoints in {folder} cannot be listed"):
        names = os.listdir(folder) if os.path.lexists(folder) else []
    paths = (folder / name for name in names if _NAMED.fullmatch(name))
    return sorted((path for path in paths if os.path.isdir(path)), key=lambda path: int(path.name.removeprefix("step-")))
