"""What ``compose show --code`` prints: the programs of a model's heads as listings."""

from __future__ import annotations

import typer

from composer.cli.screen import plural, print_json, ranges
from composer.graph.graph import INPUTS
from composer.graph.listing import DECODE
from composer.spec.code import code_of
from composer.spec.resolve import Resolved


def print_code(resolved: Resolved, on: str, *, backend: str, device: str, dtype: str, as_json: bool) -> None:
    """A function for each group of heads, and what is other in decode. Raises BuildError for a backend that nobody has."""
    found = code_of(resolved, backend=backend, device=device, dtype=dtype)
    if as_json:
        print_json([one.model_dump(mode="json") for one in found])
        return
    typer.echo(f"# {resolved.name} on {on}: backend {backend} on {device}, {dtype}. Shapes: B rows, T tokens.")
    for one in found:
        layers = f"layer{'s' if len(one.layers) > 1 else ''} {ranges(one.layers)}"
        typer.echo(f"\n# {plural(one.heads, 'query head')} ({plural(one.key_heads, 'key head')}) in {layers}")
        projected = any(line.startswith("query, key, value = ") for line in one.prefill)
        inputs = "hidden" if projected else ", ".join(INPUTS)
        typer.echo(f"def {one.head}({inputs}):")
        for line in (*one.prefill, *([DECODE, *one.decode] if one.decode else [])):
            typer.echo(f"    {line}")
