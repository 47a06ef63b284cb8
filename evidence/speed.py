"""What is fast and what stays flat: `compose bench` and the benchmarks measure it, this page shows it."""

from __future__ import annotations


def section() -> str:
    return ""
