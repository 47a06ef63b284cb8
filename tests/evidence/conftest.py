"""Runs of experiments write blank curves in these tests."""

from __future__ import annotations

from tests.composer.conftest import pytest_runtest_protocol

__all__ = ["pytest_runtest_protocol"]
