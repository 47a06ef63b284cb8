"""Laws 5 and 6: a state is as large as it says, however long the sequence; large numbers and long sequences stay in range."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blocks.legend import Shape
from blocks.memories.full import Full
from blocks.memories.sparse import Sparse
from composer.graph.composition import HeadSpec
from composer.graph.graph import build_graph
from composer.model.head import Head
from composer.spec.explain import state_bytes, state_size
from tests.laws.cases import SHAPES, SMALL, Inputs, built, coarse, every_head, every_part, inputs, once, run, steady
from tests.laws.draw import random_heads

HEADS = every_head()
PARTS = every_part()
LONG = 131_072
DTYPES = ("bfloat16", "float32", "float64")
CALLS = {shape: tuple(zip((1, 20, 90), DTYPES[turn:] + DTYPES[:turn], strict=True)) for turn, shape in enumerate(SHAPES)}
"""By shape: every shape meets every length and every dtype, and every length every dtype; any three meet in random heads."""
TINY = Shape(hidden_size=6, heads=1, key_heads=1, head_dim=4)

ENDLESS: dict[str, HeadSpec] = {}
"""A head a part, but of those that are steady alike (caches that differ in their score) one, below a window, which lets many pairs
fall at once: where every token is a fall, as many tokens take minutes."""
for _name, _head in ((name, coarse(steady(head))) for name, head in PARTS.items()):
    if _head not in ENDLESS.values() and not isinstance(_head.memory[0], Full | Sparse):
        ENDLESS[_name] = _head


@cache
def endless_inputs() -> tuple[Inputs, Inputs]:
    """The same for every head, which reads them alone: in float64 and in float32."""
    data = inputs(TINY, 1, LONG + 8)
    return data, data.to(torch.float32)


def measured(head: Head, shape: Shape, length: int, dtype: torch.dtype) -> int:
    """Bytes of what one row hands on."""
    _, state = run(head, inputs(shape, 2, length).to(dtype))
    return sum(tensor.nbytes for tensor in state.values()) // 2


@once
def assert_size(spec: HeadSpec, shape: Shape, calls: tuple[tuple[int, str], ...]) -> None:
    graph, head = build_graph(spec, shape), built(spec, shape)
    for length, name in calls:
        dtype = getattr(torch, name)
        assert measured(head.to(dtype), shape, length, dtype) == state_bytes(state_size(graph, length), name), (length, name)
    if not any(isinstance(memory, Full) for memory in spec.memory):
        assert state_size(graph, 90) == state_size(graph, 10**9)


@once
def assert_in_range(spec: HeadSpec) -> None:
    shape = SMALL.shape(4)
    head, data = built(spec, shape, noise=0.0), inputs(shape, 2, 70)
    query, key = (tensor * (50 / tensor.abs().max()) for tensor in (data.query, data.key))
    exact = Inputs(data.hidden, query / 2, key / 2, data.value, data.tokens)
    for given_ in (Inputs(data.hidden, query, key, data.value, data.tokens), exact):
        expected, _ = run(head.double(), given_, backend="reference")
        leaves = [tensor.float().requires_grad_() for tensor in given_.tensors]
        found, _ = run(head.float(), Inputs(*leaves, given_.tokens))
        torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3 * max(1.0, expected.abs().max().item()))
        found.sum().backward()
        assert all(leaf.grad is None or leaf.grad.isfinite().all() for leaf in leaves)


@once
def assert_close_in_bfloat16(spec: HeadSpec) -> None:
    shape = SMALL.shape(4)
    head = built(spec, shape).bfloat16()
    data = inputs(shape, 2, 70).to(torch.bfloat16)
    found, _ = run(head, data)
    expected, _ = run(head.double(), data.to(torch.float64), backend="reference")
    assert found.dtype == torch.bfloat16
    assert (found.double() - expected).norm() <= 0.03 * expected.norm()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", HEADS)
def test_the_state_is_as_large_as_it_says(name: str, shape: str) -> None:
    assert_size(HEADS[name], SHAPES[shape], CALLS[shape])


@given(drawn=random_heads(), length=st.integers(1, 90), dtype=st.sampled_from(DTYPES))
def test_the_states_of_random_heads_are_as_large_as_they_say(drawn: tuple[HeadSpec, Shape], length: int, dtype: str) -> None:
    assert_size(*drawn, ((length, dtype),))


@pytest.mark.parametrize("name", HEADS)
def test_logits_of_fifty_stay_in_range(name: str) -> None:
    """Queries and keys whose coordinates (the logits of feature maps) and products reach ±50, in float32."""
    assert_in_range(steady(HEADS[name]))


@pytest.mark.parametrize("name", HEADS)
def test_bfloat16_stays_close(name: str) -> None:
    """Both sides start from rounded inputs; what bfloat16 adds is within 3 % of the output, as a root mean square."""
    assert_close_in_bfloat16(steady(HEADS[name]))


@pytest.mark.parametrize("name", [name for name, head in HEADS.items() if head.output is not None])
def test_what_stands_behind_a_norm_is_finite_in_float16(name: str) -> None:
    """Queries and keys 50 times as large: raw numerators pass float16's 65,504, and the norm takes them back."""
    shape = SMALL.shape(4)
    head, data = built(steady(HEADS[name]), shape).half(), inputs(shape, 2, 70, scale=50.0).to(torch.float16)
    found, _ = run(head, data)
    expected, _ = run(head.double(), data.to(torch.float64), backend="reference")
    assert found.dtype == torch.float16
    assert (found.double() - expected).norm() <= 0.03 * expected.norm()


@pytest.mark.parametrize("name", ENDLESS)
def test_131072_tokens_stay_in_range(name: str) -> None:
    """float32 against float64 at the end of a long sequence, then some steps of decode."""
    head, (data, rounded) = built(ENDLESS[name], TINY), endless_inputs()
    with torch.no_grad():
        expected, wide = run(head, data.cut(slice(0, LONG)))
        decoded = []
        for t in range(LONG, LONG + 8):
            output, wide = run(head, data.cut(slice(t, t + 1)), wide)
            decoded.append(output)
        narrow = head.float()
        found, state = run(narrow, rounded.cut(slice(0, LONG)))
        steps = []
        for t in range(LONG, LONG + 8):
            output, state = run(narrow, rounded.cut(slice(t, t + 1)), state)
            steps.append(output)
    for one, other in ((found[:, -4096:], expected[:, -4096:]), (torch.cat(steps, 1), torch.cat(decoded, 1))):
        assert one.isfinite().all()
        # The angles of rope are float32 in both, as in the source's own code, so they add no difference.
        assert (one.double() - other).abs().max() <= 2e-3 * max(1.0, other.abs().max().item())
