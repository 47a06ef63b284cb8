"""The costs of a spec on a source as data, and as tables: for each group of heads its parts and the costs of a layer, and the costs
of the whole model."""

from __future__ import annotations

from typing import Literal

from blocks.part import Closed
from composer.graph.lowering import Lowered
from composer.reporting.tables import Readable, Table, View
from composer.reporting.words import layers_in_words, plural, quantity, ranges, ratio, short_hashes, size


class GroupCost(Closed):
    """One group of heads in one or more layers. Bytes are for one row of a batch, figures for one layer."""

    head: str
    layers: tuple[int, ...]
    heads: int
    key_heads: int
    head_dim: int
    """Numbers of a key."""
    value_dim: int
    """Numbers of a value."""
    parts: tuple[Lowered, ...]
    fresh_parameters: int
    state_bytes: int
    state_grows: bool
    prefill_flops_per_token: int
    """Floating-point operations of the heads' equations, without projections: a mean over the tokens of a prefill. Only pairs that
    a token sees count. A form that computes masked pairs, too, executes up to twice as many for `full` memories."""
    decode_flops_per_token: int | None
    """Floating-point operations of the heads' equations for one token of decode after so many others: a mean over tokens. Where a
    chunk of pairs is evicted at once, its first token executes most of the chunk's scores. None for bidirectional heads, which do
    not decode."""
    source_window: int | None = None
    """Tokens that a query of the source sees in these layers, its own among them; None: all."""
    bounded: str | None = None
    """A bounded memory with the same outputs, where a memory holds every pair and the source's window sees only the last ones."""
    kv_cache_bytes: int | None
    """Bytes of the source's cache for these heads, in a local layer those of its window: keys and values, or the vectors that it
    computes these from. None where they are bidirectional, and keep none."""
    source_compresses: bool
    """Whether the source caches one vector a token, from which it computes keys and values (multi-head latent attention)."""
    unused_projections: bool
    """Whether queries and keys are projected and not looked at: latents have their own."""
    compression: float | None
    """Source's cache over this state, both in bytes as they are. None where no state is kept."""
    pairs: float
    """What a key head's memories hold, in pairs of a key and a value as LoLA's table 1 counts them."""
    compression_lola: float | None
    """The source's pairs over these."""


class NumberedHeads(Closed):
    """The numbers of the key heads of each group of some layers, by its head."""

    layers: tuple[int, ...]
    numbers: dict[str, tuple[int, ...]]


class FailedCondition(Closed):
    """A condition of a class of transformers that a spec on a source does not meet."""

    problem: str
    reason: str
    remedy: str
    """What to change, as a sentence."""

    def __str__(self) -> str:
        return f"{self.problem} ({self.reason}). {self.remedy}"


class TargetFit(Closed):
    """A class of transformers beside a spec on a source."""

    name: str
    architecture: str | None
    """None: the source's own class."""
    spec: str
    """The shipped spec that fits."""
    conditions: tuple[FailedCondition, ...]
    """Those that fail. Empty if the class computes the spec's models."""
    identities: tuple[str, ...]
    """What the class has and a model may lack, and how its weights do nothing there."""


class Explanation(Readable, Closed):
    """The whole model at one sequence length. on: the source or trunk that it is resolved on, in words."""

    name: str
    on: str | None
    hash: str
    direction: Literal["causal", "bidirectional"]
    backend: str
    device: str
    dtype: str
    sequence: int
    groups: tuple[GroupCost, ...]
    key_heads: tuple[NumberedHeads, ...] = ()
    """The layers whose groups do not follow each other."""
    fresh_parameters: int
    state_bytes: int
    kv_cache_bytes: int | None
    compression: float | None
    compression_lola: float | None
    prefill_flops_per_token: int
    decode_flops_per_token: int | None
    notes: tuple[str, ...] = ()
    """Warnings about the spec on this source."""
    native: tuple[TargetFit, ...] = ()
    """With --native: the classes that exports can be written as, in the order in which they are tried."""

    def view(self) -> View:
        return view_of(self)


def view_of(explanation: Explanation) -> View:
    """Return the costs of a spec as tables, group by group, bytes for one row of a batch."""
    name = f"{explanation.name} on {explanation.on}\n" if explanation.on else f"{explanation.name}: "
    place = f"{explanation.sequence:,} tokens, {explanation.backend} on {explanation.device}, {explanation.dtype}"
    growth = f" at {explanation.sequence:,} tokens" if any(group.state_grows for group in explanation.groups) else ", at any length"
    model_table = Table("The whole model", ("", ""), _figures(explanation, growth))
    tables = (
        *(table for group in explanation.groups for table in _of_group(group)),
        *_key_heads(explanation),
        model_table,
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
