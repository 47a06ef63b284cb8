"""``verify``: whether a built model still is what its record says."""

from __future__ import annotations

from collections.abc import Callable

from composer.arguments import Reference
from composer.errors import in_words
from composer.progress import BarUpdate, progress_callback
from composer.weights.findings import VerifyReport


@in_words
def verify(model: Reference, *, progress: bool | Callable[[str, int, int], None] = False) -> VerifyReport:
    """Checks a built model against its record: spec, config, coverage, shapes, hashes of all files, finite values.

    progress: ``True`` shows a bar; or what is to be called with a file's name, the bytes read of it, and its size. What does not
    match is in the report. Raises ComposerError where there is no record to check against.

        assert composer.verify("lawcat-mine").ok
    """
    from composer.weights.verify import verify as checks_of

    with progress_callback(progress, bar_of, "name", "bar", "bytes", "speed") as watch:
        return checks_of(model, watch)


def bar_of(name: str, done: int, total: int) -> BarUpdate:
    """The progress of reading a file, as a bar shows it."""
    return BarUpdate(f"reading {name}", done, total)
