"""Which form computes each part of a head, on which kernels, and why not a faster one. Lowering changes speed, never meaning."""

from __future__ import annotations

from typing import Literal

from blocks.memories.base import Memory
from blocks.memories.full import Full
from blocks.part import Closed, Part
from composer.graph.graph import HeadGraph, is_plain, parts

Backend = Literal["reference", "torch"]
DECODING = ", one step in decode"
"""What the forms of some parts end in; both ways, nothing is decoded."""
BACKENDS: tuple[Backend, ...] = ("reference", "torch")


class Lowered(Closed):
    """What one part of a head was lowered to."""

    part: str
    kind: str
    backend: Backend
    form: str
    why_not_faster: str


def lower(graph: HeadGraph, backend: Backend, device: str) -> tuple[Lowered, ...]:
    """The form of every part of the graph, in the order of the flow."""
    lowered = []
    for node, part, own in parts(graph):
        kind: str = getattr(part, "kind")  # noqa: B009 - each part declares its own
        form = part.forms[backend]
        if own.both_ways:
            form = form.removesuffix(DECODING)
        if own.both_ways and isinstance(part, Memory) and part.reads != "pairs":
            form = "sums over each document, whole"
        elif isinstance(part, Full) and backend == "torch" and not own.both_ways and is_plain(graph, node):
            form = part.plain_form
        reason = _why_not_faster(part, backend, device)
        lowered.append(Lowered(part=node, kind=kind, backend=backend, form=form, why_not_faster=reason))
    return tuple(lowered)


def _why_not_faster(part: Part, backend: Backend, device: str) -> str:
    if backend == "reference":
        return "the reference was asked for; it is the definition, and slow"
    if len(set(part.forms.values())) == 1:
        return "one form computes it everywhere"
    if device == "cpu":
        return "of the forms that are built in, this is the fastest"
    return "no fla or triton form of this part is built in yet; PyTorch's own kernels run it on any device"
