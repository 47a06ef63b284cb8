"""Claims refer to existing runs and columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from composer.ablation.plan import read_variants
from composer.ablation.report import TITLES, Column
from composer.evaluation.arguments import read_tasks
from composer.evaluation.options import EvaluationOptions
from evidence import collapse, listops, selecting, speed
from evidence.ablations import ABLATIONS
from evidence.claims import CLAIMS
from evidence.claims.claim import Claim
from evidence.experiments import EXPERIMENTS, SCORING, Experiment
from evidence.kept import read_runs
from evidence.page import FIGURES, OWN_STUDENTS, PAGE, PAPER_STUDENTS, format_figures, format_page
from evidence.running import find_missing_runs
from evidence.verdict import Place, RunFigures, judge_claim

EVERY = [claim for claims in CLAIMS.values() for claim in claims]
RUNS = RunFigures(read_runs())


def columns(experiment: Experiment) -> set[str]:
    """Return the titles that an experiment's report can have."""
    request = experiment.request
    tasks = read_tasks(request.tasks, EvaluationOptions(samples=request.samples)) if request.tasks else ()
    scores = {
        Column(kind="perplexity" if task.task.scored == "loss" else "score", task=task.label, length=length).title
        for task in tasks
        for length in request.lengths
    }
    return scores | (set(TITLES.values()) if request.data and request.share else set())


def variants(experiment: Experiment) -> set[str]:
    return {variant.name for variant in read_variants(experiment.specs, experiment.overrides)}


KNOWN = {name: (variants(ablation), columns(ablation)) for name, ablation in ABLATIONS.items()}
SETTING = selecting.SETTING
CHOICES = replace(EXPERIMENTS["students"], request=replace(SCORING, tasks=SETTING.tasks, lengths=SETTING.lengths))
KNOWN[selecting.NAME] = (set(SETTING.choice_names), {selecting.BEFORE, selecting.BEATEN, selecting.STATE})
KNOWN[selecting.TRAINED] = (set(SETTING.choice_names), columns(CHOICES))
KNOWN[collapse.NAME] = (set(collapse.MODELS), set(collapse.TITLES))
KNOWN[listops.NAME] = ({*listops.read_encoders(), listops.MAJORITY}, {listops.ACCURACY})
KNOWN[speed.NAME] = ({speed.FIRST, *speed.STUDENTS}, speed.column_titles())


def places(claim: Claim) -> Iterator[Place]:
    for run in claim.rows.values():
        for column in claim.columns:
            yield Place(run, column)
    for expectation in claim.expectations:
        yield expectation.left
        if isinstance(expectation.right, Place):
            yield expectation.right


@pytest.mark.parametrize("claim", EVERY, ids=lambda claim: claim.title)
def test_claims_refer_to_existing_variants_and_columns(claim: Claim) -> None:
    for place in places(claim):
        experiment, _, variant = place.run.partition("/")
        names, titles = KNOWN[experiment]
        assert variant in names, place
        assert set(place.columns) <= titles, place


@pytest.mark.parametrize("claim", EVERY, ids=lambda claim: claim.title)
def test_expectations_refer_to_rows_and_columns_of_their_table(claim: Claim) -> None:
    assert claim.expectations
    for expectation in claim.expectations:
        for place in (expectation.left, expectation.right):
            if isinstance(place, Place):
                assert place.run in claim.rows.values(), expectation.text
                assert set(place.columns) <= set(claim.columns), expectation.text


@pytest.mark.parametrize("claim", EVERY, ids=lambda claim: claim.title)
def test_claims_that_are_not_reproduced_have_a_remark(claim: Claim) -> None:
    """The claim may also state that nothing else was tried."""
    if judge_claim(claim.expectations, RUNS) in ("not reproduced", "not at this scale"):
        assert "What differs" in claim.remark
        assert "tried" in claim.remark.lower()


def test_the_last_table_refers_to_existing_variants() -> None:
    for run in (PAPER_STUDENTS | OWN_STUDENTS).values():
        experiment, _, variant = run.partition("/")
        assert variant in KNOWN[experiment][0], run


def test_kept_runs_have_the_settings_of_their_experiments(tmp_path: Path) -> None:
    """Kept runs must have the spec, recipe, task and teacher of the page."""
    runs = [run for run in read_runs() if run.experiment != speed.NAME]
    for name, experiment in ABLATIONS.items():
        own = {(run.variant, run.seed): run for run in runs if run.experiment == name}
        stale = set(own) & set(find_missing_runs(experiment))
        assert not stale, f"{name}: {stale}"
        assert {variant for variant, _ in own} <= KNOWN[name][0]
        assert all(set(run.figures) <= columns(experiment) for run in own.values())
    choices = [run for run in read_runs() if run.experiment == selecting.NAME]
    assert all(run.identity == selecting.compute_identity(SETTING, run.seed) for run in choices)
    for seed in {run.seed for run in runs if run.experiment == selecting.TRAINED}:
        missing = find_missing_runs(selecting.build_experiment(SETTING, seed, tmp_path))
        assert not {(run.variant, seed) for run in runs if (run.experiment, run.seed) == (selecting.TRAINED, seed)} & set(missing)
    looks = [run for run in read_runs() if run.experiment == collapse.NAME]
    assert all(run.identity == collapse.compute_identity(collapse.MODELS[run.variant], run.seed) for run in looks)
    trees = [run for run in read_runs() if run.experiment == listops.NAME]
    assert all(run.identity == listops.compute_identity(listops.SETTING, run.variant, run.seed) for run in trees)
    benches = [run for run in read_runs() if run.experiment == speed.NAME]
    assert all(run.identity == speed.compute_identity(run.seed) for run in benches)
    assert runs
    assert benches


def test_the_pages_match_the_kept_runs() -> None:
    runs = read_runs()
    stale = [page for page, text in ((PAGE, format_page(runs)), (FIGURES, format_figures(runs))) if page.read_text() != text]
    assert not stale, "these pages are not of the runs that are kept: `python -m evidence --page` writes them anew"
