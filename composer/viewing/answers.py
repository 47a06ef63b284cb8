"""What the page says of a text: mistakes with their lines, the picture, what it costs, and its program."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

from composer.drawing.picture import picture
from composer.errors import ComposerError, SpecError
from composer.graph.listing import DECODE
from composer.spec.code import code_of
from composer.spec.explain import Explanation, GroupCost, explain_resolved
from composer.spec.resolve import Resolved
from composer.viewing.reading import MOST_TOKENS, Place, resolved_text, whole
from composer.words import plural, quantity, ranges, ratio, size
from converters.shard import BYTES

MOST_LINES = 20
"""Mistakes that are shown at once."""


@dataclass(frozen=True)
class Answer:
    """HTML, and a program as Python. Of a text with a mistake, everything but the first is None."""

    status: str
    picture: str | None = None
    costs: str | None = None
    program: str | None = None


def answer(text: str, place: Place, sizes: tuple[float | None, ...], tokens: float | None, dtype: str) -> Answer:
    """All that is said of a text. tokens: at which caches are compared. Nothing that is typed raises."""
    try:
        length = whole(tokens, "tokens", MOST_TOKENS)
        if dtype not in BYTES:
            raise SpecError(f"there is no dtype {dtype}; there are {', '.join(BYTES)}")
        resolved = resolved_text(text, place, sizes)
    except ComposerError as error:
        return Answer(mistakes(str(error), text, place.called))
    drawn = picture(resolved, sequence=length, dtype=dtype)
    costs = explain_resolved(resolved, sequence=length, dtype=dtype)
    said = f'<div class="right">No mistakes. Its hash is <code>{resolved.hash[:12]}…</code></div>'
    return Answer(said, drawn.svg, costs_of(costs), program_of(resolved, dtype))


def mistakes(message: str, text: str, called: str) -> str:
    """Each line of an error, and the line of the text that it points at."""
    lines = text.splitlines()
    rows = []
    for line in message.splitlines()[:MOST_LINES]:
        found = re.match(rf"{re.escape(called)}:(\d+)(?::\d+)?\s+(.*)", line)
        if found is None:
            rows.append(f"<p>{html.escape(line)}</p>")
            continue
        number = int(found[1])
        there = lines[number - 1] if 0 < number <= len(lines) else ""
        rows.append(f"<p><b>line {number}</b> {html.escape(found[2])}</p><pre>{number:>4}  {html.escape(there[:200])}</pre>")
    return f'<div class="wrong" role="alert">{"".join(rows)}<p>What stands below is of the last text without a mistake.</p></div>'


def costs_of(found: Explanation) -> str:
    """What ``compose explain`` says, as tables."""
    growth = f" at {found.sequence:,} tokens" if any(group.state_grows for group in found.groups) else ", at any length"
    rows = [("fresh parameters", f"{found.fresh_parameters:,}"), *_compared(found, f"{size(found.state_bytes)}{growth}")]
    return f"<h3>The whole model</h3>{_table(rows)}" + "".join(map(_group, found.groups))


def _group(group: GroupCost) -> str:
    layers = f"layer{'s' if len(group.layers) > 1 else ''} {ranges(group.layers)}"
    title = f"{group.head}: {plural(group.heads, 'query head')} ({plural(group.key_heads, 'key head')}) in {layers}"
    parts = [("part", "kind", "form", "why none is faster")]
    for part in group.parts:
        form = part.form if part.decode is None else f"{part.form}; in decode: {part.decode}"
        parts.append((part.part, part.kind, form, part.why_not_faster))
    growth = "grows with the text" if group.state_grows else "the same at any length"
    rows = [("fresh parameters", f"{group.fresh_parameters:,}"), *_compared(group, f"{size(group.state_bytes)}, {growth}")]
    return f"<h3>{html.escape(title)}</h3>{_table(parts, head=True)}<p>In each of these layers:</p>{_table(rows)}"


def _compared(cost: GroupCost | Explanation, state: str) -> list[tuple[str, str]]:
    flops = f"{quantity(cost.prefill_flops_per_token)} in prefill"
    if cost.kv_cache_bytes is None or cost.decode_flops_per_token is None:
        return [("state", "none: every token sees those after it, too"), ("FLOPs a token", f"{flops}, beside the projections")]
    pairs = "" if cost.compression_lola is None else f", {ratio(cost.compression_lola)} as LoLA counts pairs"
    saved = "no state is kept" if cost.compression is None else f"{ratio(cost.compression)} in bytes{pairs}"
    return [
        ("state", state),
        ("source's KV cache", size(cost.kv_cache_bytes)),
        ("compression", saved),
        ("FLOPs a token", f"{flops}, {quantity(cost.decode_flops_per_token)} in decode, beside the projections"),
    ]


def _table(rows: list[tuple[str, ...]], *, head: bool = False) -> str:
    made = []
    for index, row in enumerate(rows):
        tag = "th" if head and index == 0 else "td"
        made.append("<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>")
    return f"<table>{''.join(made)}</table>"


def program_of(resolved: Resolved, dtype: str) -> str:
    """What ``compose show --code`` prints."""
    functions = []
    for one in code_of(resolved, dtype=dtype):
        body = [*one.prefill, *([DECODE, *one.decode] if one.decode else [])]
        inside = "\n".join(f"    {line}" for line in body)
        functions.append(f"def {one.head.replace('-', '_')}(hidden, query, key, value):\n{inside}")
    return "\n\n\n".join(functions) + "\n"
