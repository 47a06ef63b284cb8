"""Writes what follows from the catalogue of parts: the README's table of them, and the JSON schema of specs. ``make docs``."""

from __future__ import annotations

import json
import re
from pathlib import Path

from blocks.catalogue import CATALOGUE
from composer.spec.schema import json_schema

ROOT = Path(__file__).parents[1]
README, SCHEMA = ROOT / "README.md", ROOT / "specs" / "schema.json"
HEADER = "| role | kind | what it computes |\n|---|---|---|\n"


def readme(text: str) -> str:
    """The README with the table that the catalogue says; all else as it is."""
    bar = r"\|"
    rows = [
        f"| {role} | `{kind}` | {part.equation.replace('|', bar)} |\n"
        for role, parts in CATALOGUE.items()
        for kind, part in parts.items()
    ]
    before, header, after = text.partition(HEADER)
    assert header, "the README has lost the table of parts"
    return before + header + "".join(rows) + re.sub(r"\A(\|.*\n)*", "", after)


def schema() -> str:
    """As ``compose schema`` prints it."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def main() -> None:
    README.write_text(readme(README.read_text(encoding="utf-8")), encoding="utf-8")
    SCHEMA.write_text(schema(), encoding="utf-8")


if __name__ == "__main__":
    main()
