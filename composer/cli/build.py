"""``compose build``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import composer
from composer.cli.options import Json, MaybeFrom, Quiet, Revision, Set, SpecName
from composer.cli.screen import print_json, print_view
from composer.spec.inherit import shown
from composer.weights.build_report import view_of
from converters.trunk import Dtype


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
        typer.Option(
            help="Turn every tensor into this type; left out, each keeps its own, quantised ones are unpacked to bfloat16."
        ),
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
    view = view_of(report, seed)
    if quiet and not dry_run:
        view = view._replace(title=f"Built {shown(report.out)}", tables=())
    print_view(view, wrap=False)
