"""The error message for an invalid spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composer.errors import SpecError
from composer.spec import load_spec


def message_of(source: str | Path | Mapping[Any, Any], overrides: Sequence[str] = ()) -> str:
    """Return the message of the SpecError, or an empty text for a valid spec. Other errors pass through."""
    try:
        load_spec(source, overrides)
    except SpecError as error:
        return str(error)
    return ""
