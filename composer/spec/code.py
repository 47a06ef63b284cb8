"""The programs of a resolved spec's heads as text: what ``compose show --code`` prints."""

from __future__ import annotations

from blocks.operation import Setting
from blocks.part import Closed
from composer.graph.listing import DECODE, IN_PIECES, heading, inputs_of, listing, otherwise, rotations
from composer.graph.lowering import AUTO, check_backend, compile_head
from composer.graph.pieces import takes_pieces
from composer.spec.resolve import Resolved
from composer.tables import Readable, View
from composer.words import layers_in_words, plural


class Code(Closed):
    """One head's listing. inputs: its arguments. decode: the lines that differ in decode; each replaces the line with the same
    result."""

    head: str
    layers: tuple[int, ...]
    heads: int
    key_heads: int
    inputs: tuple[str, ...]
    rotations: tuple[str, ...]
    """How memories rotate queries and keys."""
    prefill: tuple[str, ...]
    in_pieces: bool
    """Whether a long text is processed in pieces, if no gradient is needed."""
    decode: tuple[str, ...]


class Listing(Readable, Closed):
    """The programs of a spec on a source. heads: a listing for each group of heads that are alike."""

    name: str
    on: str
    backend: str
    device: str
    dtype: str
    heads: tuple[Code, ...]

    @property
    def text(self) -> str:
        """A function for each group of heads, with the lines that differ in decode."""
        lines = [f"# {self.name} on {self.on}: {heading(self.backend, self.device, self.dtype)}"]
        for group in self.heads:
            heads = f"{plural(group.heads, 'query head')} ({plural(group.key_heads, 'key head')})"
            lines.append(f"\n# {heads} in {layers_in_words(group.layers)}")
            lines.append(f"def {group.head.replace('-', '_')}({', '.join(group.inputs)}):")
            pieces, decode = [IN_PIECES] if group.in_pieces else [], [DECODE, *group.decode] if group.decode else []
            lines += [f"    {line}" for line in (*group.rotations, *group.prefill, *pieces, *decode)]
        return "\n".join(lines)

    def view(self) -> View:
        return View("", verbatim=self.text)


def code_of(resolved: Resolved, on: str, *, backend: str = AUTO, device: str = "cpu", dtype: str = "float32") -> Listing:
    """Return the listing of every group of heads, each once. Raises BuildError for a backend that none of their parts has."""
    setting = Setting(device=device, dtype=dtype)
    compiled_heads = [(name, layers, compile_head(head, shape)) for (name, _), (head, shape, layers) in resolved.kinds().items()]
    check_backend(backend, (made.graph for _, _, made in compiled_heads))
    heads = tuple(
        Code(
            head=name,
            layers=tuple(layers),
            heads=made.shape.heads,
            key_heads=made.shape.key_heads,
            inputs=inputs_of(made.program(backend, setting)),
            rotations=tuple(rotations(made.program(backend, setting))),
            prefill=tuple(listing(made.program(backend, setting))),
            in_pieces=takes_pieces(made.graph, backend, device),
            decode=tuple([] if made.shape.both_ways else otherwise(*made.both(backend, setting))),
        )
        for name, layers, made in compiled_heads
    )
    return Listing(name=resolved.name, on=on, backend=backend, device=device, dtype=dtype, heads=heads)
