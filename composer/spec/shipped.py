"""The specs of the package: one per paper, and their ablations."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from converters.bounded import MOST_CONFIG, read_text

PACKAGE = Path(__file__).parent.parent
SENTENCE = re.compile(r"(?<=\.) (?=[A-Z`])")
"""The place where a new sentence starts."""


def specs_folder() -> Path:
    """``composer/specs`` of an installed wheel, or ``specs`` beside the package in a checkout."""
    installed = PACKAGE / "specs"
    return installed if installed.is_dir() else PACKAGE.parent / "specs"


def shipped_specs() -> dict[str, Path]:
    """Name to file, sorted by name; those in folders by their path, such as ``ablations/lawcat-window``."""
    return dict(_specs_of(specs_folder()))


@cache
def _specs_of(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}


def remarks_of(name: str) -> list[str]:
    """Return the comment of a shipped spec above its first key, as paragraphs."""
    _, *lines = read_text(shipped_specs()[name], MOST_CONFIG).splitlines()  # the first line names the schema
    end = next((number for number, line in enumerate(lines) if not line.startswith("#")), len(lines))
    paragraphs = "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[:end]).split("\n\n")
    return [" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip()] or [f"The heads of {name}."]


def purpose_of(name: str) -> str:
    """Return the first sentence of the comment of a shipped spec."""
    return SENTENCE.split(remarks_of(name)[0])[0]
