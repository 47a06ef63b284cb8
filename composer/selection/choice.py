"""The choice of layers to keep, and its spec. Nothing here needs torch."""

from __future__ import annotations

import filecmp
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from composer.errors import SelectionError
from composer.files import failing_as
from composer.selection.report import LayerBy, LayerScore
from composer.spec.document import Spec
from composer.spec.explain import explain_resolved
from composer.spec.layer_rules import SOURCE, layers_at
from composer.spec.loading import load_spec, resolve_spec
from composer.spec.resolve import Resolved
from composer.weights.record import Record
from composer.weights.target import Target, target_of
from converters.source import Source


def candidates(resolved: Resolved) -> tuple[int, ...]:
    """Return the layers whose heads are not the source's own attention."""
    return tuple(index for index, groups in enumerate(resolved.layers) if any(group.head != SOURCE for group in groups))


def best(scores: Sequence[LayerScore], by: LayerBy, count: int) -> tuple[int, ...]:
    """Return the layers of the highest scores, in order; of equal ones the earlier."""
    ranked = sorted(scores, key=lambda score: (-getattr(score, by), score.layer))
    return tuple(sorted(score.layer for score in ranked[:count]))


def count_within(bytes_of: Callable[[int], int], most: int, budget: int) -> int:
    """Return the most layers, up to ``most``, that can be kept within ``budget`` bytes of state. bytes_of: from kept layers to
    bytes.

    Raises SelectionError if not one layer fits.
    """
    for count in range(most, 0, -1):
        if bytes_of(count) <= budget:
            return count
    raise SelectionError(
        f"--budget {budget:,}: the state needs {bytes_of(0):,} bytes with no layer kept, and {bytes_of(1):,} with one. Set a "
        "budget of at least the latter, or fewer tokens with --seq."
    )


def state_bytes(spec: Spec, layers: Sequence[int], layer_count: int, source: str | os.PathLike[str], sequence: int) -> int:
    """Return the bytes of the student's state at so many tokens with these of its ``layer_count`` layers kept. Raises SpecError and
    SourceError."""
    document = spec.model_dump(mode="json", exclude_unset=True)
    loaded = load_spec(keeping(document, layers, layer_count))
    target = target_of(None, loaded, source)
    assert target is not None, "there is a source"
    resolved = resolve_spec(loaded, target.size)
    return resolved_bytes(resolved, target, sequence)


def resolved_bytes(resolved: Resolved, target: Target, sequence: int) -> int:
    """Return the bytes of a model's state at so many tokens. target: what it is resolved on."""
    return explain_resolved(resolved, on=target.on, sequence=sequence, dtype=target.dtype, windows=target.windows).state_bytes


def keeping(document: Mapping[str, Any], layers: Sequence[int], layer_count: int) -> dict[str, Any]:
    """Return the spec with the source's attention in these of its ``layer_count`` layers."""
    rule = {"at": layers[0] if len(layers) == 1 else list(layers), "use": SOURCE}
    return with_rules(document, [rule] if layers else [], layer_count)


def with_rules(document: Mapping[str, Any], last_rules: Sequence[Mapping[str, Any]], layer_count: int) -> dict[str, Any]:
    """Return the spec with further rules for its layers, which the earlier ones do not override.

    Rules that are left without a layer are dropped, and so are heads of ``heads`` that no rule names then: a spec that has such
    heads is refused.
    """
    if not last_rules:
        return dict(document)
    rules = [*document.get("layers", ()), *last_rules]
    last = {
        layer: number for number, rule in enumerate(rules) for layer in layers_at(rule["at"], layer_count, ("layers", number, "at"))
    }
    left = [rules[number] for number in sorted(set(last.values()))]
    used = {name for rule in left for name in _names_in(rule["use"])}
    heads = {name: head for name, head in document.get("heads", {}).items() if name in used}
    others = {key: value for key, value in document.items() if key not in ("heads", "layers")}
    return {**others, **({"heads": heads} if heads else {}), "layers": left}


def _names_in(use: str | Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the heads that a rule of a document names."""
    return {use} if isinstance(use, str) else {group["head"] for group in use}


def another_source(student: Path, record: Record, source: Source) -> str | None:
    """Return the difference between a student's source and this one, in words; None if there is none. Weight files that the student
    has unchanged must be equal to the source's: same size and time stamp, or same bytes. Files that training has rewritten are not
    compared. Raises SelectionError if a file cannot be read.
    """
    if record.source is None:
        return "it was built from nothing"
    whence = f"it was built from {record.source.repo_id or record.source.folder}"
    if record.source.config_sha256 != source.config_sha256:
        return f"{whence}, with another config.json"
    for shard in record.plan.shards:
        stored = record.files.get(shard.output or "")
        if stored is None or stored.origin is None:
            continue
        shard_of_source = source.shards.get(shard.file)
        with failing_as(SelectionError, f"The weights of {student} and of {source.folder} cannot be compared"):
            if shard_of_source is None or not filecmp.cmp(student / str(shard.output), shard_of_source.file):
                return f"{whence}, with other weights in {shard.file}"
    return None
