"""The tables of an explanation: for each group of heads its parts and the costs of a layer, and the costs of the whole model."""

from __future__ import annotations

from composer.reporting.tables import Table, View
from composer.reporting.words import layers_in_words, plural, quantity, ranges, ratio, short_hashes, size
from composer.spec.explain import Explanation, GroupCost


def view_of(explanation: Explanation) -> View:
    """Return the costs of a spec as tables, group by group, bytes for one row of a batch."""
    name = f"{explanation.name} on {explanation.on}\n" if explanation.on else f"{explanation.name}: "
    place = f"{explanation.sequence:,} tokens, {explanation.backend} on {explanation.device}, {explanation.dtype}"
    growth = f" at {explanation.sequence:,} tokens" if any(group.state_grows for group in explanation.groups) else ", at any length"
    whole = Table("The whole model", ("", ""), _figures(explanation, growth))
    tables = (
        *(table for group in explanation.groups for table in _of_group(group)),
        *_key_heads(explanation),
        whole,
        *_classes(explanation),
    )
    return View(
        short_hashes(f"{name}{place}, spec {explanation.hash}"), tables, tuple(f"Note: {note}" for note in explanation.notes)
    )


def _key_heads(explanation: Explanation) -> tuple[Table, ...]:
    """Return the key heads of each group by number, where groups do not follow each other."""
    rows = [
        (ranges(some.layers), "; ".join(f"{head} {ranges(numbers)}" for head, numbers in some.numbers.items()))
        for some in explanation.key_heads
    ]
    return (Table("Key heads", ("layers", "of each head"), tuple(rows)),) if rows else ()


def _classes(explanation: Explanation) -> tuple[Table, ...]:
    """Return the classes of transformers beside the spec: for each, the conditions that fail, or what it has beside the spec."""
    rows = []
    for target in explanation.native:
        rows.append((target.name, f"{plural(len(target.conditions), 'condition')} failed" if target.conditions else "fits"))
        rows += [("", str(condition)) for condition in target.conditions] or [("", identity) for identity in target.identities]
    return (Table("As a class of transformers (compose export --native)", ("class", ""), tuple(rows)),) if rows else ()


def _of_group(group: GroupCost) -> tuple[Table, ...]:
    heads = f"{plural(group.heads, 'query head')} ({plural(group.key_heads, 'key head')})"
    if group.value_dim != group.head_dim:
        heads += f", keys of {group.head_dim:,} and values of {group.value_dim:,} numbers,"
    parts: list[tuple[str, str, str]] = []
    reasons: dict[str, list[str]] = {}
    for part in group.parts:
        parts.append((part.part, part.kind, part.form))
        reasons.setdefault(part.why_this_form, []).append(part.part)
        if part.decode is not None and group.decode_flops_per_token is not None:
            parts.append(("", "in decode", part.decode))
            why = part.decode_why_this_form or part.why_this_form
            if why != part.why_this_form:
                reasons.setdefault(why, []).append(f"{part.part} in decode")
    lines = tuple(("·", f"{', '.join(names)}: {reason}") for reason, names in reasons.items())
    growth = ", grows with the text" if group.state_grows else ", the same at any length"
    return (
        Table(f"{group.head}: {heads} in {layers_in_words(group.layers)}", ("part", "kind", "form"), tuple(parts)),
        Table("Why this form:", ("", ""), lines, under=True),
        Table("In each of these layers:", ("", ""), _figures(group, growth), under=True),
    )


def _figures(cost: GroupCost | Explanation, growth: str) -> tuple[tuple[str, str], ...]:
    rows = [("fresh parameters", f"{cost.fresh_parameters:,}")]
    if isinstance(cost, GroupCost) and cost.unused_projections:
        rows.append(("q_proj, k_proj", "kept as they are, and not used by these heads"))
    flops = quantity(cost.prefill_flops_per_token)
    if cost.kv_cache_bytes is None or cost.decode_flops_per_token is None:
        rows.append(("state", "none: every token sees those after it, too, so a call holds its texts whole"))
    else:
        rows += [
            ("state", f"{size(cost.state_bytes)}{growth}"),
            *_of_bounded(cost),
            ("source's KV cache", size(cost.kv_cache_bytes) + _of_cache(cost)),
            ("compression", _compression(cost)),
        ]
        flops += f" in prefill, {quantity(cost.decode_flops_per_token)} in decode"
    if isinstance(cost, Explanation) and cost.fresh_parameters:
        rows.append(("start", "compose calibrate: source and student read up to 8,192 tokens once, without training"))
    return (*rows, ("FLOPs a token", f"{flops}: means over tokens, without masked pairs and projections"))


def _of_cache(cost: GroupCost | Explanation) -> str:
    if not isinstance(cost, GroupCost):
        return ""
    compressed = ", of compressed keys and values" if cost.source_compresses else ""
    return compressed if cost.source_window is None else f"{compressed}, of a window of {cost.source_window:,}"


def _of_bounded(cost: GroupCost | Explanation) -> tuple[tuple[str, str], ...]:
    if not isinstance(cost, GroupCost) or cost.bounded is None:
        return ()
    return (("", f"every pair is held, and {cost.source_window:,} are seen: {cost.bounded} holds these alone"),)


def _compression(cost: GroupCost | Explanation) -> str:
    if cost.compression is None:
        return "no state is kept"
    pairs = "no pairs" if cost.compression_lola is None else ratio(cost.compression_lola)
    return f"{ratio(cost.compression)} in bytes, {pairs} as LoLA counts pairs"
