"""``compose explain``."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

import composer
from composer.cli.options import Backend, Json, MaybeFrom, Revision, Seq, Set, SpecName
from composer.cli.screen import print_json, print_view
from composer.graph.lowering import AUTO
from converters.trunk import Dtype


def explain(
    spec: SpecName,
    source: MaybeFrom = None,
    seq: Seq = "4k",
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
    print_view(answer.view())
