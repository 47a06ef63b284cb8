"""The recommendations of the page of choosing follow from the figures by the stated rule alone."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from evidence import choosing
from evidence.choosing import Candidate, choose_by_state, column_title, find_candidates, recommend
from evidence.claims import ours
from evidence.experiments import LENGTHS
from evidence.kept import Run, read_runs
from evidence.second import HARDER

KDA, DELTA = "alternating-kda", "alternating-delta"
SCORES = {
    f"students/{KDA}": 0.3,
    f"students/{DELTA}": 0.75,
    "students/lawcat": 0.9,
    "students/macchiato-full": 0.2,
    "students/lolcats": 0.94,
}
"""Not in the order of their states, which is that of the first two (who have the same), LAWCAT, Macchiato and LoLCATs."""

MISSING = ["gated-delta", "alternating-lawcat", "lawcat-delta", "divided", "cached", "lola"]
"""What else there is to choose from."""


def runs_of(scores: Mapping[str, float], seeds: tuple[int, ...] = (0, 1, 2), **own: float) -> list[Run]:
    """Return runs whose figures are the run's score plus 0.01 per seed, and 2 minus the score for perplexities. own: scores of
    single tasks.
    """
    runs = []
    for run, score in scores.items():
        experiment, _, variant = run.partition("/")
        for seed in seeds:
            figures = {
                column_title(task, length): 2 - score if by_loss else own.get(task, score) + 0.01 * seed
                for task, by_loss in (choosing.list_tasks() | dict.fromkeys(HARDER, False)).items()
                for length in LENGTHS
            }
            kept = {"experiment": experiment, "variant": variant, "seed": seed, "identity": "", "values": {}, "figures": figures}
            runs.append(Run.model_validate(kept | {"teacher_perplexity": None, "seconds": 120.0, "versions": {}}))
    return runs


def by_name(candidates: list[Candidate]) -> dict[str, Candidate]:
    return {candidate.name: candidate for candidate in candidates}


def test_candidates_have_the_states_of_explain_and_the_scores_of_their_runs() -> None:
    candidates, missing = find_candidates(runs_of(SCORES))
    assert missing == MISSING
    assert [candidate.max_state for candidate in candidates] == sorted(candidate.max_state for candidate in candidates)
    states = {name: candidate.max_state for name, candidate in by_name(candidates).items()}
    assert set(states) == {run.partition("/")[2] for run in SCORES}
    assert states["lawcat"] < states["lolcats"]  # which has the same features, and a window above them
    for candidate in candidates:
        assert candidate.costs[LENGTHS[-1]].sequence == LENGTHS[-1]
        assert candidate.score() == pytest.approx(SCORES[candidate.run] + 0.01)
        assert candidate.spread == pytest.approx(0.01)


def test_recommendations_follow_from_states_and_scores() -> None:
    candidates = by_name(find_candidates(runs_of(SCORES))[0])
    three = {recommendation.title: recommendation.candidate for recommendation in recommend(list(candidates.values()))}
    assert (
        candidates[KDA].max_state == candidates[DELTA].max_state < candidates["lawcat"].max_state < candidates["lolcats"].max_state
    )
    assert 0.75 * 0.95 < candidates[DELTA].score() < 0.95 * 0.95 < candidates["lawcat"].score() < candidates["lolcats"].score()
    assert {name: candidate.name for name, candidate in three.items()} == {
        "smallest": DELTA,
        "balanced": "lawcat",
        "best": "lolcats",
    }
    # With other figures, other specs.
    other = find_candidates(runs_of({**SCORES, f"students/{KDA}": 0.95}))[0]
    assert {recommendation.candidate.name for recommendation in recommend(other)} == {KDA}
    assert recommend([]) == ()


def test_the_smallest_state_is_best_among_equal_scores() -> None:
    candidates = find_candidates(runs_of(dict.fromkeys(SCORES, 0.5)))[0]
    assert {recommendation.candidate.name for recommendation in recommend(candidates)} == {candidates[0].name}


def test_larger_states_are_chosen_only_for_better_figures() -> None:
    candidates = find_candidates(runs_of(SCORES))[0]
    for task, by_loss in choosing.list_tasks().items():
        choices = choose_by_state(candidates, task, LENGTHS[0])
        states = [candidate.state(LENGTHS[0]) for candidate in choices]
        assert states == sorted(set(states))
        figures = [candidate.scores[task][LENGTHS[0]] for candidate in choices]
        assert figures == sorted(figures, reverse=by_loss)
        assert [candidate.name for candidate in choices] == [DELTA, "lawcat", "lolcats"]
        assert choices[0].state(LENGTHS[0]) == min(candidate.state(LENGTHS[0]) for candidate in candidates)
    nearly = find_candidates(runs_of({run: 0.5 + index / 1000 for index, run in enumerate(SCORES)}))[0]
    assert len(choose_by_state(nearly, "recall", 256)) == 1  # none is a hundredth better


def test_runs_without_a_seed_or_a_figure_are_no_candidates() -> None:
    two = runs_of({"students/lawcat": 0.9}, seeds=(0, 1))
    assert find_candidates(two)[0] == []
    whole = runs_of({"students/lawcat": 0.9})
    del whole[1].figures["recall 2,048"]
    assert find_candidates(whole)[0] == []


def test_mixed_and_pure_students_have_the_states_of_their_claim() -> None:
    """Their bytes are equal within a twentieth."""
    (claim,) = [claim for claim in ours.CLAIMS if claim.rows == ours.EQUAL_STATE]
    candidates, _ = find_candidates([run for run in read_runs() if f"{run.experiment}/{run.variant}" in ours.EQUAL_STATE.values()])
    states = {candidate.run: candidate.max_state for candidate in candidates}
    mixed, pure, *others = (states[run] for run in ours.EQUAL_STATE.values())
    for first, other in ((mixed, pure), others):
        assert first == pytest.approx(other, rel=0.05)
    assert [f"{state / 1024:.1f}" for state in (mixed, pure, *others)] == re.findall(r"\d+\.\d", claim.statement)
