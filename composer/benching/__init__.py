"""Models timed side by side: ``bench`` measures the prefill and the decode of all of them in one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer.benching.options import BenchOptions
    from composer.benching.report import BenchReport
    from composer.benching.runner import bench

__all__ = ["BenchOptions", "BenchReport", "bench"]
_ROOMS = {"BenchOptions": "options", "BenchReport": "report", "bench": "runner"}


def __getattr__(name: str) -> Any:
    # At their first use, so that what is light here can be imported without torch.
    if name not in _ROOMS:
        raise AttributeError(f"module 'composer.benching' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"composer.benching.{_ROOMS[name]}"), name)
