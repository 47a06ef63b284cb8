"""The few cases that run in place of a product have every pair of choices, and every part."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import pytest

from tests import mutants
from tests.composer.model.models import CAUSAL
from tests.covers import cover, covering_specs, in_turns, parts_of, some
from tests.laws.cases import covering, every_head, every_part
from tests.shipped import COVERING, SHIPPED


def chosen(cases: list[Any]) -> list[Any]:
    return [case for case in cases if not hasattr(case, "marks")]


def test_a_cover_has_everything_in_few_cases() -> None:
    cases = {case: set(combinations(enumerate(case), 2)) for case in product("abcd", range(4), (True, False))}
    few = cover(cases)
    assert set().union(*(cases[case] for case in few)) == set().union(*cases.values())
    assert len(few) < len(cases) * 0.75
    assert cover(cases, {((0, "a"), (1, 0))}) == [("a", 0, True)]


def test_products_of_three_marks_run_for_each_pair(request: pytest.FixtureRequest) -> None:
    cases = [item for item in request.session.items if item.name.startswith("test_a_product_of_small_numbers")]
    pairs = {pair for item in cases for pair in combinations(item.name.partition("[")[2].rstrip("]").split("-"), 2)}
    assert len(pairs) == 3 * 16
    assert len(cases) < 32 or request.config.getoption("full")


@pytest.mark.parametrize("third", ["i", "j", "k", "l"])
@pytest.mark.parametrize("second", ["e", "f", "g", "h"])
@pytest.mark.parametrize("first", ["a", "b", "c", "d"])
def test_a_product_of_small_numbers(first: str, second: str, third: str) -> None:
    assert first < second < third


def test_each_name_has_one_choice_in_turn() -> None:
    cases = in_turns("abc", [1, 2])
    assert chosen(cases) == [("a", 1), ("b", 2), ("c", 1)]
    assert chosen(in_turns("abc", [1, 2], "b")) == [("b", 2)]
    assert len(cases) == 6
    assert [case.values for case in some("ab", "a") if case != "a"] == [("b",)]


def test_few_heads_have_every_part_and_every_pair_of_parts() -> None:
    heads = every_head()
    assert covering() >= every_part().keys()
    assert parts_of(heads[name] for name in covering()) == parts_of(heads.values())
    assert 30 < len(COVERING) < len(SHIPPED) / 2
    assert len(covering_specs(CAUSAL)) < len(covering_specs(CAUSAL, pairs=True)) < len(CAUSAL)


def test_faults_name_texts_and_tests_that_exist() -> None:
    faults = mutants.list_faults([])
    mutants.check(faults)
    assert len(faults) >= 40
    assert all("graph/" in fault.file for fault in mutants.list_faults(["graph/"]))
    with pytest.raises(SystemExit, match="occurs 0 times; expected 1"):
        mutants.check([faults[0]._replace(before="a text that is nowhere")])
