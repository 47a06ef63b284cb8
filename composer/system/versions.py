"""Versions of installed packages, for records of builds and runs, and the command that installs what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version


def install_command(extra: str) -> str:
    """Return the command that installs an extra. This package is on no index yet, so it is installed from its checkout."""
    return f"pip install '.[{extra}]' in Composer's checkout"


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    versions = {package: version_of(package) for package in packages}
    return {package: version for package, version in versions.items() if version is not None}


@cache
def version_of(package: str) -> str | None:
    """Return the version of a package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
