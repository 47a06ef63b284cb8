"""The entry point of the command: Ctrl-C during the imports ends it as quietly as later.

The standard streams are made safe before anything is printed.

- A stream that is closed at the start is connected to the null device. Otherwise the next file that is opened would get its
  number, and messages would be written into that file.
- If the reader of a pipe has closed it (``compose show | head -1``), the rest of the output is dropped. This is not an error: the
  command finishes its work with its usual exit code.
- If stdout cannot be written for another reason, such as a full disk, an ``OutputError`` ends the command. Messages on stderr that
  cannot be written are dropped, as nothing can report it.
"""

from __future__ import annotations

import io
import os
import select
import sys
from typing import Any, TextIO

from composer.system.subprocesses import protect_children


class _Output(io.RawIOBase):
    """A descriptor to write to. name: of the stream, in the error; None: output that cannot be written is dropped."""

    def __init__(self, descriptor: int, name: str | None) -> None:
        self._descriptor, self._name, self._is_lost = descriptor, name, False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, content: Any) -> int:
        """Write some of the bytes, or drop all of them once the output is lost. Raises OutputError, once."""
        while not self._is_lost:
            try:
                return os.write(self._descriptor, content)
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except BrokenPipeError:
                self._is_lost = True
            except OSError as error:
                self._is_lost = True  # what is in the buffers would fail again as the program exits
                if self._name is not None:
                    from composer.errors import OutputError
                    from converters.bounded import reason

                    raise OutputError(
                        f"{self._name} cannot be written: {reason(error)}. Send it to another file or disk."
                    ) from error
        return len(content)


def guard_streams() -> None:
    """Make stdin, stdout and stderr safe to use."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = _guard(sys.stdout, 1, "stdout")
    sys.stderr = _guard(sys.stderr, 2, None)


def _guard(stream: TextIO | None, descriptor: int, name: str | None) -> TextIO:
    """Return a stream with the same encoding that writes through ``_Output``."""
    raw = _Output(descriptor, name)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding="utf-8" if stream is None else stream.encoding,
        errors="replace" if stream is None else stream.errors,
        line_buffering=name is None or raw.isatty(),
    )


def main() -> None:
    """``compose``."""
    guard_streams()
    protect_children()
    try:
        from composer.cli.main import main as command
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)
    command()
