"""The run folder, and its ``run.json``: the settings that a resumed run must share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from composer.errors import TrainingError
from composer.files import failing_as, move_folder, partial_of, replaced_by
from composer.locks import beside, exclusive_lock
from composer.state import read_state, write_state
from composer.training.identity import REFERENCES, RunSettings, differences

IDENTITY = "run.json"


def check_run_folder(folder: Path, *, resume: bool, force: bool) -> None:
    """Raises TrainingError where a run can neither start nor continue in a folder, as another run or other files are in it."""
    if (folder / IDENTITY).is_file():
        with _writable(folder), _alone(folder):
            pass
    _check(folder, resume=resume, force=force)


def _check(folder: Path, *, resume: bool, force: bool) -> None:
    """The same check without the lock: another run may be using the folder."""
    if not folder.exists():
        if resume:
            raise TrainingError(f"There is no run to go on with at {folder}. Leave --resume out to begin one.")
        return
    if not folder.is_dir():
        raise TrainingError(f"{folder} is a file, and the run would stand there. Move it away, or choose another --out.")
    if not (folder / IDENTITY).is_file():
        with failing_as(TrainingError, f"{folder} cannot be read", "Choose another --out."):
            empty = not os.listdir(folder)
        if not empty or resume:
            raise TrainingError(f"{folder} holds no {IDENTITY}, so no run wrote it. Move it away, or choose another --out.")
        return
    if not (resume or force):
        raise TrainingError(f"A run has stopped at {folder}. Go on with --resume, or begin anew with --force.")


def check_same(folder: Path, settings: RunSettings) -> None:
    """Raises TrainingError where the run in a folder is another one."""
    path = folder / IDENTITY
    remedy = f"Begin anew: --force, or remove {folder}."
    try:
        begun = read_state(path, RunSettings, TrainingError, remedy)
    except FileNotFoundError as error:
        raise TrainingError(f"{path} is not there any more, so nothing says which run it is. {remedy}") from error
    then, now = begun.by_option(), settings.by_option()
    if any(then.get(what) != value for what, value in now.items() if what != REFERENCES):
        told = "".join(f"\n  {line}" for line in differences(then, now))
        raise TrainingError(
            f"The run at {folder} was begun with other settings:{told}\nSay the same as then, or begin anew with --force."
        )


@contextmanager
def run_folder(folder: Path, settings: RunSettings, *, resume: bool, force: bool) -> Iterator[None]:
    """Locks the folder of a run for the block; a new one appears together with its ``run.json``, or not at all.

    resume: continue the folder's run. force: replace it. Raises TrainingError.
    """
    with ExitStack() as held:
        with _writable(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(_alone(folder))
            _check(folder, resume=resume, force=force)  # again, now under the lock: another run may have ended since
            if resume:
                check_same(folder, settings)
            else:
                _make_anew(folder, settings)
        yield


def _make_anew(folder: Path, settings: RunSettings) -> None:
    partial = partial_of(folder)
    for left in (partial, replaced_by(partial)):  # by a killed run
        if left.exists():
            shutil.rmtree(left)
    write_state(partial / IDENTITY, settings)
    replaced = move_folder(partial, folder)
    if replaced is not None:
        shutil.rmtree(replaced, ignore_errors=True)


def remove_run(folder: Path) -> None:
    """Removes the folder of a run that has ended, from its place in one step: half of it would stand in the next run's way."""
    gone = partial_of(folder)
    with suppress(OSError):
        folder.rename(gone)
    for path in (gone, folder):
        shutil.rmtree(path, ignore_errors=True)


def _alone(folder: Path) -> AbstractContextManager[bool]:
    """Locks the folder against other runs."""
    busy = TrainingError(f"Another run writes to {folder}. Wait until it has ended, or choose another --out.")
    return exclusive_lock(beside(folder), busy)


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    with failing_as(TrainingError, f"The run cannot stand at {folder}", "Choose another --out."):
        yield
