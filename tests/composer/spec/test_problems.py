"""The problems that are reported before a build are those that would stop the build."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.errors import GraphError
from composer.spec.dimensions import Dimensions
from composer.spec.document import Spec
from composer.spec.loading import load_spec
from composer.spec.problems import problems
from composer.spec.resolve import resolve
from tests.composer.graph.random_heads import HEADS, head_of

SIZES = (
    Dimensions(hidden_size=24, layers=1, heads=4, key_heads=2, head_dim=8, rope_theta=100.0),
    Dimensions(hidden_size=20, layers=1, heads=3, key_heads=3, head_dim=5, rope_theta=100.0),
    Dimensions(hidden_size=2048, layers=1, heads=1, key_heads=1, head_dim=64, rope_theta=100.0),
)


def builds(spec: Spec, size: Dimensions) -> bool:
    try:
        resolve(spec, size)
    except GraphError:
        return False
    return True


@given(document=HEADS, direction=st.sampled_from(["causal", "bidirectional"]))
@settings(max_examples=max(40, settings.default.max_examples))
def test_problems_equal_those_of_a_build(document: dict[str, Any], direction: Literal["causal", "bidirectional"]) -> None:
    """This holds on each source. Problems without a source are wrong on every source."""
    head = head_of(document)
    if head is None:
        return
    spec = Spec(compose=1, name="x", head=head, direction=direction)
    on = [builds(spec, size) for size in SIZES]
    assert [not problems(spec, size) for size in SIZES] == on
    assert not any(on) or not problems(spec, None)


def test_all_problems_of_one_rule_are_reported() -> None:
    """Each place is reported once. Later rules report nothing before these are fixed."""
    named = [{"kind": "window", "size": 4, "name": "half"}, {"kind": "state", "name": "apply"}]
    spec = load_spec({"compose": 1, "name": "x", "head": {"feature_map": "elu", "memory": named}})
    assert [error.path for error in problems(spec, SIZES[0])] == [("head", "memory", place, "name") for place in (0, 1)]
    falls = [{"kind": "window", "size": 4}, {"kind": "window", "size": 4, "name": "far"}]
    spec = load_spec({"compose": 1, "name": "x", "head": {"memory": falls, "flow": "parallel"}})
    assert [error.path for error in problems(spec, None)] == [("head", "memory", place) for place in (0, 1)]


@pytest.mark.parametrize(
    ("head", "trunk"),
    [
        ({"mix_input": {"kind": "rglru", "blocks": 3}, "memory": [{"kind": "latents", "size": 8}]}, {"width": 24, "heads": 4}),
        (
            {"feature_map": {"kind": "elu", "linear": True, "dim": 24}, "memory": [{"kind": "state", "gate": "from_key"}]},
            {"width": 32, "heads": 4},
        ),
        (
            {"feature_map": {"kind": "elu", "linear": True, "dim": 96, "skip": True}, "memory": ["state"]},
            {"width": 192, "heads": 2},
        ),
    ],
)
def test_sizes_equal_those_of_the_model(head: dict[str, Any], trunk: dict[str, int]) -> None:
    spec = load_spec({"compose": 1, "name": "x", "trunk": {**trunk, "layers": 1, "vocabulary": 32}, "head": head})
    assert not problems(spec, None)
    assert resolve(spec)
    wrong = load_spec({"compose": 1, "name": "x", "trunk": {"width": 20, "heads": 2, "layers": 1, "vocabulary": 32}, "head": head})
    (problem,) = problems(wrong, None)
    assert problem.path[:1] == ("head",)
