"""The page of parts equals the catalogue."""

from __future__ import annotations

import re
from pathlib import Path

from blocks.catalogue import CATALOGUE
from pages.write import list_parts

PAGE = (Path(__file__).parents[1] / "docs" / "parts.md").read_text(encoding="utf-8")


def test_the_parts_table_equals_the_catalogue() -> None:
    rows = re.findall(r"^\| ([a-z ]+) \| `([a-z0-9_]+)` \| (.+) \|$", PAGE, re.MULTILINE)
    table_rows = [
        (role, kind, part.equation.replace("|", r"\|")) for role, kinds in CATALOGUE.items() for kind, part in kinds.items()
    ]
    stale = rows != table_rows
    assert not stale, "docs/parts.md is not the table of the parts as they are: write it anew with `make docs`"


def test_the_parts_table_is_rewritten_from_the_catalogue() -> None:
    first, second = [line for line in PAGE.splitlines(keepends=True) if line.startswith("| gate | ")][:2]
    assert list_parts(PAGE.replace(first, "").replace(second, "| gate | `gone` | nothing |\n")) == list_parts(PAGE)
