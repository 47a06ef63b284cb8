"""The output file of a command. It appears whole or not at all, and replaces another only with --force."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from composer.errors import ComposerError
from composer.spec.inherit import short_path
from composer.system.files import failing_as, whole_file
from composer.system.locks import beside, exclusive_lock


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
