"""Requests and specs for the tests of ablations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from composer.ablation.ablate import REPORT, STEPS
from composer.ablation.options import Request
from composer.ablation.plan import Chain, plan, read_variants
from tests.composer.training.runs import SPEC

RECIPE: dict[str, Any] = {
    "sequence": 16,
    "transfer": {"lr": 1e-2, "steps": 2, "batch": 2},
    "finetune": {"lr": 1e-2, "steps": 2, "batch": 2, "lora": {"rank": 2}},
}
TINY: dict[str, Any] = SPEC | {"recipe": RECIPE}
TRUNK = {"width": 16, "layers": 1, "heads": 2, "vocabulary": 64, "mlp": {"kind": "gated", "width": 24}}
SECOND_STAGES = {"grid": {"recipe.finetune.lr": [1e-2, 2e-2]}, "names": ["slow", "fast"]}


def write_spec(path: Path, document: dict[str, Any] | None = None, **changes: Any) -> str:
    """Write a YAML spec and return its path. changes: top-level fields."""
    path.write_text(yaml.safe_dump((document or TINY) | changes, sort_keys=False))
    return str(path)


def request_for(source: Path | None, texts: Path, **changes: Any) -> Request:
    tasks = {"tasks": ("mqar,pairs=2",), "lengths": (12,), "samples": 4}
    return Request(**{"source": None if source is None else str(source), "data": (str(texts),), "share": 0.2, **tasks, **changes})


def chains_of(specs: Sequence[str], request: Request, folder: Path, *overrides: str) -> dict[tuple[str, int], Chain]:
    """Return the chains by variant and seed."""
    chains = plan(read_variants(specs, overrides), request, folder / STEPS)
    return {(chain.variant.name, chain.seed): chain for chain in chains}


def names(chain: Chain) -> dict[str, str]:
    """Return the keys of the steps by kind."""
    return {step.kind: step.key for step in chain.steps}


def timeless(value: Any) -> Any:
    """Remove the fields that differ between runs."""
    if isinstance(value, dict):
        return {key: timeless(value) for key, value in value.items() if key != "seconds"}
    return [timeless(value) for value in value] if isinstance(value, list | tuple) else value


def stored(out: Path) -> Any:
    """Return the report of a folder without its times."""
    return timeless(json.loads((out / REPORT).read_text()))
