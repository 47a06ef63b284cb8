"""What users are told beside results and errors: messages of the log ``composer``, which the command line prints as plain lines."""

from __future__ import annotations

import inspect
import logging
import warnings

LOG = logging.getLogger("composer")
_INSIDE = {"composer", "blocks", "converters", "transformers", "torch"}


def inform(said: str) -> None:
    """How something goes: Python shows it where the log is asked for it."""
    LOG.info(said)


def doubt(said: str) -> None:
    """What is no error, and makes one doubt a result: Python shows it on stderr wherever nothing else has been said of logs."""
    LOG.warning(said)


def warn_caller(said: str) -> None:
    """A UserWarning at the line that led here from outside: of no module of this project, of transformers or of torch."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(said, UserWarning, stacklevel=level)
