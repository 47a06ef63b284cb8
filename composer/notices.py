"""What users are told beside results and errors: messages of the log ``composer``, which the command line prints as plain lines."""

from __future__ import annotations

import logging

LOG = logging.getLogger("composer")


def inform(said: str) -> None:
    """How something goes: Python shows it where the log is asked for it."""
    LOG.info(said)


def doubt(said: str) -> None:
    """What is no error, and makes one doubt a result: Python shows it on stderr wherever nothing else has been said of logs."""
    LOG.warning(said)
