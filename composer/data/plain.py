"""Documents out of plain text: the whole file, its paragraphs, or its lines."""

from __future__ import annotations

from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO

from composer.data.bounds import too_long
from composer.files import MOST_TEXT


def read_plain(stream: BinaryIO, file: Path, by: str) -> Iterator[dict[str, str]]:
    """Yield the documents of an open file; nothing blank. Raises DataError for one that is too long, and UnicodeDecodeError."""
    text = TextIOWrapper(stream, encoding="utf-8-sig")  # which reads each end of a line as "\n"
    if by == "document":
        whole = text.read(MOST_TEXT + 1)
        if _too_long(whole):
            raise too_long(str(file), file.stat().st_size)
        if whole.strip():
            yield {"text": whole}
        return
    held: list[str] = []
    size = number = 0
    while line := text.readline(MOST_TEXT + 1):
        number += 1
        if _too_long(line):
            raise too_long(f"{file}:{number}")
        line = line.rstrip("\n")
        if by == "line":
            if line.strip():
                yield {"text": line}
        elif line.strip():
            held.append(line)
            size += len(line) + 1
            if size > MOST_TEXT:
                raise too_long(f"{file}: the paragraph that ends after line {number}")
        elif held:
            yield {"text": "\n".join(held)}
            held, size = [], 0
    if held:
        yield {"text": "\n".join(held)}


def _too_long(text: str) -> bool:
    return len(text) > MOST_TEXT or (len(text) * 4 > MOST_TEXT and len(text.encode("utf-8", "surrogatepass")) > MOST_TEXT)
