"""The choice of layers, or of key heads, to keep, and its spec. Nothing here needs torch."""

from __future__ import annotations

import filecmp
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from composer.errors import SelectionError
from composer.selection.report import LayerBy, LayerScore
from composer.spec.document import REST, Spec
from composer.spec.explain import explain_resolved
from composer.spec.layer_rules import SOURCE, Group, key_heads_of, layers_at
from composer.spec.loading import load_spec, resolve_spec
from composer.spec.resolve import Resolved
from composer.system.files import failing_as
from composer.weights.record import Record
from composer.weights.target import Target, target_of
from converters.source import Source


def candidates(resolved: Resolved) -> tuple[int, ...]:
    """Return the layers whose heads are not the source's own attention."""
    return tuple(index for index, groups in enumerate(resolved.layers) if any(group.head != SOURCE for group in groups))


def best(scores: Sequence[LayerScore], criterion: LayerBy, count: int) -> tuple[int, ...]:
    """Return the layers of the highest scores, in order; of equal ones the earlier."""
    ranked = sorted(scores, key=lambda score: (-getattr(score, criterion), score.layer))
    return tuple(sorted(score.layer for score in ranked[:count]))


def count_within(bytes_of: Callable[[int], int], limit: int, budget: int, unit: Literal["layer", "key head"]) -> int:
    """Return the most layers or key heads, up to ``limit``, that can be kept within ``budget`` bytes of state. bytes_of: from their
    number to bytes, which grow with it.

    Raises SelectionError if not one fits.
    """
    low, high = 0, limit + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bytes_of(middle) <= budget else (low, middle)
    if low:
        return low
    raise SelectionError(
        f"--budget {budget:,}: the state needs {bytes_of(0):,} bytes with no {unit} kept, and {bytes_of(1):,} with one. Set a "
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
    used_rules = [rules[number] for number in sorted(set(last.values()))]
    used = {name for rule in used_rules for name in _names_in(rule["use"])}
    heads = {name: head for name, head in document.get("heads", {}).items() if name in used}
    others = {key: value for key, value in document.items() if key not in ("heads", "layers")}
    return {**others, **({"heads": heads} if heads else {}), "layers": used_rules}


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


KeyHead = tuple[int, int]
"""A layer, and the number of a key head in it."""


def candidate_heads(resolved: Resolved) -> tuple[KeyHead, ...]:
    """Return the key heads that do not have the source's own attention."""
    return tuple(
        (layer, number)
        for layer, groups in enumerate(resolved.layers)
        for group, numbers in zip(groups, key_heads_of(groups), strict=True)
        if group.head != SOURCE
        for number in numbers
    )


def keeping_heads(document: Mapping[str, Any], resolved: Resolved, kept_heads: Collection[KeyHead]) -> dict[str, Any]:
    """Return the spec with the source's attention in these key heads: a last rule for each set of them, with the layers that have
    it."""
    layers: dict[str, tuple[Any, list[int]]] = {}
    for layer, groups in enumerate(resolved.layers):
        layer_numbers = {number for at, number in kept_heads if at == layer}
        if layer_numbers:
            use = _use_of(groups, layer_numbers)
            layers.setdefault(repr(use), (use, []))[1].append(layer)
    rules = [{"at": numbers[0] if len(numbers) == 1 else numbers, "use": use} for use, numbers in layers.values()]
    return with_rules(document, rules, len(resolved.layers))


def _use_of(groups: Sequence[Group], kept_numbers: set[int]) -> str | list[dict[str, Any]]:
    """Return the groups of a layer in which these key heads have the source's attention, as a rule lists them."""
    numbers = {group.head: set(key_heads) - kept_numbers for group, key_heads in zip(groups, key_heads_of(groups), strict=True)}
    numbers[SOURCE] = numbers.get(SOURCE, set()) | kept_numbers
    numbers_of = {head: sorted(key_heads) for head, key_heads in numbers.items() if key_heads}
    if len(numbers_of) == 1:
        return SOURCE
    source = {"head": SOURCE, "heads": numbers_of.pop(SOURCE)}
    others: list[dict[str, Any]] = [{"head": head, "heads": key_heads} for head, key_heads in numbers_of.items()]
    return [source, *others[:-1], others[-1] | {"heads": REST}]


@dataclass(frozen=True)
class HeadSubject:
    """A spec whose key heads are selected, resolved on its source."""

    spec: Spec
    resolved: Resolved
    target: Target

    def bytes(self, kept_heads: Collection[KeyHead], sequence: int) -> int:
        """Return the bytes of the student's state at so many tokens with these key heads kept."""
        resolved = self.resolved if not kept_heads else resolve_spec(load_spec(self.keeping(kept_heads)), self.target.size)
        return resolved_bytes(resolved, self.target, sequence)

    def keeping(self, kept_heads: Collection[KeyHead]) -> dict[str, Any]:
        """Return the spec with these key heads kept."""
        return keeping_heads(self.spec.model_dump(mode="json", exclude_unset=True), self.resolved, kept_heads)


def subject_of(spec: Spec, source: str) -> HeadSubject:
    """Resolve a spec on a source. Raises SpecError and SourceError."""
    target = target_of(None, spec, source)
    assert target is not None, "there is a source"
    return HeadSubject(spec, resolve_spec(spec, target.size), target)


def rank_heads(heads: Sequence[KeyHead], scores: Sequence[float], least: Mapping[int, int] | None = None) -> tuple[KeyHead, ...]:
    """Return the key heads by their scores, the highest first; of equal ones the earlier. least: by layer, how many of its key
    heads are ranked before all that need not be kept."""
    ranked = [head for _, head in sorted(zip(scores, heads, strict=True), key=lambda pair: (-pair[0], pair[1]))]
    first = {
        head for layer, count in (least or {}).items() for head in [key_head for key_head in ranked if key_head[0] == layer][:count]
    }
    return tuple(sorted(ranked, key=lambda head: head not in first))


def least_heads(resolved: Resolved, least: int) -> dict[int, int]:
    """Return, by layer, how many of its candidates must be kept for ``least`` key heads in it to have the source's attention, or
    all if it has fewer."""
    counts = Counter(layer for layer, _ in candidate_heads(resolved))
    needed: dict[int, int] = {}
    for layer, groups in enumerate(resolved.layers):
        total = sum(len(numbers) for numbers in key_heads_of(groups))
        needed[layer] = max(0, min(least, total) - (total - counts[layer]))
    return needed
