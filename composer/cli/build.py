"""``compose build``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import composer
from composer.cli.options import Json, MaybeFrom, Quiet, Revision, Set, SpecName
from composer.cli.screen import heading, print_json, print_table
from composer.spec.inherit import shown
from composer.words import plural, quantity, ranges, short_hashes, size
from converters.coverage import Shaped
from converters.trunk import Dtype

if TYPE_CHECKING:
    from composer.weights.build import BuildReport
    from composer.weights.plan import Plan


def build(
    spec: SpecName,
    source: MaybeFrom = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Build from nothing: the spec has a trunk of its own, and every parameter is random.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FOLDER", help="Folder of the model; left out, SPEC-SOURCE or SPEC-fresh here."),
    ] = None,
    settings: Set = None,
    lolcats: Annotated[
        list[Path] | None,
        typer.Option(
            "--lolcats",
            metavar="FILE",
            help="A checkpoint of LoLCATs' that stands on SOURCE (model.pt): trained heads, and adapters, which are merged. May be "
            "repeated.",
        ),
    ] = None,
    dtype: Annotated[
        Dtype | None,
        typer.Option(help="Turn every tensor into this type; left out, each keeps its own, and fresh ones are float32."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the fresh parameters.")] = 0,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="MODEL", help="With --fresh: copy the tokenizer of a folder, or of a model of the Hub.")
    ] = None,
    copy: Annotated[bool, typer.Option("--copy", help="Copy the source's weights instead of linking to them.")] = False,
    hash_contents: Annotated[
        bool, typer.Option("--hash", help="Read large linked files, too, so that `verify` can check each byte of them later.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a model that is there.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, write nothing.")] = False,
    revision: Revision = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Build a model: the source's weights, the spec's heads.

    With --fresh there is no source: the spec says its trunk, too, and all of it is random. The folder appears whole or not at
    all, and transformers loads it.
    """
    report = composer.build_folder(
        spec,
        source,
        out,
        fresh=fresh,
        tokenizer=tokenizer,
        overrides=settings or (),
        revision=revision,
        dtype=dtype,
        seed=seed,
        copy=copy,
        hash_contents=hash_contents,
        force=force,
        dry_run=dry_run,
        progress=not quiet,
        lolcats=lolcats or (),
    )
    if as_json:
        print_json(report.model_dump(mode="json"))
        return
    _print_plan(report.plan)
    typer.echo()
    if dry_run:
        heading(f"Nothing was written; without --dry-run it would be {shown(report.out)}")
        return
    heading(f"Built {shown(report.out)}")
    _print_files(report, seed, fresh=fresh)


def _print_plan(plan: Plan) -> None:
    """What becomes of each tensor; those that differ only in their layer are on one line."""
    heading("Plan")
    entries = {"inherited": plan.inherited, "given": plan.given, "fresh": plan.fresh, "dropped": plan.dropped}
    print_table([(what, plural(len(some), "tensor"), _numbers(some.values())) for what, some in entries.items() if some])
    heads = {name: entry for name, entry in plan.inherited.items() if ".composed." in name}
    lists: dict[str, Mapping[str, Shaped]] = {"Fresh": plan.fresh, "Given": plan.given, "Kept of the source's own heads": heads}
    for reason in {entry.reason: None for entry in plan.dropped.values()}:
        lists[f"Dropped, as {reason}"] = {name: entry for name, entry in plan.dropped.items() if entry.reason == reason}
    for title, some in lists.items():
        if some:
            typer.echo(f"  {title}:")
            print_table(_grouped(some), right=(0,), indent=4, wrap=False)
    if plan.shards:
        typer.echo("  Files of the source:")
        doing = {"link": "kept as it is", "rewrite": "rewritten", "leave": "left behind"}
        print_table([(shard.file, doing[shard.action], f"({shard.reason})") for shard in plan.shards], indent=4, wrap=False)
    for note in plan.notes:
        typer.echo(f"  Note: {note}")


def _print_files(report: BuildReport, seed: int, *, fresh: bool) -> None:
    print_table(
        [
            (name, size(file.bytes), file.how + (f" from {Path(file.origin).name}" if file.origin else ""))
            for name, file in report.files.items()
        ],
        right=(1,),
        wrap=False,
    )
    shared = "" if fresh else f" {size(report.bytes_shared)} shared with the source,"
    typer.echo(f"  {size(report.bytes_written)} written,{shared} {report.seconds:.1f} s")
    typer.echo(short_hashes(f"  spec {report.spec_hash}"))
    if fresh:
        typer.echo(f"  Every parameter is random (seed {seed}): it says nothing until it is trained.")
    elif report.untrained:
        typer.echo(f"  {plural(len(report.untrained), 'tensor')} untrained (seed {seed}): do not expect the source's quality yet.")


def _grouped(entries: Mapping[str, Shaped]) -> list[tuple[str, str, str]]:
    """Count, shape and name; names that differ only in the number of their layer are one row."""
    layers: dict[tuple[str, str, str], list[int]] = {}
    for name, entry in entries.items():
        found = re.search(r"\blayers\.(\d+)\.", name)
        start, end = found.span(1) if found else (len(name), len(name))
        layers.setdefault((name[:start], name[end:], str(list(entry.shape))), []).append(int(name[start:end] or -1))
    return [
        (f"{len(where)} ×", shape, first + ("{" + ranges(where, "-", ",") + "}" if last else "") + last)
        for (first, last, shape), where in layers.items()
    ]


def _numbers(entries: Iterable[Shaped]) -> str:
    return f"{quantity(sum(math.prod(entry.shape) for entry in entries))} numbers"
