"""The folder that a command writes its results into, and reports there: as JSON, as tables in Markdown, and as pictures.

- One process at a time writes into the folder. A lock is held from the check of the folder to the last file.
- One file, the ``mark``, shows which command wrote the folder. A folder with other files is not touched.
- Every file appears whole or not at all, so a process may be killed at any moment.
- Settings are a schema (``Settings``). A run is continued with equal settings; otherwise the error names the fields that differ.
- ``--force`` removes the files of the earlier run, and no others.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from blocks.part import Closed
from composer.errors import ComposerError
from composer.reporting.plotting import plotting, save
from composer.reporting.tables import Readable
from composer.spec.inherit import short_path
from composer.system.files import backup_path, failing_as, move_folder, partial_of, visible_in, whole_file, write_whole
from composer.system.json_files import read_state, write_state
from composer.system.locks import beside, exclusive_lock, inside
from converters.bounded import brief

SHOWN = 8
"""The most differing settings that a message lists."""
KEY_DIGITS = 16
"""Hexadecimal digits of the name of a result that is stored under a hash of its inputs."""


class Settings(Closed):
    """The settings of a run, as JSON in its folder."""

    def identity(self) -> dict[str, Any]:
        """Return the settings that a continued run must share, as JSON."""
        return self.model_dump(mode="json", by_alias=True)

    def differences(self, now: Any) -> list[str]:
        """Return a line for each setting of ``identity`` that differs, with both values."""
        return list(differences(self.identity(), now.identity()))

    def join_with(self, now: Any) -> Self:
        """Return the settings of the run once it is continued with the settings ``now``, which do not differ."""
        return self


OfSettings = TypeVar("OfSettings", bound=Settings)


@dataclass(frozen=True)
class RunStore:
    """The rules for the folders of one command."""

    noun: str
    """The run, for messages, such as ``evaluation``."""
    error: type[ComposerError]
    """Raised for users' mistakes."""
    mark: str
    """The file that shows that the command wrote the folder."""
    written: tuple[str, ...] = ()
    """Glob patterns of all other files and folders that the command writes."""
    result: str | None = None
    """The file of a finished run, which is not continued. None: a later call adds to a finished run."""
    has_resume: bool = False
    """The command has the option ``--resume``. Others continue a run without an option, or never."""
    is_temporary: bool = False
    """The folder exists while the run lasts. It appears with its settings, and disappears, in one step. Its lock is beside it."""

    def check(self, folder: Path, *, resume: bool = False, force: bool = False) -> bool:
        """Return True if the folder has a run of this command, False if a run can begin there.

        Raises ``error`` for a file, for a folder with other files, and for a run that is neither to be continued (``resume``) nor
        to be replaced (``force``).
        """
        if folder.exists() and not folder.is_dir():
            raise self.error(f"{folder} is a file; expected a folder for the {self.noun}. Move it away, or choose another --out.")
        if (folder / self.mark).is_file():
            is_finished = self.result is not None and (folder / self.result).is_file()
            if not force and (is_finished or not resume):
                remedy = (
                    "Continue it with --resume, or start again with"
                    if self.has_resume
                    else ("Choose another --out, or replace it:")
                )
                raise self.error(f"{folder} has the results of an earlier {self.noun}. {remedy} --force.")
            return True
        with failing_as(self.error, f"{folder} cannot be read", "Choose another --out."):
            strangers = (list(folder.iterdir()) if self.is_temporary else visible_in(folder)) if folder.is_dir() else ()
        if strangers:
            raise self.error(f"{folder} holds no {self.mark}, so no {self.noun} wrote it. Move it away, or choose another --out.")
        if resume and self.has_resume:
            raise self.error(f"There is no {self.noun} to continue at {folder}. Leave --resume out to begin one.")
        return False

    @contextmanager
    def hold(self, folder: Path, *, resume: bool = False, force: bool = False) -> Iterator[bool]:
        """Make the folder, hold its lock for the block, and ``check`` it. Yields True if it has a run of this command."""
        self.check(folder, resume=resume, force=True)  # before anything is made; another process may be at work on a run there
        with ExitStack() as stack:
            with self.writing(folder):
                (folder.parent if self.is_temporary else folder).mkdir(parents=True, exist_ok=True)
                stack.enter_context(self.lock(folder))
                has_run = self.check(folder, resume=resume, force=force)
            yield has_run

    def lock(self, folder: Path) -> AbstractContextManager[bool]:
        """Return the lock of the folder, which raises ``error`` if another process holds it."""
        busy = self.error(f"Another {self.noun} writes to {folder}. Wait until it has ended, or choose another --out.")
        return exclusive_lock(beside(folder) if self.is_temporary else inside(folder), busy)

    @contextmanager
    def writing(self, folder: Path) -> Iterator[None]:
        """Raise ``error`` if the block cannot write to the folder."""
        with failing_as(self.error, f"{folder} cannot be written to", "Choose another --out."):
            yield

    def begin(self, folder: Path, settings: OfSettings, *, force: bool = False) -> OfSettings:
        """Write the settings of a new run, or check those of a continued one. Returns the settings of the run.

        Raises ``error`` if the run in the folder has other settings. force: remove that run.
        """
        if (folder / self.mark).is_file() and not force:
            earlier = self.check_same(folder, settings)
            settings = earlier.join_with(settings)
            if settings == earlier:
                return settings
        elif self.is_temporary:
            self._replace(folder, settings)
            return settings
        else:
            self.clear(folder)
        with self.writing(folder):
            write_state(folder / self.mark, settings)
        return settings

    def check_same(self, folder: Path, settings: OfSettings) -> OfSettings:
        """Return the settings of the run in a folder. Raises ``error`` if they differ."""
        path, remedy = folder / self.mark, f"Start again: --force, or remove {folder}."
        try:
            earlier = read_state(path, type(settings), self.error, remedy)
        except FileNotFoundError as error:
            raise self.error(f"{path} does not exist any more, so the settings of the run are unknown. {remedy}") from error
        lines = earlier.differences(settings)
        if lines:
            lines = lines if len(lines) <= SHOWN else [*lines[:SHOWN], f"and {len(lines) - SHOWN} more"]
            listed = "\n  ".join(lines)
            raise self.error(
                f"The {self.noun} in {folder} was begun with other settings:\n  {listed}\n"
                "Use the same settings, choose another --out, or start again with --force."
            )
        return earlier

    def clear(self, folder: Path) -> None:
        """Remove the files of the earlier run, and no others; the mark is the last one. Raises ``error``."""
        with self.writing(folder):
            for path in (path for pattern in self.written for path in folder.glob(pattern)):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            (folder / self.mark).unlink(missing_ok=True)

    def remove(self, folder: Path) -> None:
        """Remove the folder of a run that has ended, from its place in one step: half of it would block the next run."""
        removed = partial_of(folder)
        with suppress(OSError):
            folder.rename(removed)
        for path in (removed, folder):
            shutil.rmtree(path, ignore_errors=True)

    def _replace(self, folder: Path, settings: Settings) -> None:
        """Put a folder that has the settings alone in the place of an earlier run, in one step."""
        partial = partial_of(folder)
        with self.writing(folder):
            for abandoned in (partial, backup_path(partial)):  # by a killed run
                if abandoned.exists():
                    shutil.rmtree(abandoned)
            try:
                write_state(partial / self.mark, settings)
                replaced = move_folder(partial, folder)
            except OSError:
                shutil.rmtree(partial, ignore_errors=True)
                raise
        if replaced is not None:
            shutil.rmtree(replaced, ignore_errors=True)


def differences(then: Any, now: Any, path: str = "") -> Iterator[str]:
    """Yield a line for each value that differs, by its path. Items of lists with a ``label`` are compared by label."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys((*then, *now)):
            yield from differences(then.get(key), now.get(key), f"{path}.{key}" if path else str(key))
    elif _is_labelled(then) and _is_labelled(now) and [item["label"] for item in then] == [item["label"] for item in now]:
        for item, other in zip(then, now, strict=True):
            yield from differences(item, other, f"{path} {item['label']}")
    elif then != now:
        yield f"{path}: was {format_setting(then)}, now {format_setting(now)}"


def format_setting(value: Any) -> str:
    """Return the value of a setting for people."""
    if value is None:
        return "none"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(str(item["label"]) if _is_labelled([item]) else str(item) for item in value) or "none"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {format_setting(item)}" for key, item in value.items() if item is not None) + "}"
    return value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else brief(value)


def key_of(inputs: Mapping[str, Any]) -> str:
    """Return the name of a result that is stored under everything that decides it: a hash of these inputs, which are JSON."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:KEY_DIGITS]


def _is_labelled(items: Any) -> bool:
    return isinstance(items, Sequence) and bool(items) and all(isinstance(item, Mapping) and "label" in item for item in items)


TABLE = "table.md"
Pictures = Callable[[Any], Iterable[tuple[str, Any]]]
"""Yields names and figures, drawn with matplotlib's pyplot."""


class RunReport(Readable, Closed):
    """The results of a run. ``view`` returns their tables and notes."""

    def write(self, folder: Path, name: str) -> None:
        """Write the report as JSON to the file ``name``, and as Markdown to ``table.md``. Raises OSError."""
        write_whole(folder / name, self.model_dump_json(indent=2) + "\n")
        write_whole(folder / TABLE, self.view().markdown())


def write_pictures(pictures: Pictures, folder: Path, stale: Iterable[str] = ()) -> list[Path]:
    """Write each picture to ``NAME.png``, whole or not at all. Returns their paths. Raises OSError.

    stale: glob patterns of pictures of earlier reports, which are removed at the end unless they were written again.
    """
    written = []
    with plotting() as pyplot:
        for name, figure in pictures(pyplot):
            written.append(folder / f"{name}.png")
            save(figure, written[-1])
    for path in (path for pattern in stale for path in folder.glob(pattern)):
        if path not in written:
            path.unlink()
    return written


@contextmanager
def output_file(out: Path, refusal: type[ComposerError], *, force: bool) -> Iterator[Path]:
    """Yield a temporary path to write to. The file is moved to ``out`` after the block, and locked until then.

    Raises ``refusal`` if it cannot be written, where another process writes it, and if it exists without ``force``.
    """
    busy = refusal(f"Another run writes {short_path(out)}. Wait until it has ended, or name another file.")
    with failing_as(refusal, f"{short_path(out)} cannot be written"):
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            with exclusive_lock(beside(out), busy):
                check_output_file(out, refusal, force=force)  # again: another process may have written it meanwhile
                with whole_file(out, replace=force) as partial:
                    yield partial
        except FileExistsError:
            if out.exists():
                raise _exists(out, refusal) from None
            raise


def check_output_file(out: Path, refusal: type[ComposerError], *, force: bool, example: str = "") -> None:
    """Raise ``refusal`` if the file exists without ``force``, or is a folder. example: a name for a file in that folder."""
    if out.is_dir():
        raise refusal(f"{short_path(out)} is a folder; name a file" + (f", such as {short_path(out / example)}" if example else ""))
    if out.exists() and not force:
        raise _exists(out, refusal)


def _exists(out: Path, refusal: type[ComposerError]) -> ComposerError:
    return refusal(f"{short_path(out)} exists; name another file, or replace it with --force")
