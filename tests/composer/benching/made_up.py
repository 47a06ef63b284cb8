"""A report with known figures."""

from __future__ import annotations

from typing import Any

from composer.benching.report import BenchReport, BenchSetting, Measurement, TimedModelFacts, Workload, make_cells


def facts(label: str, **changes: Any) -> TimedModelFacts:
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
    return TimedModelFacts(**(whole | changes))


def setting(**changes: Any) -> BenchSetting:
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
    return BenchSetting(**(whole | changes))


def report(taken: int | None = None, **changes: Any) -> BenchReport:
    """Return a report in which the student needs half the teacher's time, and the teacher runs out of memory at 128 tokens with
    a batch of 8.
    """
    cells = []
    for batch in (1, 8):
        for workload in (Workload("prefill", 64, batch), Workload("prefill", 128, batch), Workload("decode", 2048, batch)):
            teacher = Measurement((0.5, 0.25, 2.0), 4096 * batch, taken)
            if workload == Workload("prefill", 128, 8):
                teacher = Measurement(failure="out of memory")
            cells += make_cells(workload, {"teacher": teacher, "a|b": Measurement((0.25, 0.125, 1.0), 512, taken)}, {})
    return BenchReport(setting=setting(**changes), cells=tuple(cells), remarks=())
