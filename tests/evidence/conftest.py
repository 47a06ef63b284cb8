"""Runs of experiments draw curves that no test here looks at: blank ones are written."""

from __future__ import annotations

from tests.composer.conftest import pytest_runtest_protocol

__all__ = ["pytest_runtest_protocol"]
