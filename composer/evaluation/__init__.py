"""Models scored on tasks: ``evaluate`` runs all of them, ``score_cell`` one model on one task at one length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer.evaluation.options import EvaluationOptions
    from composer.evaluation.report import EvaluationReport
    from composer.evaluation.runner import evaluate
    from composer.evaluation.scoring import score_cell

__all__ = ["EvaluationOptions", "EvaluationReport", "evaluate", "score_cell"]
_ROOMS = {"EvaluationOptions": "options", "EvaluationReport": "report", "evaluate": "runner", "score_cell": "scoring"}


def __getattr__(name: str) -> Any:
    # At their first use, so that what is light here can be imported without torch.
    if name not in _ROOMS:
        raise AttributeError(f"module 'composer.evaluation' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"composer.evaluation.{_ROOMS[name]}"), name)
