"""An output folder that appears whole or not at all, and the files of its source: linked or copied."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from composer.errors import BuildError
from composer.system.files import move_folder, recover, sync, unique_partial_of
from composer.system.locks import beside, exclusive_lock
from composer.weights.record import RECORD, Placement, not_of_the_build, read_record
from composer.weights.stream import blocks
from converters.bounded import check_file, circle_of_links, read_object_within, reason, within
from converters.source import GENERATION_CONFIG, Source
from converters.trunk import OF_CACHES


def check_build(out: Path) -> None:
    """Raise ``BuildError`` for a folder with files that no build wrote: only builds are replaced."""
    record = read_record(out)
    if record is None:
        raise BuildError(f"{out} holds no {RECORD}, so no build wrote it, and --force does not replace it.")
    strangers, changed = not_of_the_build(out, record)
    for files, origin in ((strangers, "no build wrote"), (changed, "somebody has changed since its build")):
        if files:
            listed = ", ".join(files[:3]) + (", …" if len(files) > 3 else "")
            raise BuildError(
                f"{out} holds what {origin} ({listed}), and --force does not replace it. Move that, or choose another folder."
            )


def check_output(out: Path, source: Source | None, *, force: bool, check_replaceable: Callable[[Path], None] = check_build) -> Path:
    """Return the absolute path of the output. Raises ``BuildError`` if it is in the source, or holds what must not be replaced.

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
    parent = _existing(out.parent)
    if not parent.is_dir():
        raise BuildError(f"{out} lies below a file, {parent}; expected a folder. Choose another one.")
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
    """Raise ``BuildError``, before the first byte is written, if the disk has less than ``needed`` bytes free."""
    parent = _existing(out.parent)
    free = shutil.disk_usage(parent).free
    if needed > free:
        raise BuildError(f"No space left for {out}: it needs {needed:,} bytes, and {free:,} are free at {parent}.")


@contextmanager
def whole_or_nothing(out: Path, *, force: bool = False, check_replaceable: Callable[[Path], None] = check_build) -> Iterator[Path]:
    """Create a temporary folder beside ``out`` for the block, and move it to ``out`` at the end.

    If anything fails, Ctrl-C included, ``out`` is as it was. All files are on the disk before the folder moves. An existing folder
    is replaced only with ``force``, and removed after that. For the block, a lock keeps other builds of the same output out, and
    what killed builds have left is cleaned up. Raises ``BuildError``, also for file-system errors.
    """
    partial = unique_partial_of(out)
    new_parents = [parent for parent in (out.parent, *out.parent.parents) if not parent.exists()]
    busy = BuildError(f"Another build is at work on {out}. Wait until it has ended, or choose another folder.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(beside(out), busy) as is_locked:
            if is_locked:
                recover(out)
            # Another build may have written to the place while the source was read.
            check_output(out, None, force=force, check_replaceable=check_replaceable)
            partial.mkdir()
            yield partial
            _sync_all(partial)
            check_output(out, None, force=force, check_replaceable=check_replaceable)
            replaced = move_folder(partial, out, replace=force)
            # The output is in place: later errors are not failures of the build.
            with suppress(OSError):
                sync(out.parent)
            if replaced is not None:
                shutil.rmtree(replaced, ignore_errors=True)
    except OSError as error:
        raise BuildError(_what_failed(error, out)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        for parent in new_parents:
            with suppress(OSError):  # it is not empty once the output is in place
                parent.rmdir()


def _sync_all(folder: Path) -> None:
    """Wait until everything in the folder is on the disk, linked files excepted: they are older than this build."""
    paths = list(folder.rglob("*"))
    for path in paths:
        if path.is_dir() or path.stat().st_nlink == 1:
            sync(path)
    sync(folder)


def _what_failed(error: OSError, out: Path) -> str:
    nothing = "Nothing was written, and the source is as it was."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(_existing(out)).free
        return f"No space left for {out} ({free:,} bytes free there). {nothing}"
    if error.errno in (errno.EEXIST, errno.ENOTEMPTY) and str(out) in (str(error.filename), str(error.filename2)):
        return (
            f"{out} was created while this build ran; it was not overwritten. Use --force to replace it, or choose another folder."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"Not allowed to write {error.filename or out}: {reason(error)}. {nothing}"
    file_text = f" ({error.filename})" if error.filename else ""
    return f"Writing {out} failed: {reason(error)}{file_text}. {nothing}"


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())


def link_or_copy(
    source: Path, target: Path, *, copy: bool = False, moved: Callable[[int], object] = lambda count: None
) -> tuple[Placement, str | None]:
    """Create ``target`` as a hard link to ``source``, or as a copy with the same time stamp where no link is possible. Return which
    of both it is, and the SHA-256 of a copy. Raises OSError.

    copy: always copy. moved: called with the number of bytes of each block that is copied.
    """
    source = source.resolve()
    check_file(source)
    if not copy:
        with suppress(OSError):  # another file system, or one without links: the copy fails where the disk is full or read-only
            os.link(source, target)
            return "linked", None
    digest = copy_file(source, target, moved)
    # The time stamp identifies files that nobody has hashed, such as those of a run that continues with a model built anew.
    stat = source.stat()
    with suppress(OSError):  # a file system that does not let it be set
        os.utime(target, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return "copied", digest


def copy_file(source: Path, target: Path, moved: Callable[[int], object] = lambda count: None) -> str:
    """Copy the contents of a file. Return their SHA-256. moved: called with the number of bytes of each block. Raises OSError."""
    digest = hashlib.sha256()
    with target.open("xb") as stream:
        for block in blocks(source):
            stream.write(block)
            digest.update(block)
            moved(len(block))
    return digest.hexdigest()


def copy_files(source: Path, names: Iterable[str], folder: Path) -> None:
    """Copy files of one folder into another. They are never linked: a later save would write through a link into the source.

    Settings for generation are copied without those that need a cache of keys and values. Raises OSError, also for a link out of
    the folder.
    """
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        settings = read_object_within(source, name) if name == GENERATION_CONFIG else {}
        if any(map(settings.get, OF_CACHES)):
            write_json(folder / name, {key: value for key, value in settings.items() if key not in OF_CACHES})
        else:
            copy_file(within(source, name), folder / name)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a new file of JSON."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a new file of text."""
    with path.open("x", encoding="utf-8") as stream:
        stream.write(text)


STUB_TEXT = '''"""Loads this model with the package attention-composer, which has its classes."""

NEEDS = (
    "This model needs the package attention-composer: run `pip install .` in its checkout and `import composer` before you "
    "load it, or have `compose export` write it as a folder that needs PyTorch and transformers alone."
)
try:
    import composer  # registers the classes with transformers
except ModuleNotFoundError as error:
    raise ImportError(NEEDS) from error
if not hasattr(composer, "load_spec"):
    raise ImportError(f"{NEEDS} The `composer` that is installed here is another package: {composer.__file__}.")

from transformers import AutoConfig


class Config:
    """The configuration that the package has for this model."""

    @staticmethod
    def register_for_auto_class(*_: str) -> None:
        """The package has registered its classes."""

    @staticmethod
    def from_pretrained(*arguments: str, **options: object) -> object:
        return AutoConfig.from_pretrained(*arguments, **options)
'''
"""The file in a model's folder that states what the model needs, for places where this package is not installed.

transformers runs it with ``trust_remote_code=True`` alone. Without that, transformers names the argument to pass. Where the package
is installed and not imported, the file imports it, and the model loads.
"""
