"""Messages to users, beside results and errors: records of the log ``composer``, which the command line prints as plain lines."""

from __future__ import annotations

import inspect
import logging
import warnings

LOG = logging.getLogger("composer")
_WARNED: set[str] = set()
_INSIDE = {"composer", "blocks", "converters", "transformers", "torch"}


def inform(message: str) -> None:
    """Log a message about progress, at level INFO, which Python shows only where the program sets up the log."""
    LOG.info(message)


def warn_user(message: str) -> None:
    """Log a reason to doubt a result, at level WARNING, which Python prints to stderr unless the program sets up the log."""
    LOG.warning(message)


def warn_caller(message: str, kind: type[Warning] = UserWarning) -> None:
    """Issue a warning at the line of the nearest caller outside of this project, transformers and torch."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and (frame.f_globals.get("__package__") or "").partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, kind, stacklevel=level)


class FallsBack(RuntimeWarning):
    """An operation runs on another form than the chosen one, with the same result."""


def warn_fallback(why: str, remedy: str = "") -> None:
    """Warn, once a process for each reason, that another form runs. remedy: a sentence on the form that runs, or on what to do."""
    if why not in _WARNED:
        _WARNED.add(why)
        warn_caller(f"{why}. {remedy}" if remedy else why, FallsBack)
