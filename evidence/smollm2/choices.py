"""The key heads that students keep, and the rules of a spec for them."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from composer.selection.choice import KeyHead, rank_heads, subject_of
from composer.spec.loading import load_spec
from converters.bounded import MOST_LOG, read_text
from evidence.smollm2.plan import HERE, Keep, Plan


def choose_heads(keep: Keep, gates: Mapping[KeyHead, float], seed: int) -> tuple[KeyHead, ...]:
    """Return the key heads that are kept. Raises ValueError for a number that whole layers do not have."""
    heads = list(gates)
    if keep.by == "gates":
        return tuple(sorted(rank_heads(heads, list(gates.values()))[: keep.heads]))
    if keep.by == "random":
        return tuple(sorted(random.Random(seed).sample(heads, keep.heads)))
    by_layer: dict[int, list[KeyHead]] = {}
    for head in heads:
        by_layer.setdefault(head[0], []).append(head)
    heads_per_layer = len(heads) // len(by_layer)
    count, left = divmod(keep.heads, heads_per_layer)
    if left:
        raise ValueError(f"{keep.heads} key heads are not whole layers of {heads_per_layer}")
    if keep.by == "every":
        interval = len(by_layer) // count
        layers: Sequence[int] = sorted(by_layer)[interval - 1 :: interval][:count]
    else:
        layers = sorted(by_layer, key=lambda layer: -fmean(gates[head] for head in by_layer[layer]))[:count]
    return tuple(head for layer in sorted(layers) for head in by_layer[layer])


def read_gates(path: Path) -> dict[KeyHead, float]:
    """Return the score of each key head in a report of ``compose select --heads``. Kept reports of gates name it ``gate``."""
    scores = json.loads(read_text(path, MOST_LOG))["scores"]
    return {(score["layer"], score["head"]): score["score" if "score" in score else "gate"] for score in scores}


def read_scores(plan: Plan, keep: Keep) -> dict[KeyHead, float]:
    """Return the score that each key head is chosen by: its gate, or the score ``restored`` of its layer."""
    if keep.by != "restored":
        return read_gates(plan.gates_of(keep))
    layers = json.loads(read_text(plan.gates_of(keep), MOST_LOG))["scores"]
    restored = {score["layer"]: score["restored"] for score in layers}
    return {head: restored[head[0]] for head in read_gates(HERE / (plan.gates or ""))}


def build_rules(spec: str, values: Sequence[str], source: str, heads: Collection[KeyHead]) -> list[dict[str, Any]]:
    """Return the rules under ``layers:`` of the spec with these key heads kept. values: as ``--set`` takes them."""
    return subject_of(load_spec(spec, values), source).keeping(heads)["layers"]
