"""Versions of installed packages, for records of how something came to be."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """The versions of those packages that are installed."""
    found = {package: _version(package) for package in packages}
    return {package: said for package, said in found.items() if said is not None}


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
