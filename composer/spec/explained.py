"""An explanation as tables: a row for each part of each group of heads, and one for each group and the whole model."""

from __future__ import annotations

from composer.spec.explain import Explanation, GroupCost
from composer.tables import Table, View
from composer.words import quantity, ranges, ratio, short_hashes, size

NONE = "–"


def view_of(answer: Explanation) -> View:
    """What a spec costs, group by group; figures of a group are those of one of its layers."""
    title = f"{answer.name}: {answer.sequence:,} tokens, {answer.backend} on {answer.device}, {answer.dtype}"
    parts = [
        (group.head, f"layers {ranges(group.layers)}", part.part, part.kind, part.form, part.why_not_faster)
        for group in answer.groups
        for part in group.parts
    ]
    costs = [
        *((group.head, f"{group.heads} heads, layers {ranges(group.layers)}", *_figures(group)) for group in answer.groups),
        ("the whole model", "", *_figures(answer)),
    ]
    headers = ("head", "of", "fresh parameters", "state", "KV cache", "compression", "FLOPs a token in prefill", "in decode")
    return View(
        title,
        (
            Table("Forms", ("head", "in", "part", "kind", "form", "why not faster"), tuple(parts)),
            Table("Costs of one layer, for one row of a batch", headers, tuple(costs), range(2, len(headers))),
        ),
        (short_hashes(f"spec {answer.hash}"),),
    )


def _figures(cost: GroupCost | Explanation) -> tuple[str, ...]:
    cache, decode = cost.kv_cache_bytes, cost.decode_flops_per_token
    return (
        f"{cost.fresh_parameters:,}",
        size(cost.state_bytes),
        NONE if cache is None else size(cache),
        NONE if cost.compression is None else ratio(cost.compression),
        quantity(cost.prefill_flops_per_token),
        NONE if decode is None else quantity(decode),
    )
