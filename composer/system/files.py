"""Files and folders: their contents, and files that are written whole or not at all, whatever kills the program meanwhile."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from converters.bounded import open_regular, read_bytes, reason

PARTIAL = ".partial"
MOST_TEXT = 16 * 2**20
"""Bytes of a text that is tokenized as a whole: about 4 million tokens. A tokenizer needs about 130 times as much memory."""
MOST_SENTENCES = 256 * 2**20
"""Largest size in bytes of a file that sentences are read from."""
MARK_BYTES = 4


@contextmanager
def whole_file(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Yield a temporary path for a file in the folder of ``path``, which is created. After the block the file is flushed to the
    disk and renamed to ``path``; if the block raises, it is removed. replace: False raises FileExistsError if ``path`` exists.
    Raises OSError.
    """
    partial = partial_of(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial.unlink(
        missing_ok=True
    )  # a killed process has left it, or it is a link or a pipe, which nothing must be written through
    try:
        with system_errors(path):
            yield partial
        sync(partial)
        if replace:
            partial.replace(path)
        else:
            _take_free_place(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def system_errors(path: Path) -> Iterator[None]:
    """Raise OSError for the errors by which libraries in Rust, such as safetensors and tokenizers, report those of the system."""
    try:
        yield
    except Exception as error:
        system = re.search(r"([^:]+) \(os error (\d+)\)", str(error))
        if system is None:
            raise
        raise OSError(int(system[2]), system[1].strip(), str(path)) from error


def partial_of(path: Path) -> Path:
    """Return the path of a file or a folder while it is being written. One that a killed process has left may be removed."""
    return path.with_name(f".{path.name}{PARTIAL}")


def unique_partial_of(path: Path) -> Path:
    """Like ``partial_of``, but another path at each call, for what several processes may write at once."""
    return path.with_name(f".{path.name}.{secrets.token_hex(MARK_BYTES)}{PARTIAL}")


def backup_path(partial: Path) -> Path:
    """Return the path of a folder that ``move_folder`` replaces, until ``partial`` is in its place."""
    return partial.with_suffix(".replaced")


def move_folder(partial: Path, folder: Path, *, replace: bool = True) -> Path | None:
    """Move a folder to its place.

    replace: an existing folder is renamed to ``backup_path(partial)`` first; otherwise ``folder`` must be free or empty. A process
    that is killed between the two renames leaves the old folder there, from where ``recover`` returns it. Returns the new path of
    the replaced folder, for the caller to remove; None if there was none. Raises OSError, with both folders where they were.
    """
    if not replace or not folder.exists():
        partial.rename(folder)
        return None
    aside = backup_path(partial)
    try:
        folder.rename(aside)
        partial.rename(folder)
    except BaseException:
        if aside.exists() and not folder.exists():
            aside.rename(folder)
        raise
    try:
        return aside.rename(partial)  # a folder that is still called ``aside`` has not been replaced yet
    except OSError:
        return aside


def recover(folder: Path) -> None:
    """Clean up after processes that were killed while they wrote a folder, with paths of ``unique_partial_of``.

    A folder that ``move_folder`` has set aside returns to its place, unless another folder is there; partial folders are removed.
    Call it under the folder's lock. Raises OSError.
    """
    paths = f".{glob.escape(folder.name)}.{'[0-9a-f]' * (2 * MARK_BYTES)}"
    for aside in folder.parent.glob(f"{paths}.replaced"):
        if folder.is_dir() and any(folder.iterdir()):
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.rename(folder)
    for partial in folder.parent.glob(f"{paths}{PARTIAL}"):
        shutil.rmtree(partial, ignore_errors=True)


def write_whole(path: Path, text: str, *, replace: bool = True) -> None:
    """A text file, as ``whole_file`` has it. Raises OSError."""
    with whole_file(path, replace=replace) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def failing_as(refusal: Callable[[str], Exception], failed: str, mend: str = "") -> Iterator[None]:
    """Raise ``refusal`` for an OSError of the block, with the message ``failed: reason. mend``.

    failed: the beginning of the message, such as ``out cannot be written to``. mend: what the user can do, a sentence.
    """
    try:
        yield
    except OSError as error:
        raise refusal(f"{failed}: {reason(error)}" + (f". {mend}" if mend else "")) from error


def read_text_file(path: Path, refusal: Callable[[str], Exception], max_bytes: int, named: str = "") -> str:
    """Return the text of a regular file in UTF-8, with each end of a line as "\n". Raises ``refusal`` if it cannot be read, or
    has more than ``max_bytes`` bytes. named: what messages call it."""
    try:
        text = read_bytes(path, max_bytes).decode("utf-8-sig")
    except OSError as error:
        raise refusal(f"{named or path} cannot be read as text: {reason(error)}.") from error
    except UnicodeDecodeError as error:
        raise refusal(f"{named or path} cannot be read as text: {error.reason} at byte {error.start}; expected UTF-8.") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def sha256(file: Path) -> str:
    """SHA-256 of a whole file. Raises OSError."""
    with open_regular(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def visible_in(folder: Path) -> list[Path]:
    """Return the contents of a folder without hidden files, such as locks and files that are being written. Raises OSError."""
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


def sync(path: Path) -> None:
    """Waits until a file, or a folder's entries, are on the disk, where the system supports that."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _take_free_place(partial: Path, path: Path) -> None:
    try:
        os.link(partial, path)  # in one step, where a rename would replace
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if os.path.lexists(path):
            raise FileExistsError(path) from None
        partial.rename(path)
