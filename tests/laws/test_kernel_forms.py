"""Every form on a kernel of fla or of this project equals the definition: outputs and gradients, in calls that begin with a
state, with shared keys, odd lengths, single tokens, several documents, and rows that end early. The forms are found in every
head of the catalogue and of the shipped specs, so a new form is tested as soon as it is registered.
"""

from __future__ import annotations

from functools import cache

import pytest

import tests.interpreter  # noqa: F401  which skips where Triton compiles
from blocks.catalogue import CATALOGUE
from composer.graph.composition import HeadSpec
from composer.laws.kernel_forms import CallPlace, KernelForm, assert_is_definition, cases_of, list_forms_in, runs_of
from tests.covers import some
from tests.laws.cases import complete, every_head


@cache
def heads() -> tuple[HeadSpec, ...]:
    """Return the heads, including mixers before a memory without a kernel, so that only the mixer rounds."""
    exact = {"kind": "first", "size": 12, "evict": "drop"}
    mixed = ({"memory": [exact], "mix_input": {"kind": kind, "feeds": "qk"}} for kind in CATALOGUE["mix input"])
    return *dict.fromkeys(every_head().values()), *(complete(head) for head in mixed)


@cache
def runs() -> dict[KernelForm, dict[CallPlace, HeadSpec]]:
    return runs_of(heads())


CASES = cases_of(runs())


def test_every_kernel_form_is_tested() -> None:
    assert list_forms_in(heads()) == set(runs())
    assert len(runs()) >= 20


FEW = {name for place, name in enumerate(CASES) if name.startswith("documents") or place % 2}


@pytest.mark.parametrize("case", some(CASES, FEW))
def test_the_kernel_matches_the_definition(case: str) -> None:
    form, tokens, place = CASES[case]
    assert_is_definition(runs()[form][place], form, tokens, place)
