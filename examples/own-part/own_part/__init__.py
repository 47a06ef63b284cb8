"""Parts in a separate package. The entry point in pyproject.toml names this module, and its public classes are registered."""

from __future__ import annotations

from own_part.between import Between
from own_part.strided import Strided

__all__ = ["Between", "Strided"]
