"""Programs of their own: what one imports is seen from outside."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]


def printed(code: str, folder: Path = ROOT) -> str:
    """What a program prints, started in ``folder`` with nothing imported. A program that fails fails the test."""
    code = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{textwrap.dedent(code)}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()
