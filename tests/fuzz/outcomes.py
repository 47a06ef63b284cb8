"""The allowed outcomes for damaged input: accepted, or rejected with a message, in bounded time and memory."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from composer.errors import ComposerError
from converters.errors import ConverterError

SECONDS, BYTES = 20.0, 2 * 2**30
"""Of one example, at most: of this process's own time, and beyond what it has when the example begins."""
LONGEST = 100_000
"""Characters of a message."""
LONG = float(os.environ.get("FUZZ_SECONDS", "0"))
"""Seconds for which all tests together draw new examples. 0: each test draws the same few examples at every run."""
SEED = int(os.environ.get("FUZZ_SEED", "0"))
"""The first seed of each test. A test that has time left continues with the next seed."""
TESTS: list[str] = []
"""All that share that time."""


def fuzz(strategy: st.SearchStrategy[Any], examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test on drawn examples: the same few each time, or new ones for ``FUZZ_SECONDS``. The decorated function has the
    example as its first argument, and then fixtures.
    """
    few = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=not LONG,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink) if LONG else (Phase.generate,),
    )

    def decorated(check: Callable[..., None]) -> Callable[..., None]:
        def test(tmp_path: Path) -> None:
            until, number = time.monotonic() + LONG / len(TESTS), SEED
            while True:

                def run_example(example: Any) -> None:
                    check(example, tmp_path)

                result = few(given(strategy)(run_example))
                try:
                    (seed(number)(result) if LONG else result)()
                except BaseException as error:
                    if LONG:
                        error.add_note(f"To repeat this failure: make fuzz FUZZ_SEED={number}")
                    raise
                number += 1
                if time.monotonic() >= until:
                    return

        TESTS.append(check.__name__)
        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return test

    return decorated


@contextmanager
def bounded() -> Iterator[None]:
    """Limit memory in the block by a MemoryError, and fail if it takes too long."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + BYTES, hard))
    began = time.process_time()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    taken = time.process_time() - began
    assert taken < SECONDS, f"took {taken:.1f} s"


def outcome(act: Callable[[], Any]) -> Any:
    """Return the function's result, or None if it is rejected. Other errors pass through."""
    with bounded():
        try:
            return act()
        except (ComposerError, ConverterError) as error:
            message = str(error)
    assert 0 < len(message) < LONGEST, "of no length, or of one that nobody reads"
    return None
