"""``compose explain``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import typer

import composer
from composer.cli.options import Backend, Json, MaybeFrom, Revision, Set, SpecName
from composer.cli.screen import heading, print_json, print_table
from composer.graph.lowering import AUTO
from composer.spec.explain import Explanation, GroupCost
from composer.spec.inherit import own_source
from composer.spec.loading import load_spec
from composer.words import plural, quantity, ranges, ratio, short_hashes, size
from converters.trunk import Dtype


def explain(
    spec: SpecName,
    source: MaybeFrom = None,
    seq: Annotated[int, typer.Option(min=1, metavar="TOKENS", help="Length at which the source's KV cache is compared.")] = 4096,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where the model would run.")] = "cpu",
    dtype: Annotated[
        Dtype | None, typer.Option(help="What the model would compute in; left out, the source's own, or float32.")
    ] = None,
    backend: Backend = AUTO,
    settings: Set = None,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Say what a spec costs on a source, before it is built.

    Of each group of heads: parts, forms and why not faster ones, fresh parameters, bytes of state for one row of a batch,
    operations, and the compression against the source's KV cache. It reads the source's config.json alone; a spec with a trunk
    of its own needs no source, and is compared with softmax attention in that trunk.
    """
    answer = composer.explain(
        spec,
        source,
        overrides=settings or (),
        revision=revision,
        sequence=seq,
        backend=backend,
        device=device,
        dtype=dtype,
    )
    if as_json:
        print_json(answer.model_dump(mode="json"))
        return
    heading(f"{answer.name} on {source or own_source(spec) or _of_its_own(spec, settings)}")
    typer.echo(short_hashes(f"{answer.sequence:,} tokens, {answer.backend} on {answer.device}, {answer.dtype}, spec {answer.hash}"))
    for group in answer.groups:
        _print_group(group)
    _print_model(answer)


def _of_its_own(spec: str, settings: Sequence[str] | None) -> str:
    return "its own trunk" if load_spec(spec, settings or ()).trunk else "the sizes that it was resolved for"


def _print_group(group: GroupCost) -> None:
    typer.echo()
    layers = f"layer{'s' if len(group.layers) > 1 else ''} {ranges(group.layers)}"
    heading(f"{group.head}: {plural(group.heads, 'query head')} ({plural(group.key_heads, 'key head')}) in {layers}")
    rows = []
    for part in group.parts:
        rows.append((part.part, part.kind, part.form))
        if part.decode is not None and group.decode_flops_per_token is not None:
            rows.append(("", "in decode", part.decode))
    print_table(rows, headers=("part", "kind", "form"))
    reasons: dict[str, list[str]] = {}
    for part in group.parts:
        reasons.setdefault(part.why_not_faster, []).append(part.part)
    typer.echo("  Why not faster:")
    print_table([("·", f"{', '.join(parts)}: {reason}") for reason, parts in reasons.items()], indent=4)
    typer.echo("  In each of these layers:")
    growth = "grows with the text" if group.state_grows else "the same at any length"
    unused = [("q_proj, k_proj", "kept as they are, and not used by these heads")] if group.unused_projections else []
    print_table(
        [("fresh parameters", f"{group.fresh_parameters:,}"), *unused, *_compared(group, f"{size(group.state_bytes)}, {growth}")],
        indent=4,
    )


def _print_model(answer: Explanation) -> None:
    typer.echo()
    heading("The whole model")
    growth = f" at {answer.sequence:,} tokens" if any(group.state_grows for group in answer.groups) else ", at any length"
    print_table([("fresh parameters", f"{answer.fresh_parameters:,}"), *_compared(answer, f"{size(answer.state_bytes)}{growth}")])


def _compared(cost: GroupCost | Explanation, state: str) -> list[tuple[str, str]]:
    if cost.kv_cache_bytes is None or cost.decode_flops_per_token is None:
        return [
            ("state", "none: every token sees those after it, too, so a call holds its texts whole"),
            ("FLOPs a token", f"{quantity(cost.prefill_flops_per_token)}, beside the projections"),
        ]
    return [
        ("state", state),
        ("source's KV cache", f"{size(cost.kv_cache_bytes)}"),
        ("compression", _compression(cost)),
        (
            "FLOPs a token",
            f"{quantity(cost.prefill_flops_per_token)} in prefill, {quantity(cost.decode_flops_per_token)} in decode, "
            "beside the projections",
        ),
    ]


def _compression(cost: GroupCost | Explanation) -> str:
    if cost.compression is None:
        return "no state is kept"
    pairs = "no pairs" if cost.compression_lola is None else ratio(cost.compression_lola)
    return f"{ratio(cost.compression)} in bytes, {pairs} as LoLA counts pairs"
