"""docs/own-parts.md names classes and methods that exist, for each role that a part of one's own can have."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "own-parts.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| [^|`]+ \| `(\w+)`[^|]* in `([\w/]+)\.py`[^|]* \| ([^|]+) \|", re.MULTILINE)
ROLES = {"gate", "memory", "read", "score", "feature map", "convolution", "rate", "output"}


def test_the_table_of_classes_is_up_to_date() -> None:
    rows = ROW.findall(PAGE)
    classes = [getattr(import_module(module.replace("/", ".")), name) for name, module, _ in rows]
    assert {part.role for part in classes} == ROLES
    for part, (_, _, methods) in zip(classes, rows, strict=True):
        assert all(hasattr(part, method) for method in re.findall(r"`(\w+)`", methods)), part
