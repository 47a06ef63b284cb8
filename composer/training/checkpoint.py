"""Where a run goes on from: tensors of its units, random state and facts, in a folder that appears whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as distributed
from torch import Tensor

from composer.errors import TrainingError
from composer.training.processes import by_first, count, rank
from composer.training.unit import Unit
from converters.bounded import MOST_CONFIG, read_json

FACTS = "facts.json"
NAME = "step-{:08d}"
PARTIAL = ".{}.partial"
RANDOM, RANDOM_CUDA = "random", "random of cuda"


def save(folder: Path, step: int, units: Sequence[Unit], facts: Mapping[str, Any]) -> None:
    """Write the state after ``step`` steps, and only then remove the one before. Raises TrainingError where the disk is full."""
    target = folder / NAME.format(step)
    partial = folder / PARTIAL.format(target.name)
    whole = {"step": step, "processes": count(), **facts, "units": {unit.name: unit.facts() for unit in units}}
    try:
        by_first(lambda: _begin(folder, partial))
        with _alone():
            distributed.save(_tensors(units), checkpoint_id=partial, no_dist=count() == 1)
        by_first(lambda: _complete(partial, target, whole))
    except (OSError, distributed.CheckpointException) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise TrainingError(
            f"The checkpoint of step {step} could not be written to {folder}: {_reason(error)}. The one before it stands; "
            "make room, and go on with --resume."
        ) from error


def _begin(folder: Path, partial: Path) -> None:
    for stale in folder.glob(PARTIAL.format("*")):  # of a run that was killed
        shutil.rmtree(stale, ignore_errors=True)
    partial.mkdir(parents=True)


def _complete(partial: Path, target: Path, facts: Mapping[str, Any]) -> None:
    """Put the checkpoint in the place of the one before, once all of it is on the disk."""
    (partial / FACTS).write_text(json.dumps(facts), encoding="utf-8")
    for path in (*partial.iterdir(), partial):
        _sync(path)
    if target.exists():  # an end that was reached before, with the same numbers
        shutil.rmtree(target)
    partial.rename(target)
    _sync(target.parent)
    for older in _found(target.parent):
        if older != target:
            shutil.rmtree(older, ignore_errors=True)


def newest(folder: Path) -> Path | None:
    """The last whole checkpoint."""
    return by_first(lambda: next(reversed(_found(folder)), None))


def read_facts(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint says of itself: its step and whatever was given to ``save``. Raises TrainingError."""
    with _readable(checkpoint):
        return read_json(checkpoint / FACTS, MOST_CONFIG)


def restore(checkpoint: Path, units: Sequence[Unit]) -> None:
    """Bring units and random state to where they were, whatever the number of processes; one more than then keeps its own random
    state. Raises TrainingError where the checkpoint is damaged."""
    facts = read_facts(checkpoint)
    with _readable(checkpoint):
        for unit in units:
            unit.restore(facts["units"][unit.name])
        tensors = _tensors(units)
        if rank() >= facts["processes"]:
            tensors = {name: tensor for name, tensor in tensors.items() if name not in (_own(RANDOM), _own(RANDOM_CUDA))}
        with _alone(), torch.no_grad():
            distributed.load(tensors, checkpoint_id=checkpoint, no_dist=count() == 1)
    if _own(RANDOM) in tensors:
        torch.set_rng_state(tensors[_own(RANDOM)])
    if _own(RANDOM_CUDA) in tensors:
        torch.cuda.set_rng_state(tensors[_own(RANDOM_CUDA)], _cuda(units) or "cuda")


def _tensors(units: Sequence[Unit]) -> dict[str, Tensor]:
    held = {f"{unit.name}/{name}": tensor for unit in units for name, tensor in unit.tensors().items()}
    held[_own(RANDOM)] = torch.get_rng_state()
    device = _cuda(units)
    return held if device is None else held | {_own(RANDOM_CUDA): torch.cuda.get_rng_state(device)}


def _own(name: str) -> str:
    """Of what each process has for itself."""
    return f"{name} {rank()}"


def _cuda(units: Sequence[Unit]) -> torch.device | None:
    """The GPU that the units learn on, if they do on one."""
    devices = (parameter.device for unit in units for parameter in unit.parameters.values())
    return next((device for device in devices if device.type == "cuda"), None)


@contextmanager
def _readable(checkpoint: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, distributed.CheckpointException) as error:
        raise TrainingError(
            f"The checkpoint {checkpoint} is damaged: {_reason(error)}. Remove it to take the stage from its start with --resume, "
            "or begin anew with --force."
        ) from error


def _found(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if (path / FACTS).is_file())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: BaseException) -> str:
    """The operating system's own word for it, from inside what torch makes of it."""
    failures = getattr(error, "failures", None)
    if failures:
        error = next(iter(failures.values()))[0]
    return getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[-1]


@contextmanager
def _alone() -> Iterator[None]:
    """torch warns that there is but one process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
