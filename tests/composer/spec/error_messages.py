"""What a user is told about a source that is no spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composer.errors import SpecError
from composer.spec import load_spec


def message_of(source: str | Path | Mapping[Any, Any], overrides: Sequence[str] = ()) -> str:
    """The message of the SpecError; empty where the source is a spec. Any other error passes through."""
    try:
        load_spec(source, overrides)
    except SpecError as error:
        return str(error)
    return ""
