"""``compose schema``."""

from __future__ import annotations

from composer.cli.screen import print_json


def schema() -> None:
    """Print the JSON schema of specs, for editors."""
    from composer.spec.schema import json_schema

    print_json(json_schema())
