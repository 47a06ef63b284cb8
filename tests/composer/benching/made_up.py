"""A report whose figures are known."""

from __future__ import annotations

from typing import Any

from composer.benching.report import Measured, ModelFacts, Place, Report, Setting, make_cells


def facts(label: str, **changes: Any) -> ModelFacts:
    whole: dict[str, Any] = {
        "label": label,
        "reference": f"here/{label}",
        "family": "llama",
        "repo_id": None,
        "revision": None,
        "commit": None,
        "config_sha256": "1",
        "spec_hash": None,
        "weights": {"a": "2"},
        "dtype": "float32",
        "parameters": 1000,
        "weight_bytes": 4000,
        "attention": "sdpa",
        "adapter": False,
    }
    return ModelFacts(**(whole | changes))


def setting(**changes: Any) -> Setting:
    whole: dict[str, Any] = {
        "models": (facts("teacher"), facts("a|b", attention="composed")),
        "prefill": (64, 128),
        "decode": (2048,),
        "batches": (1, 8),
        "repeats": 3,
        "steps": 3,
        "seed": 0,
        "device": "cpu",
        "device_name": "An Abacus",
        "threads": 1,
        "peak": None,
        "versions": {"torch": "2"},
    }
    return Setting(**(whole | changes))


def report(taken: int | None = None, **changes: Any) -> Report:
    """The student takes half the teacher's time, and the teacher has no room at 128 tokens with a batch of 8."""
    cells = []
    for batch in (1, 8):
        for place in (Place("prefill", 64, batch), Place("prefill", 128, batch), Place("decode", 2048, batch)):
            teacher = Measured((0.5, 0.25, 2.0), 4096 * batch, taken)
            if place == Place("prefill", 128, 8):
                teacher = Measured(failure="out of memory")
            cells += make_cells(place, {"teacher": teacher, "a|b": Measured((0.25, 0.125, 1.0), 512, taken)}, {})
    return Report(setting=setting(**changes), cells=tuple(cells), remarks=())
