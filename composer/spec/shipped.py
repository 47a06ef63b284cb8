"""The specs of the package: one per paper, and their ablations."""

from __future__ import annotations

from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent


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
