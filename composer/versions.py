"""Versions of installed packages, for records of how something came to be."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """Of those packages that are installed as such."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
