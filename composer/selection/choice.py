"""Which layers are kept, and the spec that says so; nothing here needs torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from composer.api import explain
from composer.errors import SelectionError
from composer.selection.report import By, LayerScore
from composer.spec.document import Spec
from composer.spec.loading import load_spec
from composer.spec.resolve import SOURCE, Resolved


def candidates(resolved: Resolved) -> tuple[int, ...]:
    """The layers whose heads are not the source's own attention."""
    return tuple(index for index, groups in enumerate(resolved.layers) if any(group.head != SOURCE for group in groups))


def best(scores: Sequence[LayerScore], by: By, count: int) -> tuple[int, ...]:
    """The layers of the highest scores, in order; of equal ones the earlier."""
    ranked = sorted(scores, key=lambda one: (-getattr(one, by), one.layer))
    return tuple(sorted(one.layer for one in ranked[:count]))


def count_within(bytes_of: Callable[[int], int], most: int, budget: int) -> int:
    """The most layers, up to ``most``, that can be kept within ``budget`` bytes of state. bytes_of: from kept layers to bytes.

    Raises SelectionError where not one layer fits.
    """
    for count in range(most, 0, -1):
        if bytes_of(count) <= budget:
            return count
    raise SelectionError(
        f"--budget {budget:,}: the state takes {bytes_of(0):,} bytes with no layer kept, and {bytes_of(1):,} with one. Give at "
        "least as many, or fewer tokens: --sequence."
    )


def state_bytes(spec: Spec, layers: Sequence[int], source: str | os.PathLike[str], sequence: int) -> int:
    """The bytes of the student's state at so many tokens with these layers kept. Raises SpecError and SourceError."""
    document = spec.model_dump(mode="json", exclude_unset=True)
    return explain(load_spec(keeping(document, layers)), source, sequence=sequence).state_bytes


def keeping(document: Mapping[str, Any], layers: Sequence[int]) -> dict[str, Any]:
    """The spec with the source's attention in these layers: a last rule, which the earlier ones do not override."""
    if not layers:
        return dict(document)
    rule = {"at": layers[0] if len(layers) == 1 else list(layers), "use": SOURCE}
    return {**document, "layers": [*document.get("layers", ()), rule]}
