"""A verdict needs the agreement of every seed."""

from __future__ import annotations

import pytest

from evidence.kept import Run
from evidence.verdict import Kept, Place, Verdict, above, at_least, at_most, below, beyond, near, seeds_of, state, verdict

ONE, OTHER = Place("a/one", "score"), Place("a/other", "score")


def kept(first: list[float], other: list[float]) -> Kept:
    """Return figures of two variants, by seed from 0."""
    runs = []
    for variant, values in (("one", first), ("other", other)):
        for seed, value in enumerate(values):
            facts = {"identity": "", "values": {}, "teacher_perplexity": None, "seconds": 0.0, "versions": {}}
            runs.append(Run(experiment="a", variant=variant, seed=seed, figures={"score": value}, **facts))
    return Kept(runs)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ([0.9, 0.8, 0.7], "reproduced"),
        ([0.1, 0.2, 0.3], "not reproduced"),
        ([0.9, 0.2, 0.9], "not at this scale"),
        ([0.9, 0.5, 0.9], "not at this scale"),
        ([0.5, 0.5, 0.5], "not at this scale"),
        ([0.9, 0.9], "runs are missing"),
        ([], "runs are missing"),
    ],
)
def test_above(first: list[float], expected: Verdict) -> None:
    assert verdict([above("", ONE, OTHER)], kept(first, [0.5, 0.5, 0.5])) == expected


def test_one_expectation_that_fails_decides() -> None:
    kept_runs = kept([0.9, 0.9, 0.9], [0.5, 0.5, 0.5])
    open_, holds, fails = near("", ONE, OTHER, 0.8), above("", ONE, OTHER), below("", ONE, OTHER)
    assert [state(expectation, kept_runs) for expectation in (open_, holds, fails)] == ["holds", "holds", "fails"]
    assert verdict([holds, open_], kept_runs) == "reproduced"
    assert verdict([holds, fails], kept_runs) == "not reproduced"


def test_what_goes_beyond_the_paper_does_not_count() -> None:
    kept_runs = kept([0.9, 0.9, 0.9], [0.5, 0.5, 0.5])
    assert verdict([above("", ONE, OTHER), beyond(below("", ONE, OTHER))], kept_runs) == "reproduced"


def test_a_figure_that_nothing_is_drawn_for_needs_one_seed() -> None:
    teacher, own = Place("teacher/softmax", "score"), Place("teacher/window", "score")
    facts = {"identity": "", "values": {}, "teacher_perplexity": None, "seconds": 0.0, "versions": {}}
    runs = [Run(experiment="teacher", variant=name, seed=0, figures={"score": 1.0}, **facts) for name in ("softmax", "window")]
    assert verdict([near("", teacher, own, 0.1)], Kept(runs)) == "reproduced"
    assert verdict([near("", teacher, own, 0.1)], Kept(runs[:1])) == "runs are missing"
    assert verdict([near("", teacher, Place("students/lawcat-rope-rope", "score"), 0.1)], Kept(runs)) == "runs are missing"


def test_bounds() -> None:
    kept_runs = kept([0.9, 1.0, 0.95], [0.9, 0.9, 0.9])
    assert state(at_least("", ONE, 0.9), kept_runs) == "holds"
    assert state(at_least("", ONE, 0.95), kept_runs) == "open"
    assert state(at_most("", ONE, 1.0), kept_runs) == "holds"
    assert state(at_most("", ONE, 0.8), kept_runs) == "fails"
    assert state(near("", ONE, OTHER, 0.12), kept_runs) == "holds"
    assert state(near("", ONE, OTHER, 0.08), kept_runs) == "open"
    assert state(above("", ONE, OTHER, 1.2), kept_runs) == "fails"


def test_what_has_one_seed_stands_beside_each() -> None:
    assert seeds_of(above("", ONE, OTHER), kept([0.9, 0.1, 0.9], [0.5])) == {0: True, 1: False, 2: True}
    assert seeds_of(above("", OTHER, ONE), kept([0.9, 0.1, 0.9], [0.5])) == {0: False, 1: True, 2: False}
