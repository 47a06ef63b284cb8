"""The findings of a verification."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from blocks.part import Closed
from composer.spec.inherit import shown
from composer.tables import Readable, Table, View
from composer.words import plural, short_hashes

Verdict = Literal["passed", "failed", "unknown"]


class Check(Closed):
    """One check. ``unknown``: it could not be made, and ``detail`` says why."""

    what: str
    subject: str
    outcome: Verdict
    detail: str = ""


class VerifyReport(Readable, Closed):
    """All checks of a folder, in the order they were made."""

    folder: Path
    record_sha256: str
    """SHA-256 of the record itself, to compare with the one that its maker publishes."""
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

    @property
    def table(self) -> Table:
        """A row a check."""
        rows = ((check.outcome, check.what, check.subject, short_hashes(check.detail)) for check in self.checks)
        return Table("", ("outcome", "what", "of", ""), tuple(rows))

    def verdict(self, name: str) -> str:
        """The result of all checks in a sentence. name: what the reader calls the model."""
        unchecked = f"; {len(self.unchecked)} could not be checked" if self.unchecked else ""
        if self.ok:
            return f"{name} is what its record says{unchecked}"
        return f"{name} does not match its record: {plural(len(self.failed), 'check')} failed{unchecked}"

    def view(self) -> View:
        return View(self.verdict(shown(self.folder)), (self.table,), (f"Record: SHA-256 {self.record_sha256}",))
