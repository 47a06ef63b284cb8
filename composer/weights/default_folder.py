"""The folder that a build writes when none is named."""

from __future__ import annotations

from pathlib import Path

from converters.source import Source


def default_output(spec_name: str, source: Source | None) -> Path:
    """``<spec>-<source>`` in the current folder: ``lawcat-Llama-3.2-1B``. None: ``<spec>-fresh``."""
    if source is None:
        return Path(f"{spec_name}-fresh")
    return Path(f"{spec_name}-{source.named.name}")
