"""The folder that a run stands in, and what it must agree in with whoever goes on with it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from composer.errors import TrainingError
from composer.locks import alone
from composer.weights.record import known_sha256, record_of
from converters.bounded import MOST_CONFIG, read_json
from converters.source import Source

IDENTITY = "run.json"
Identity = Mapping[str, Any]
"""By what a user calls it: all that decides a run's numbers, as JSON has it."""


def fingerprint(source: Source) -> dict[str, Any]:
    """What tells a model from others, without reading its weights: where nobody has hashed a file, its time stamp does."""
    record = record_of(source)
    return {
        "config": source.config_sha256,
        "spec": None if record is None else record.spec_hash,
        "files": {
            name: [shard.bytes, shard.header_sha256, known_sha256(source, record, name) or shard.file.stat().st_mtime_ns]
            for name, shard in source.shards.items()
        },
    }


def check_standing(folder: Path, *, resume: bool, force: bool) -> None:
    """Whether a run can begin in a folder, or go on there. Nothing but what a run wrote is in its way. Raises TrainingError."""
    if not folder.exists():
        if resume:
            raise TrainingError(f"There is no run to go on with at {folder}. Leave --resume out to begin one.")
        return
    if not folder.is_dir():
        raise TrainingError(f"{folder} is a file, and the run would stand there. Move it away, or choose another --out.")
    if not (folder / IDENTITY).is_file():
        if any(folder.iterdir()) or resume:
            raise TrainingError(f"{folder} holds no {IDENTITY}, so no run wrote it. Move it away, or choose another --out.")
        return
    with alone(folder / IDENTITY, TrainingError):
        pass
    if not (resume or force):
        raise TrainingError(f"A run has stopped at {folder}. Go on with --resume, or begin anew with --force.")


def check_same(folder: Path, identity: Identity) -> None:
    """Whether the run in a folder is this one. Raises TrainingError."""
    path = folder / IDENTITY
    try:
        begun = read_json(path, MOST_CONFIG)
    except (OSError, ValueError) as error:
        raise TrainingError(
            f"{path} cannot be read ({error}), so nothing says which run it is. Begin anew with --force."
        ) from error
    different = [what for what, now in identity.items() if not isinstance(begun, dict) or begun.get(what) != now]
    if different:
        raise TrainingError(
            f"The run at {folder} was begun with another {' and another '.join(different)}. Say the same as then, or begin anew "
            "with --force."
        )


@contextmanager
def taken(folder: Path, identity: Identity, *, resume: bool) -> Iterator[None]:
    """The folder of a run, to go on in or made anew: then it appears with what it is, or not at all.

    Inside, no other run is there. Raises TrainingError.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    with ExitStack() as held:
        try:
            begun = (folder / IDENTITY).is_file()
            if begun:
                held.enter_context(alone(folder / IDENTITY, TrainingError))
            if not resume:
                for stale in (partial, *([folder] if begun else [])):  # one that has come since is another run's
                    if stale.exists():
                        shutil.rmtree(stale)
                partial.mkdir(parents=True)
                (partial / IDENTITY).write_text(json.dumps(identity, indent=2), encoding="utf-8")
                held.enter_context(alone(partial / IDENTITY, TrainingError))
                partial.rename(folder)
        except OSError as error:
            raise TrainingError(f"The run cannot stand at {folder}: {error.strerror}. Choose another --out.") from error
        yield
