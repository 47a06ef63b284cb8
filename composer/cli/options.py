"""The arguments and options that several commands share, so that each means the same everywhere."""

from __future__ import annotations

from typing import Annotated

import typer

SPEC = "A YAML file, or the name of a shipped spec (`compose show` lists them). One of a sweep is SWEEP:VARIANT."
SpecName = Annotated[str, typer.Argument(help=SPEC)]
SOURCE = "A folder with config.json and safetensors, a built model too, or a model of the Hub."
MaybeFrom = Annotated[str | None, typer.Option("--from", metavar="SOURCE", help=SOURCE)]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Say something else than the spec: head.memory.0.size=32. May be repeated."),
]
Revision = Annotated[str | None, typer.Option(help="A branch, tag or commit of a model of the Hub.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
