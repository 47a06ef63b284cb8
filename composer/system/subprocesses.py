"""How processes of Python are started: none of them imports from the current folder.

For ``python -c`` and ``python -m``, Python looks for modules in the current folder first. The processes of multiprocessing and
its resource tracker start in these ways, and would run a file ``tempfile.py`` or ``torch.py`` there. With
``PYTHONSAFEPATH`` in its environment, Python leaves the current folder out, in all processes below this one, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SAFE_PATH = "PYTHONSAFEPATH"


def environment_of_child(**variables: str) -> dict[str, str]:
    """Return the environment for a process of Python that finds the modules of this one. variables: to set beside."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)), SAFE_PATH: "1", **variables}


def protect_children() -> None:
    """Keep all processes that this one starts, in whatever way, from importing from the current folder."""
    os.environ[SAFE_PATH] = "1"


@contextmanager
def protected_children() -> Iterator[None]:
    """For the block, as ``protect_children``."""
    before = os.environ.get(SAFE_PATH)
    protect_children()
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before
