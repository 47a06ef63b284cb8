"""The choice of key heads to keep, and its spec. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer.errors import SelectionError
from composer.selection.choice import resolved_bytes, with_rules
from composer.spec.document import REST, Spec
from composer.spec.layer_rules import SOURCE, Group, key_heads_of
from composer.spec.loading import load_spec, resolve_spec
from composer.spec.resolve import Resolved
from composer.weights.target import Target, target_of

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


def keeping_heads(document: Mapping[str, Any], resolved: Resolved, kept: Collection[KeyHead]) -> dict[str, Any]:
    """Return the spec with the source's attention in these key heads: a last rule for each set of them, with the layers that have
    it."""
    layers: dict[str, tuple[Any, list[int]]] = {}
    for layer, groups in enumerate(resolved.layers):
        own = {number for at, number in kept if at == layer}
        if own:
            use = _use_of(groups, own)
            layers.setdefault(repr(use), (use, []))[1].append(layer)
    rules = [{"at": numbers[0] if len(numbers) == 1 else numbers, "use": use} for use, numbers in layers.values()]
    return with_rules(document, rules, len(resolved.layers))


def _use_of(groups: Sequence[Group], kept: set[int]) -> str | list[dict[str, Any]]:
    """Return the groups of a layer in which these key heads have the source's attention, as a rule lists them."""
    numbers = {group.head: set(own) - kept for group, own in zip(groups, key_heads_of(groups), strict=True)}
    numbers[SOURCE] = numbers.get(SOURCE, set()) | kept
    left = {head: sorted(own) for head, own in numbers.items() if own}
    if len(left) == 1:
        return SOURCE
    source = {"head": SOURCE, "heads": left.pop(SOURCE)}
    others: list[dict[str, Any]] = [{"head": head, "heads": own} for head, own in left.items()]
    return [source, *others[:-1], others[-1] | {"heads": REST}]


@dataclass(frozen=True)
class HeadSubject:
    """A spec whose key heads are selected, resolved on its source."""

    spec: Spec
    resolved: Resolved
    target: Target

    def bytes(self, kept: Collection[KeyHead], sequence: int) -> int:
        """Return the bytes of the student's state at so many tokens with these key heads kept."""
        resolved = self.resolved if not kept else resolve_spec(load_spec(self.keeping(kept)), self.target.size)
        return resolved_bytes(resolved, self.target, sequence)

    def keeping(self, kept: Collection[KeyHead]) -> dict[str, Any]:
        """Return the spec with these key heads kept."""
        return keeping_heads(self.spec.model_dump(mode="json", exclude_unset=True), self.resolved, kept)


def subject_of(spec: Spec, source: str) -> HeadSubject:
    """Resolve a spec on a source. Raises SpecError and SourceError."""
    target = target_of(None, spec, source)
    assert target is not None, "there is a source"
    return HeadSubject(spec, resolve_spec(spec, target.size), target)


def heads_within(bytes_of: Callable[[int], int], most: int, budget: int, least: int = 1) -> int:
    """Return the most key heads, up to ``most``, that can be kept within ``budget`` bytes. bytes_of: from kept key heads to bytes,
    which grow with their number. least: 0 where the caller knows that the student without a kept key head fits.

    Raises SelectionError if ``least`` do not fit.
    """
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bytes_of(middle) <= budget else (low, middle)
    if low >= least:
        return low
    raise SelectionError(
        f"--budget {budget:,}: the state needs {bytes_of(0):,} bytes with no key head kept, and {bytes_of(1):,} with one. Set a "
        "budget of at least the latter, or fewer tokens with --seq."
    )


def rank_heads(heads: Sequence[KeyHead], scores: Sequence[float]) -> tuple[KeyHead, ...]:
    """Return the key heads by their scores, the highest first; of equal ones the earlier."""
    ranked = sorted(zip(scores, heads, strict=True), key=lambda pair: (-pair[0], pair[1]))
    return tuple(head for _, head in ranked)
