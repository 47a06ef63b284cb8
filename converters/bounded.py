"""Read files from untrusted sources within bounds: only regular files, up to a given size, inside their folder.

A problem with a file raises an ``OSError`` with the reason in ``strerror``, a problem with its contents a ``ValueError``, as
reading any file may do.
"""

from __future__ import annotations

import codecs
import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

MOST_CONFIG = 16 * 2**20
"""Bytes of a model's config, of its adapters', of a run's settings."""
MOST_NAMES = 32 * 2**20
"""Bytes of a file that lists every tensor: an index, or a header. Those of the largest models have half as many."""
MOST_RECORD = 128 * 2**20
"""Largest size in bytes of a record, which lists the origin of every tensor."""
MOST_LOG = 2**30
"""Bytes of a log."""
MOST_BESIDE = 256 * 2**20
"""Bytes of a file beside the weights, such as a tokenizer: the largest have a tenth as many."""
DEEPEST = 100
"""Levels of nesting that JSON may have."""

MOST_MEMORY = 256 * 2**20
"""Bytes of memory that the values of any JSON may need."""
MEMORY_FACTOR = 20
"""The values of a larger file may need so many times its bytes."""

_CONTAINER_BYTES, _VALUE_BYTES, _MISTAKE_BYTES = 200, 72, 500
"""Bytes of memory of a list or a mapping, of any other value, and of a value that pydantic describes in an error."""
_PIECE = 4 * 2**20
"""Characters of a list of JSON that are read at once."""
_BLANK, _CLOSING = re.compile(r"[ \t\n\r]*"), re.compile(r"[ \t\n\r]*([],])")
_NOT_REGULAR = "no regular file"
_TOO_DEEP = f"nested deeper than {DEEPEST} levels"
_SNAPSHOTS, _BLOBS = "snapshots", "blobs"
_SURROGATE = re.compile("[\ud800-\udfff]")
_SHOWN, _LISTED = 80, 20


@contextmanager
def open_regular(path: Path) -> Iterator[BufferedReader]:
    """A regular file for reading; a device or a pipe is not waited for. Raises OSError."""
    with open(_descriptor(path), "rb") as stream:
        yield stream


@contextmanager
def appending(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file to append to it, and create it where it is missing. Raises OSError, also for a device or a pipe."""
    with open(_descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as stream:
        yield stream


def check_file(path: Path, max_bytes: int | None = None) -> None:
    """Raise OSError unless the path is a regular file that may be read, of at most ``max_bytes`` bytes.

    Call it before a library opens the path itself: most libraries wait for a pipe, and read a device to its end.
    """
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
    if max_bytes is not None and size > max_bytes:
        raise _too_large(path, max_bytes)


def files_matching(folder: Path, patterns: Iterable[str]) -> list[str]:
    """Return the names in a folder that match any of the patterns, sorted: files, and links whatever their targets.

    A pattern ``inside/*`` matches names in the subfolder ``inside``. Folders are left out, unless their names have a suffix, as
    ``tokenizer.json`` has: a file of that name is expected. Raises OSError if a folder cannot be listed.
    """
    names: set[str] = set()
    for pattern in patterns:
        inside, _, name_pattern = pattern.rpartition("/")
        place = folder / inside
        if inside and not os.path.isdir(place):
            continue
        for name in os.listdir(place):
            path = place / name
            if fnmatchcase(name, name_pattern) and (path.suffix or not os.path.isdir(path)):
                names.add(f"{inside}/{name}" if inside else name)
    return sorted(names)


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Return all of a regular file. Raises OSError, also if it has more than ``max_bytes`` bytes."""
    with open_regular(path) as stream:
        content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise _too_large(path, max_bytes)
    return content


def read_text(path: Path, max_bytes: int) -> str:
    """Return the text of a file in UTF-8, with ``\\n`` at the end of every line. Raises OSError, also if it has more than
    ``max_bytes`` bytes, and ValueError."""
    return read_bytes(path, max_bytes).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path, max_bytes: int) -> Any:
    """Return the contents of a JSON file. Raises OSError and ValueError."""
    return parse_json(read_bytes(path, max_bytes))


def read_object(path: Path, max_bytes: int = MOST_CONFIG) -> dict[str, Any]:
    """Return the contents of a JSON file; empty where there is none, or no object in it, which the file's own reader reports."""
    try:
        content = read_json(path, max_bytes)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def read_object_within(folder: Path, name: str, max_bytes: int = MOST_CONFIG) -> dict[str, Any]:
    """``read_object`` of a file in a folder; empty also for links that lead out of it."""
    try:
        return read_object(within(folder, name), max_bytes)
    except OSError:
        return {}


def read_json_bytes(path: Path, max_bytes: int) -> bytes:
    """Return all of a JSON file for a parser that lists every mistake. Raises OSError, also for too many values."""
    content = read_bytes(path, max_bytes)
    try:
        check_memory(content, value_bytes=_MISTAKE_BYTES)
    except ValueError as error:
        raise OSError(errno.EFBIG, str(error), str(path)) from None
    return content


def check_memory(text: str | bytes, factor: int = MEMORY_FACTOR, value_bytes: int = _VALUE_BYTES) -> None:
    """Raise ValueError for JSON whose values may need more than ``MOST_MEMORY`` bytes, and more than ``factor`` times its own.

    A list of three bytes needs twenty times as many. Brackets and commas within strings count, too, as this is fast.
    """
    max_bytes, count = max(MOST_MEMORY, factor * len(text)), cast("Callable[..., int]", text.count)
    opening, mapping, comma = ("[", "{", ",") if isinstance(text, str) else (b"[", b"{", b",")
    if _CONTAINER_BYTES * (count(opening) + count(mapping)) + value_bytes * count(comma) > max_bytes:
        raise ValueError(f"its lists, mappings and values may need more than {max_bytes:,} bytes of memory")


def parse_json(
    text: str | bytes,
    pairs: Callable[[list[tuple[str, Any]]], Any] | None = None,
    constants: Callable[[str], Any] | None = None,
    factor: int = MEMORY_FACTOR,
) -> Any:
    """pairs: converts the keys and values of a mapping. constants: converts NaN and Infinity, which Python reads and JSON does not
    have. Raises ValueError, also if it is nested too deep, for text with a lone surrogate, which no encoding has, and as
    ``check_memory`` does."""
    check_memory(text, factor)
    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=constants)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return _checked(value)


def parse_list(stream: BinaryIO, longest: int) -> Iterator[tuple[Any, int]]:
    """Yield the items of a JSON list while it is read, each with the number of its characters.

    stream: in UTF-8. longest: the most characters of an item. Raises ValueError as ``parse_json`` does, and what reading raises.
    """
    decoder, decode = codecs.getincrementaldecoder("utf-8-sig")(), json.JSONDecoder().raw_decode

    def read(size: int) -> str:
        content = stream.read(size)
        return decoder.decode(content, final=not content)

    text, place, mark = read(_PIECE), 0, ""
    while mark != "]":
        start = _BLANK.match(text, place).end()  # pyright: ignore[reportOptionalMemberAccess]  it matches nothing, too
        if text[start : start + 1] == {"": "[", "[": "]"}.get(mark):  # the list begins, or is empty
            place, mark = start + 1, text[start]
            continue
        item, end, closing = None, start, None
        try:
            item, end = decode(text, start)
            closing, problem = _CLOSING.match(text, end), f"expected a comma or ] at {brief(text[end : end + _SHOWN])}"
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None
        except json.JSONDecodeError as error:
            problem = f"{error.msg} at {brief(text[error.pos : error.pos + _SHOWN])}"
        if closing is not None and mark:
            yield _checked(item), end - start
            place, mark = closing.end(), closing[1]
            continue
        unparsed = text[place:]  # an item goes on in the next piece
        if len(unparsed) > longest or not (piece := read(max(_PIECE, len(unparsed)))):
            raise ValueError(problem if len(unparsed) <= longest else f"an item of the list has more than {longest:,} characters")
        text, place = unparsed + piece, 0
        check_memory(text if len(unparsed) > _PIECE else "", factor=0)
    while not (after := text[place:].strip()):
        text, place = read(_PIECE), 0
        if not text:
            return
    raise ValueError(f"expected nothing after the list, got {brief(after[:_SHOWN])}")


def _checked(value: Any) -> Any:
    """Return a value of JSON. Raises ValueError if it is nested too deep, or has text with a lone surrogate."""
    level, depth = [[value]], 0
    while level:
        if depth > DEEPEST:
            raise ValueError(_TOO_DEEP)
        inside = [item for outer in level for item in ((*outer, *outer.values()) if isinstance(outer, dict) else outer)]
        for item in inside:
            if isinstance(item, str) and not is_text(item):
                raise ValueError(f"{brief(item)} has a lone surrogate, which is no character")
        level, depth = [item for item in inside if isinstance(item, dict | list)], depth + 1
    return value


def within(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder, which need not exist. Raises OSError for an impossible name, for a link to nothing,
    and for a link out of the folder, except into the blobs of the model in the Hub's cache."""
    path = folder / name
    if circle_of_links(path):
        raise OSError(errno.ELOOP, "it is a link that leads back to itself", str(path))
    try:
        true, home = path.resolve(), folder.resolve()
    except ValueError:  # a zero byte in it
        raise OSError(errno.EINVAL, "no file can have this name", brief(name)) from None
    blobs = home.parent.parent / _BLOBS if home.parent.name == _SNAPSHOTS else None
    if not true.is_relative_to(home) and true.parent != blobs:
        raise OSError(
            errno.EXDEV, "it leads out of its folder, and such links are not followed: put the file itself there", str(path)
        )
    if os.path.islink(path) and not os.path.exists(true):
        raise OSError(errno.EINVAL, f"it is a link to {shorten(os.readlink(path))}, which is not there", str(path))
    return path


def circle_of_links(path: Path) -> str | None:
    """Return the message for a path through a link that leads back to itself; None for any other path."""
    for parent in (path, *path.parents):
        try:
            os.stat(parent)
        except OSError as error:
            if error.errno == errno.ELOOP and os.path.islink(parent):
                return f"{shorten(str(parent))} is a link that leads back to itself"
        except ValueError:  # a zero byte in it
            break
        else:
            break
    return None


def lost_link_message(path: Path) -> str | None:
    """Return the message for a path through a circle of links, or for a link whose target does not exist; None for any other
    path."""
    circle = circle_of_links(path)
    if circle is None and os.path.islink(path) and not os.path.exists(path):
        return f"{shorten(str(path))} is a link to {shorten(os.readlink(path))}, which is not there"
    return circle


def is_text(text: str) -> bool:
    """Whether a string can be encoded: it has no lone surrogates."""
    return text.isascii() or not _SURROGATE.search(text)


def is_name(name: str) -> bool:
    """Whether this can be the name of a file in the folder itself."""
    return is_text(name) and 0 < len(os.fsencode(name)) <= 255 and "\0" not in name and "/" not in name and name not in (".", "..")


def brief(value: object) -> str:
    """Return a value of a file as messages show it, on one line."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or lists in lists
        text = f"a {type(value).__name__}"
    return shorten(text)


def shorten(text: str, max_length: int = _SHOWN) -> str:
    """Return the first ``max_length`` characters of a text, with escapes for those that cannot be shown."""
    text = text if len(text) <= max_length else f"{text[:max_length]}…"
    return text if text.isprintable() else repr(text)[1:-1]


def reason(error: OSError) -> str:
    """Return why a file could not be read or written: ``No space left on device``; never empty."""
    if error.errno == errno.ENAMETOOLONG:
        return "a name in this path is longer than the file system allows (mostly 255 bytes). Choose a shorter one"
    return error.strerror or str(error) or type(error).__name__


def problem_with(error: OSError) -> str:
    """Return the file that could not be read or written, where the error names one, and why: ``facts.json: Permission denied``."""
    named = isinstance(error.filename, str | bytes)
    return f"{shorten(os.path.basename(os.fsdecode(error.filename)))}: {reason(error)}" if named else reason(error)


def list_first(names: Iterable[str]) -> str:
    """Return the first of some names, and how many more there are."""
    every = list(names)
    more = [f"and {len(every) - _LISTED:,} more"] if len(every) > _LISTED else []
    return ", ".join([*map(shorten, every[:_LISTED]), *more])


def _too_large(path: Path, max_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"larger than {max_bytes:,} bytes, the most that are read of such a file", str(path))


def _descriptor(path: Path, flags: int = os.O_RDONLY) -> int:
    try:
        # Without O_NONBLOCK, a pipe is waited for until another process opens its other end.
        descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)
    except ValueError:
        raise OSError(errno.EINVAL, "no file can have this name", brief(str(path))) from None
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe that nobody reads, opened for writing, or a socket
            raise OSError(errno.EINVAL, _NOT_REGULAR, str(path)) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) and not _is_of_the_kernel(path):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "a folder, and a file was expected", str(path))
    raise OSError(errno.EINVAL, _NOT_REGULAR, str(path))


def _is_of_the_kernel(path: Path) -> bool:
    """Whether a path leads into /proc or /sys. Their files count as regular ones of no size, and reading some of them waits for
    the kernel, or changes the machine's state."""
    return os.path.realpath(path).startswith(("/proc/", "/sys/"))
