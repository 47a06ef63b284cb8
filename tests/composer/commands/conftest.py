"""The command, the teacher and the student of the command line's tests."""

from __future__ import annotations

from tests.composer.cli.conftest import compose, student, teacher

__all__ = ["compose", "student", "teacher"]
