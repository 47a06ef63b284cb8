"""The functions of a resolved spec's heads as text: what ``compose show --code`` prints."""

from __future__ import annotations

from blocks.operation import Setting
from blocks.part import Closed
from composer.graph.lowering import AUTO, check_backend, compile_head
from composer.graph.source import heading
from composer.reporting.tables import Readable, View
from composer.reporting.words import layers_in_words, plural
from composer.spec.resolve import Resolved


class Code(Closed):
    """The functions of heads that are alike, as Python source. A function for one token is listed where it differs from that for
    any number."""

    head: str
    layers: tuple[int, ...]
    heads: int
    key_heads: int
    functions: tuple[str, ...]


class Listing(Readable, Closed):
    """The programs of a spec on a source. heads: the functions of each group of heads that are alike."""

    name: str
    on: str
    backend: str
    device: str
    dtype: str
    heads: tuple[Code, ...]

    @property
    def text(self) -> str:
        """The functions of each group of heads."""
        texts = [f"# {self.name} on {self.on}: {heading(self.backend, self.device, self.dtype)}\n"]
        for group in self.heads:
            heads = f"{plural(group.heads, 'query head')} ({plural(group.key_heads, 'key head')})"
            texts += [f"# {heads} in {layers_in_words(group.layers)}\n{group.functions[0]}", *group.functions[1:]]
        return "\n".join(texts).rstrip("\n")

    def view(self) -> View:
        return View("", verbatim=self.text)


def code_of(resolved: Resolved, on: str, *, backend: str = AUTO, device: str = "cpu", dtype: str = "float32") -> Listing:
    """Return the listing of every group of heads, each once. Raises BuildError for a backend that none of their parts has."""
    setting = Setting(device=device, dtype=dtype)
    compiled_heads = [(name, layers, compile_head(head, shape)) for (name, _), (head, shape, layers) in resolved.kinds().items()]
    check_backend(backend, (compiled.graph for _, _, compiled in compiled_heads))
    heads = tuple(
        Code(
            head=name,
            layers=tuple(layers),
            heads=compiled.shape.heads,
            key_heads=compiled.shape.key_heads,
            functions=tuple(compiled.print_functions(backend, setting, name)),
        )
        for name, layers, compiled in compiled_heads
    )
    return Listing(name=resolved.name, on=on, backend=backend, device=device, dtype=dtype, heads=heads)
