"""A folder that appears whole or not at all."""

from __future__ import annotations

import errno
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType

from composer.errors import BuildError
from composer.files import move_folder, own_partial_of, own_partials_of, sync
from composer.locks import beside, exclusive_lock
from composer.weights.record import RECORD, read_record
from composer.weights.side_files import not_of_the_build
from converters.bounded import circle_of_links, reason
from converters.source import Source


def check_build(out: Path) -> None:
    """Raises ``BuildError`` for a folder with files that no build wrote: only builds are replaced."""
    record = read_record(out)
    if record is None:
        raise BuildError(f"{out} holds no {RECORD}, so no build wrote it, and --force does not replace it.")
    strangers, changed = not_of_the_build(out, record)
    for files, what in ((strangers, "no build wrote"), (changed, "somebody has changed since its build")):
        if files:
            listed = ", ".join(files[:3]) + (", …" if len(files) > 3 else "")
            listed += "" if record.documents is not None else "; its record, of an earlier version, names weights alone"
            raise BuildError(
                f"{out} holds what {what} ({listed}), and --force does not replace it. Move that, or choose another folder."
            )


def check_output(out: Path, source: Source | None, *, force: bool, check_replaceable: Callable[[Path], None] = check_build) -> Path:
    """The absolute path of the output. Raises ``BuildError`` where it is in the source, or holds what must not be replaced.

    check_replaceable: raises an error for a folder that ``force`` must not replace.
    """
    if lost := circle_of_links(out.expanduser()):
        raise BuildError(f"{lost}; expected a folder, or a free place for one.")
    out = out.expanduser().resolve()
    if source is not None:
        folder = source.folder.resolve()
        if out == folder or folder in out.parents:
            raise BuildError(f"The output {out} is the source, or lies inside it ({folder}). Choose another folder.")
        touched = [folder, *(shard.file.resolve() for shard in source.shards.values())]
        if any(out in path.parents for path in touched):
            raise BuildError(f"The source {folder} lies inside the output {out}. Choose another folder.")
    above = _existing(out.parent)
    if not above.is_dir():
        raise BuildError(f"{out} lies below a file, {above}; expected a folder. Choose another one.")
    if not out.exists():
        return out
    if not out.is_dir():
        raise BuildError(f"{out} is a file; expected a folder to write to.")
    if any(out.iterdir()):
        if not force:
            raise BuildError(f"{out} exists already. Use --force to replace it, or choose another folder.")
        check_replaceable(out)
    return out


def check_space(out: Path, needed: int) -> None:
    """Raises ``BuildError``, before the first byte is written, where the disk has less than ``needed`` bytes free."""
    parent = _existing(out.parent)
    free = shutil.disk_usage(parent).free
    if needed > free:
        raise BuildError(f"No space left for {out}: it needs {needed:,} bytes, and {free:,} are free at {parent}.")


@contextmanager
def whole_or_nothing(out: Path, *, force: bool = False, check_replaceable: Callable[[Path], None] = check_build) -> Iterator[Path]:
    """Gives a temporary folder beside ``out`` that takes its place at the end, or leaves no trace if anything goes wrong.

    Before that it waits until all of it is on the disk. What stood at ``out`` is replaced only by ``force``, in one step where the
    system can exchange two folders, and removed after that. For the block, a lock keeps other builds of the same output out; what
    killed builds have left is removed. Ctrl-C and SIGTERM end the build as errors do. Raises ``BuildError``, also for file-system
    errors.
    """
    partial = own_partial_of(out)
    made = [parent for parent in (out.parent, *out.parent.parents) if not parent.exists()]
    busy = BuildError(f"Another build is at work on {out}. Wait until it has ended, or choose another folder.")
    done = False
    with _sigterm_raises(), ExitStack() as held:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            if held.enter_context(exclusive_lock(beside(out), busy)):
                _remove_abandoned(out)
            check_output(
                out, None, force=force, check_replaceable=check_replaceable
            )  # another build may have written there while the source was read
            partial.mkdir()
            yield partial
            _sync_all(partial)
            with _undisturbed():
                check_output(out, None, force=force, check_replaceable=check_replaceable)
                replaced = move_folder(partial, out, replace=force)
                done = True
                # The output is in place: later errors are not failures of the build.
                with suppress(OSError):
                    sync(out.parent)
                if replaced is not None:
                    shutil.rmtree(replaced, ignore_errors=True)
        except OSError as error:
            raise BuildError(_what_failed(error, out)) from error
        finally:
            with _undisturbed():
                if not done:
                    shutil.rmtree(partial, ignore_errors=True)
                held.close()
                for parent in () if done else made:
                    with suppress(OSError):
                        parent.rmdir()


def _remove_abandoned(out: Path) -> None:
    """Remove the temporary folders beside the output that killed builds have left."""
    for partial in own_partials_of(out):
        shutil.rmtree(partial, ignore_errors=True)


def _sync_all(folder: Path) -> None:
    """Waits until everything in the folder is on the disk, linked files excepted: they are older than this build."""
    paths = list(folder.rglob("*"))
    for path in paths:
        if path.is_dir() or path.stat().st_nlink == 1:
            sync(path)
    sync(folder)


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Makes SIGTERM end the process through its ``finally`` clauses, as Ctrl-C does, unless another handler is set."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keeps a (second) Ctrl-C or SIGTERM out of the few steps that must not stop half-way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _what_failed(error: OSError, out: Path) -> str:
    nothing = "Nothing was written, and the source is as it was."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(_existing(out)).free
        return f"No space left for {out} ({free:,} bytes free there). {nothing}"
    if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
        return f"{out} has come to be since this build began, and stays. Use --force to replace it, or choose another folder."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"Not allowed to write {error.filename or out}: {reason(error)}. {nothing}"
    where = f" ({error.filename})" if error.filename else ""
    return f"Writing {out} failed: {reason(error)}{where}. {nothing}"


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())
