"""The pictures of all shipped specs and of random heads are legible, measured on the SVG."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from blocks.legend import Shape
from composer.drawing.picture import TYPICAL, picture
from composer.graph.composition import HeadSpec
from composer.spec.dimensions import Dimensions
from composer.spec.loading import load_spec
from composer.spec.resolve import Group, Resolved, resolve
from tests.composer.drawing.looked_at import assert_legible
from tests.laws.draw import random_heads
from tests.shipped import FEW


def around(head: HeadSpec, shape: Shape, **options: Any) -> Resolved:
    """Return a model of one layer with this head."""
    sizes = {name: getattr(shape, name) for name in ("hidden_size", "heads", "key_heads", "head_dim")}
    size = Dimensions(layers=1, rope_theta=1e4, **sizes)
    group = Group(head="head", heads=shape.heads, key_heads=shape.key_heads)
    return Resolved(compose=1, name="drawn", dimensions=size, heads={"head": head}, layers=((group,),), **options)


@pytest.mark.parametrize("name", FEW)
def test_shipped_specs_are_legible(name: str) -> None:
    """Of `nsa`, three memories and their three weights are side by side."""
    spec = load_spec(name)
    drawn = picture(resolve(spec, None if spec.trunk else TYPICAL), on="somebody's model")
    assert_legible(drawn)
    assert drawn.width <= (1240 if name == "nsa" else 830), "a README makes it smaller than it is"


@given(drawn=random_heads())
def test_random_heads_are_legible(drawn: tuple[HeadSpec, Shape]) -> None:
    assert_legible(picture(around(*drawn)))
