"""What verification has found."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from blocks.part import Closed

Outcome = Literal["passed", "failed", "unknown"]


class Check(Closed):
    """One thing that was looked at. ``unknown``: it could not be checked, and ``detail`` says why."""

    what: str
    subject: str
    outcome: Outcome
    detail: str = ""


class VerifyReport(Closed):
    """All checks of a folder, in the order they were made."""

    folder: Path
    record_sha256: str
    """Of the record itself: what its maker can tell, and nothing inside the folder can."""
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed. What could not be checked has not failed: see ``unchecked``."""
        return not any(check.outcome == "failed" for check in self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.outcome == "failed")

    @property
    def unchecked(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.outcome == "unknown")
