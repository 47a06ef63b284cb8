"""Every form on a kernel, fla's or this project's own, is the definition: outputs and gradients, in calls that begin with a state,
with heads that share keys, of odd lengths, of single tokens, of several documents, and of rows that end early.

The forms are looked for in every head of the catalogue and of the shipped specs: a new one is held to this as it is registered.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from itertools import product
from typing import NamedTuple

import pytest

from blocks.catalogue import CATALOGUE
from blocks.operation import FLA, TRITON, Setting
from composer.graph.composition import HeadSpec
from composer.graph.graph import build_graph
from composer.graph.lowering import lower
from composer.graph.matching import matches
from tests.laws.cases import SMALL, complete, every_head, steady
from tests.laws.kernels import CANCELLED, assert_on_kernels, packed, padded, plain

SHAPE = SMALL.shape(2)
KERNELS = (FLA, TRITON)


class Found(NamedTuple):
    """A form: its backend, what it computes, and what it says of itself."""

    backend: str
    computes: str
    says: str


@cache
def heads() -> tuple[HeadSpec, ...]:
    """Also what is mixed in front of a memory that has no kernel, so that none but the mixer's rounds."""
    exact = {"kind": "first", "size": 12, "evict": "drop"}
    mixed = ({"memory": [exact], "mix_input": {"kind": kind, "feeds": "qk"}} for kind in CATALOGUE["mix input"])
    return *dict.fromkeys(every_head().values()), *(complete(head) for head in mixed)


@cache
def runs() -> dict[Found, dict[tuple[bool, bool, bool], HeadSpec]]:
    """Of each form that runs somewhere, where it does (documents, one token, gradients), and a head there that has as little else
    as may be: no other kernel, if there is such a head, and few steps."""
    least: dict[Found, dict[tuple[bool, bool, bool], tuple[int, int, HeadSpec]]] = defaultdict(dict)
    settings = [(documents, *call) for documents in (False, True) for call in ((False, False), (False, True), (True, False))]
    for spec, backend, there in product(heads(), KERNELS, settings):
        documents, one_token, gradients = there
        setting = Setting(documents=documents, one_token=one_token, gradients=gradients)
        steps = lower(build_graph(spec, SHAPE), backend, setting).steps
        on_kernels = [step for step in steps if step.form.backend == backend]
        for step in on_kernels:
            form = Found(backend, ", ".join(one.node.kind for one in step.covers), step.form.says)
            else_there = len(on_kernels), len(steps)
            if there not in least[form] or least[form][there][:2] > else_there:
                least[form][there] = *else_there, spec
    return {form: {there: spec for there, (_, _, spec) in found.items()} for form, found in least.items()}


def registered() -> set[Found]:
    """The forms that parts and patterns have."""
    every = set[Found]()
    for spec in heads():
        graph = build_graph(spec, SHAPE)
        forms = [(node.kind, form) for node in graph.parts for form in node.operation.forms]
        for pattern, found in matches(graph):
            computes = ", ".join(graph.nodes[name].kind for name in found.values())
            forms += [(computes, form) for form in pattern.forms({own: graph.nodes[name].part for own, name in found.items()})]
        every |= {Found(form.backend, computes, form.says) for computes, form in forms if form.backend in KERNELS}
    return every


def cases() -> dict[str, tuple[Found, str, tuple[bool, bool, bool]]]:
    """What is asked of each form: with gradients where it has them, of one token where it is for one alone."""
    asked = {}
    for form, found in sorted(runs().items()):
        for tokens, documents in (("calls", False), ("documents", True), ("padding", False)):
            there = [one for one in found if one[0] is documents]
            if there:
                name = f"{tokens}, {form.computes}: {form.says}"
                asked[name] = form, tokens, max(there, key=lambda one: (not one[1], one[2]))
    return asked


CASES = cases()
TOKENS = {"calls": plain, "documents": packed, "padding": padded}
"""A text in several calls, the second of which begins with a state; several documents a row; a row that ends early, in one call."""


def test_no_form_is_left_out() -> None:
    assert registered() == set(runs())
    assert len(runs()) >= 20


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_definition(case: str) -> None:
    form, tokens, there = CASES[case]
    _, one_token, gradients = there
    split = (17, 18, 19, 20) if one_token else () if tokens == "padding" else (9, 20)
    assert_on_kernels(
        steady(runs()[form][there]), SHAPE, form.backend, TOKENS[tokens](), split=split, gradients=gradients, cancelled=CANCELLED
    )
