"""``compose schema``."""

from __future__ import annotations

import composer
from composer.cli.screen import print_json


def schema() -> None:
    """Print the JSON schema of specs, for editors."""
    print_json(composer.schema())
