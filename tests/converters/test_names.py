"""A table translates names in both directions, and returns None for unknown names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from converters.composed import FAMILIES
from converters.family import NameTable

TABLE = NameTable({"transformer.h.{i}.q.weight": "model.layers.{i}.self_attn.q_proj.weight", "x.{i}.{rest}": "y.{i}.own.{rest}"})


def test_rows_map_names_in_both_directions():
    assert TABLE.canonical("transformer.h.11.q.weight") == "model.layers.11.self_attn.q_proj.weight"
    assert TABLE.original("model.layers.11.self_attn.q_proj.weight") == "transformer.h.11.q.weight"


def test_unmatched_parts_of_names_are_kept():
    assert TABLE.canonical("x.3.head.map.weight") == "y.3.own.head.map.weight"
    assert TABLE.original("y.3.own.head.map.weight") == "x.3.head.map.weight"


@pytest.mark.parametrize(
    "name",
    ["transformer.h.01.q.weight", "transformer.h.q.weight", "transformer_h.1.q.weight", "transformer.h.1.q.weight.more", "x.1."],
)
def test_names_without_a_row_give_none(name: str):
    assert TABLE.canonical(name) is None


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@given(layer=st.integers(0, 10_000), rest=st.from_regex(r"[a-z_]+(\.[a-z_]+){0,3}", fullmatch=True))
def test_every_row_of_every_family_has_its_inverse(family, layer: int, rest: str):
    for own, canonical in family.names.items():
        name = own.format(i=layer, rest=rest)
        assert family.table.canonical(name) == canonical.format(i=layer, rest=rest)
        assert family.table.original(family.table.canonical(name)) == name
