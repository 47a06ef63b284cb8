"""A plugin of pytest: ``pytest --composer-parts MODULE_OR_FILE`` runs every law for the parts of that module or file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

OPTION = "composer_parts"
SUITE = Path(__file__).with_name("suite.py")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("composer").addoption(
        "--composer-parts",
        dest=OPTION,
        action="append",
        default=[],
        metavar="MODULE_OR_FILE",
        help="Run every law of Composer for the parts of this module or file (.py). May be repeated.",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption(OPTION):
        os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is imported
        config.args.append(str(SUITE))
