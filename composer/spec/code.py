"""The programs of a resolved spec's heads as text: what ``compose show --code`` prints."""

from __future__ import annotations

from blocks.operation import Setting
from blocks.part import Closed
from composer.graph.listing import listing, otherwise
from composer.graph.lowering import AUTO, check_backend, compiled
from composer.spec.resolve import Resolved


class Code(Closed):
    """One head's listing. decode: the lines that are others there; each takes the place of the one that gives the same."""

    head: str
    layers: tuple[int, ...]
    heads: int
    key_heads: int
    prefill: tuple[str, ...]
    decode: tuple[str, ...]


def code_of(resolved: Resolved, *, backend: str = AUTO, device: str = "cpu", dtype: str = "float32") -> tuple[Code, ...]:
    """The listing of every group of heads, each once. Raises BuildError for a backend that none of their parts has."""
    alike: dict[tuple[str, int], list[int]] = {}
    for layer, group, _, _ in resolved.groups():
        alike.setdefault((group.head, group.heads), []).append(layer)
    found = []
    for (name, heads), layers in alike.items():
        made, setting = compiled(resolved.heads[name], resolved.shape(heads)), Setting(device=device, dtype=dtype)
        found.append((name, layers, made, setting))
    check_backend(backend, (made.graph for _, _, made, _ in found))
    return tuple(
        Code(
            head=name,
            layers=tuple(layers),
            heads=made.shape.heads,
            key_heads=made.shape.key_heads,
            prefill=tuple(listing(made.program(backend, setting))),
            decode=tuple([] if made.shape.both_ways else otherwise(*made.both(backend, setting))),
        )
        for name, layers, made, setting in found
    )
