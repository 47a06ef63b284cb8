"""The entry point of the command: Ctrl-C during the imports ends it as quietly as later."""

from __future__ import annotations

import sys

from composer.cli.streams import guard_streams
from composer.subprocesses import protect_children


def main() -> None:
    """``compose``."""
    guard_streams()
    protect_children()
    try:
        from composer.cli.main import main as command
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)
    command()
