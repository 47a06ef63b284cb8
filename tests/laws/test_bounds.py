"""Laws 5 and 6: a state has its declared size at any length, and large numbers and long sequences stay in range."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from blocks.legend import Shape
from blocks.memories.sparse import Sparse
from composer.graph.composition import HeadSpec
from composer.laws.bounds import (
    CALLS,
    DTYPES,
    assert_close_in_bfloat16,
    assert_in_range,
    assert_long,
    assert_size,
)
from tests.covers import cover, in_turns, parts_of, some
from tests.laws.cases import (
    SHAPES,
    SMALL,
    build_head,
    coarse,
    covering,
    every_head,
    every_part,
    inputs,
    run,
    steady,
)
from tests.laws.draw import random_heads

HEADS = every_head()
PARTS = some(HEADS, every_part())
_WITHOUT_END: dict[str, HeadSpec] = {}
"""Few heads that together have every part that sums up or turns with the position. A cache is below a window that evicts many pairs
at once: where every token evicts a pair, as many tokens take minutes."""
SUMMED = {"memory", "gate", "rate", "position", "value_position", "feature_map"}
for _name, _head in ((name, coarse(steady(head))) for name, head in HEADS.items()):
    if _head not in _WITHOUT_END.values() and not (_head.memory[0].grows or isinstance(_head.memory[0], Sparse)):
        _WITHOUT_END[_name] = _head
_parts = {name: {part for part in parts_of([head]) if part[0] in SUMMED} for name, head in _WITHOUT_END.items()}
ENDLESS = {name: _WITHOUT_END[name] for name in cover(_parts)}


@pytest.mark.parametrize(("name", "shape"), in_turns(HEADS, SHAPES, covering()))
def test_state_bytes_are_as_declared(name: str, shape: str) -> None:
    assert_size(HEADS[name], SHAPES[shape], CALLS[shape])


@given(drawn=random_heads(), length=st.integers(1, 90), dtype=st.sampled_from(DTYPES))
def test_state_bytes_of_random_heads_are_as_declared(drawn: tuple[HeadSpec, Shape], length: int, dtype: str) -> None:
    assert_size(*drawn, ((length, dtype),))


@pytest.mark.parametrize("name", PARTS)
def test_logits_of_50_are_finite_in_float32(name: str) -> None:
    """Coordinates of queries and keys (the logits of feature maps) and products reach ±50 in float32."""
    assert_in_range(steady(HEADS[name]))


@pytest.mark.parametrize("name", PARTS)
def test_bfloat16_is_close_to_float64(name: str) -> None:
    """Both computations start from rounded inputs. The root mean square error of bfloat16 is within 3 % of the output."""
    assert_close_in_bfloat16(steady(HEADS[name]))


def has_bounded_output(head: HeadSpec) -> bool:
    """Whether a norm divides the output, or the memory's mass. A gate alone leaves an undivided numerator as large as it is."""
    return head.output is not None and (head.output.normalises or all(getattr(part, "normalise", True) for part in head.memory))


@pytest.mark.parametrize("name", some((name for name, head in HEADS.items() if has_bounded_output(head)), covering()))
def test_outputs_before_a_norm_are_finite_in_float16(name: str) -> None:
    """With queries and keys 50 times as large, undivided numerators exceed float16's 65,504, and the norm restores the range."""
    shape = SMALL.shape(4)
    head, data = build_head(steady(HEADS[name]), shape).half(), inputs(shape, 2, 70, scale=50.0).to(torch.float16)
    actual, _ = run(head, data)
    expected, _ = run(head.double(), data.to(torch.float64), backend="reference")
    assert actual.dtype == torch.float16
    assert (actual.double() - expected).norm() <= 0.03 * expected.norm()


@pytest.mark.parametrize("name", ENDLESS)
def test_float32_is_close_to_float64_after_131072_tokens(name: str) -> None:
    """float32 is compared with float64 at the end of a long sequence, then for some steps of decode."""
    assert_long(ENDLESS[name])
