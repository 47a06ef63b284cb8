"""``compose diff``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from composer.api import resolve_spec
from composer.cli.check import check_alone
from composer.cli.options import Json, MaybeFrom, Revision, complete_spec
from composer.cli.screen import heading, print_json, print_table, ranges, short_hashes
from composer.cli.show import as_written
from composer.errors import GraphError
from composer.spec.difference import Difference, differences_of_specs, differences_on_source
from composer.spec.document import Spec
from composer.spec.loading import load_spec, locate
from composer.spec.places import dotted
from composer.spec.sweep import refuse_sweep
from composer.weights.dimensions import dimensions
from composer.weights.sources import describe_model

WHICH = "A YAML file, a shipped spec, one of a sweep (SWEEP:VARIANT), or the folder of a built model."
Which = Annotated[str, typer.Argument(help=WHICH, show_default=False, autocompletion=complete_spec)]


def diff(first: Which, second: Which, source: MaybeFrom = None, revision: Revision = None, as_json: Json = False) -> None:
    """Say what differs between two specs in meaning, not in text.

    Names, papers and recipes mean nothing, and a default means the same written out or not. With --from they are compared layer
    by layer, as they would be built on that source; without it head by head, and their own trunks where they have them.
    """
    specs = [load_spec(name) for name in (first, second)]
    if source is None:
        for spec in specs:
            _check(spec)
        found = differences_of_specs(*specs)
        hashes = [resolve_spec(spec, None).hash for spec in specs] if all(spec.trunk for spec in specs) else None
    else:
        size = dimensions(describe_model(source, revision).trunk)
        resolved = [resolve_spec(spec, size) for spec in specs]
        found, hashes = differences_on_source(*resolved), [one.hash for one in resolved]
    if as_json:
        rows = [row.model_dump(mode="json") | {"path": dotted(row.path)} for row in found]
        print_json({"specs": [first, second], "same": not found, "hashes": hashes, "differences": rows})
    else:
        _print((first, second), found, source, hashes)


def _check(spec: Spec) -> None:
    """What is no spec for any source has no meaning to compare. Raises SpecError."""
    try:
        refuse_sweep(spec)
        check_alone(spec)
        differences_of_specs(spec, spec)
    except GraphError as error:
        raise locate(error, spec) from error


def _print(names: tuple[str, str], found: Sequence[Difference], source: str | None, hashes: Sequence[str] | None) -> None:
    if found:
        heading(f"{names[0]} → {names[1]}" + (f" on {source}" if source else ""))
        print_table([(*_where(row), f"{_said(row.first)} → {_said(row.second)}") for row in found])
        if source is None and hashes is None:
            typer.echo("Compared head by head, as for any source; layer by layer: --from SOURCE")
    elif hashes:
        typer.echo(short_hashes(f"the same meaning on {source or 'their own trunk'}: {hashes[0]}"))
    else:
        typer.echo("the same meaning on every source")


def _where(row: Difference) -> tuple[str, ...]:
    layers = row.layers or ()
    return (*((f"layer{'s' if len(layers) > 1 else ''} {ranges(layers)}",) if layers else ()), dotted(row.path))


def _said(value: Any) -> str:
    """A value on one line, as one would write it."""
    value = as_written(value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_said(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_said, value))}]"
    return value if isinstance(value, str) else json.dumps(value)
