"""Every shipped spec equals an independent recurrence of the named layer in float64, on inputs as small as in real models. Query
heads share keys. Inputs have a root mean square of 0.01, 0.1 and 1, since an epsilon under a root matters for small numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from blocks.flow import Tokens
from blocks.legend import Shape
from composer.graph.composition import HeadSpec
from composer.graph.program import HeadInputs
from composer.model.head import Head
from composer.spec.loading import load_spec
from composer.spec.resolve import Resolved, resolve
from composer.spec.shipped import shipped_specs
from pages.write import PUBLISHED_TABLE, compare_published
from tests.covers import in_turns
from tests.laws.cases import SMALL, build_head
from tests.laws.published.compared import COMPARED
from tests.laws.published.layer import BLOCK, CACHE, CHOSEN, SINKS, WINDOW, Layer

SPECS = sorted(name for name in shipped_specs() if not name.startswith("ablations/"))
SIZES = {
    "window": WINDOW,
    "first": SINKS,
    "sparse": CACHE,
    "meta": 3,
    "latents": 12,
    "selected_blocks": BLOCK,
    "block_means": BLOCK,
}
TOKENS = 27
"""More than five chunks of the window, so that a cache is full and pairs fall out of it."""
RELATIVE = 1e-6


def small(name: str, overrides: Sequence[str] = ()) -> Resolved:
    """Return the spec on small dimensions with memories that overflow."""
    spec = load_spec(name)
    heads = {"head": spec.head} | {f"heads.{key}": head for key, head in spec.heads.items()}
    sizes = [
        f"{path}.memory.{index}.{field}"
        for path, head in heads.items()
        for index, memory in enumerate(head.memory if head else ())
        if memory.kind in SIZES
        for field in (f"size={SIZES[memory.kind]}", *([f"count={CHOSEN}"] if hasattr(memory, "count") else []))
    ]
    return resolve(load_spec(name, [*sizes, *overrides]), SMALL)


def head_of(resolved: Resolved, head: str) -> tuple[HeadSpec, Shape]:
    """Return a head, and the sizes of a group of such heads."""
    return next((spec, shape) for _, group, spec, shape in resolved.groups() if group.head == head)


def layer_of(head: Head, shape: Shape, size: float) -> Layer:
    """Return hidden states of this root mean square, with projections by random matrices that preserve it."""
    generator = torch.Generator().manual_seed(11)

    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator, dtype=torch.float64)

    width = shape.hidden_size
    hidden = size * normal(TOKENS, width)
    rows = {"query": shape.heads, "key": shape.key_heads, "value": shape.key_heads}
    projections = {name: normal(heads * shape.head_dim, width) / width**0.5 for name, heads in rows.items()}
    query, key, value = ((hidden @ matrix.T).unflatten(-1, (-1, shape.head_dim)) for matrix in projections.values())
    parameters = {name: parameter.detach() for name, parameter in head.named_parameters()}
    theta = SMALL.rope_theta
    assert theta is not None
    return Layer(hidden, query, key, value, parameters, projections, theta)


def composed(head: Head, layer: Layer, backend: str) -> torch.Tensor:
    """Return the output of the product's head in one call."""
    tokens = Tokens(torch.arange(len(layer.hidden))[None])
    state = head.empty_state(1, torch.float64, torch.device("cpu"))
    mixed, _ = head.mix(layer.hidden[None], tokens, state, backend)
    query, key = (layer.project(name, mixed) for name in ("query", "key"))
    output, _ = head(HeadInputs(layer.hidden[None], query, key, layer.value[None], tokens), state, backend)
    return output[0]


def relative_difference(actual: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the largest difference of any token and head, relative to the root mean square of the reference."""
    return ((actual - wanted).abs().max() / wanted.square().mean().sqrt()).item()


def test_every_shipped_spec_is_compared() -> None:
    assert sorted(COMPARED) == SPECS


def test_the_page_lists_every_comparison() -> None:
    text = PUBLISHED_TABLE.read_text(encoding="utf-8")
    assert compare_published(text) == text, "docs/published.md is out of date: write it anew with `make docs`"
    assert all(compared.what in text for compared in COMPARED.values())


@pytest.mark.parametrize(("name", "size"), in_turns(SPECS, [0.01, 0.1, 1.0]))
def test_specs_equal_the_published_layers_that_they_name(name: str, size: float) -> None:
    resolved = small(name)
    assert resolved.heads.keys() == COMPARED[name].heads.keys()
    for key, reference in COMPARED[name].heads.items():
        spec, shape = head_of(resolved, key)
        assert shape.heads > shape.key_heads, "query heads share keys"
        head = build_head(spec, shape)
        layer = layer_of(head, shape, size)
        wanted = reference(layer)
        assert wanted.square().mean() > 0
        for backend in ("reference", "torch"):
            assert relative_difference(composed(head, layer, backend), wanted) < RELATIVE, (key, backend)
