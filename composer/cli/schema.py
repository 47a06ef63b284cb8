"""``compose schema``."""

from __future__ import annotations

from composer.cli.screen import print_json
from composer.spec.schema import json_schema


def schema() -> None:
    """Print the JSON schema of specs, for editors."""
    print_json(json_schema())
