"""Triton's interpreter in tests: a file that imports this module is skipped if Triton compiles. fla is imported, too."""

from __future__ import annotations

import os

import pytest

from tests.compiling import operations_alone

if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("Triton compiles here, and does not interpret", allow_module_level=True)

from composer.laws.interpreter import LIBRARY, count_launches, nothing_refused

__all__ = ["LIBRARY", "count_launches", "nothing_refused"]

operations_alone()
