"""A verdict needs the agreement of every seed."""

from __future__ import annotations

import pytest

from evidence.kept import Run
from evidence.verdict import (
    Place,
    RunFigures,
    Verdict,
    above,
    at_least,
    at_most,
    below,
    beyond,
    judge_claim,
    judge_expectation,
    judge_seeds,
    near,
)

LEFT, RIGHT = Place("a/one", "score"), Place("a/other", "score")


def make_figures(first: list[float], second: list[float]) -> RunFigures:
    """Return figures of two variants, by seed from 0."""
    runs = []
    for variant, values in (("one", first), ("other", second)):
        for seed, value in enumerate(values):
            facts = {"identity": "", "values": {}, "teacher_perplexity": None, "seconds": 0.0, "versions": {}}
            runs.append(Run(experiment="a", variant=variant, seed=seed, figures={"score": value}, **facts))
    return RunFigures(runs)


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
def test_a_claim_needs_the_agreement_of_every_seed(first: list[float], expected: Verdict) -> None:
    assert judge_claim([above("", LEFT, RIGHT)], make_figures(first, [0.5, 0.5, 0.5])) == expected


def test_one_failed_expectation_decides_the_verdict() -> None:
    figures = make_figures([0.9, 0.9, 0.9], [0.5, 0.5, 0.5])
    open_, holds, fails = near("", LEFT, RIGHT, 0.8), above("", LEFT, RIGHT), below("", LEFT, RIGHT)
    assert [judge_expectation(expectation, figures) for expectation in (open_, holds, fails)] == ["holds", "holds", "fails"]
    assert judge_claim([holds, open_], figures) == "reproduced"
    assert judge_claim([holds, fails], figures) == "not reproduced"


def test_expectations_beyond_the_paper_do_not_count() -> None:
    figures = make_figures([0.9, 0.9, 0.9], [0.5, 0.5, 0.5])
    assert judge_claim([above("", LEFT, RIGHT), beyond(below("", LEFT, RIGHT))], figures) == "reproduced"


def test_figures_of_the_teacher_need_only_one_seed() -> None:
    teacher, own = Place("teacher/softmax", "score"), Place("teacher/window", "score")
    facts = {"identity": "", "values": {}, "teacher_perplexity": None, "seconds": 0.0, "versions": {}}
    runs = [Run(experiment="teacher", variant=name, seed=0, figures={"score": 1.0}, **facts) for name in ("softmax", "window")]
    assert judge_claim([near("", teacher, own, 0.1)], RunFigures(runs)) == "reproduced"
    assert judge_claim([near("", teacher, own, 0.1)], RunFigures(runs[:1])) == "runs are missing"
    assert (
        judge_claim([near("", teacher, Place("students/lawcat-rope-rope", "score"), 0.1)], RunFigures(runs)) == "runs are missing"
    )


def test_bounds_hold_fail_or_are_open_by_their_seeds() -> None:
    figures = make_figures([0.9, 1.0, 0.95], [0.9, 0.9, 0.9])
    assert judge_expectation(at_least("", LEFT, 0.9), figures) == "holds"
    assert judge_expectation(at_least("", LEFT, 0.95), figures) == "open"
    assert judge_expectation(at_most("", LEFT, 1.0), figures) == "holds"
    assert judge_expectation(at_most("", LEFT, 0.8), figures) == "fails"
    assert judge_expectation(near("", LEFT, RIGHT, 0.12), figures) == "holds"
    assert judge_expectation(near("", LEFT, RIGHT, 0.08), figures) == "open"
    assert judge_expectation(above("", LEFT, RIGHT, 1.2), figures) == "fails"


def test_a_single_seed_is_compared_with_every_other_seed() -> None:
    assert judge_seeds(above("", LEFT, RIGHT), make_figures([0.9, 0.1, 0.9], [0.5])) == {0: True, 1: False, 2: True}
    assert judge_seeds(above("", RIGHT, LEFT), make_figures([0.9, 0.1, 0.9], [0.5])) == {0: False, 1: True, 2: False}
