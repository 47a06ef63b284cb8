"""The second teacher's experiment runs on a model of Qwen3's shape, with the claims of the first teacher."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from composer.ablation.runner import one_process
from composer.commands.explain import explain
from composer.spec.resolve import resolve
from composer.weights.config import dimensions
from composer.weights.sources import describe_model
from evidence.claims import lawcat, second
from evidence.claims.claim import LAWCAT, LOLCATS
from evidence.experiments import TEACHER
from evidence.kept import read_runs
from evidence.running import find_missing_runs, read_variants, run_missing
from evidence.second import EXPERIMENTS, HARDER, SECOND, SECOND_HYBRIDS, SOURCE
from evidence.verdict import Place
from tests.evidence.sizes import SMALL

pytestmark = pytest.mark.long

QUICK = (
    "recipe={sequence: 128, rows: whole}",
    "recipe.transfer={lr: 1e-2, steps: 1, batch: 1, epochs: null, tokens: null}",
    "recipe.finetune={lr: 1e-3, steps: 1, epochs: null, batch: 1, lora: {rank: 1, alpha: 1, targets: [q, k, v, o]}}",
)


def tiny(folder: Path) -> None:
    """A teacher of Qwen3's shape with random weights."""
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(vocab_size=507, num_hidden_layers=2, **SMALL)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(TEACHER).save_pretrained(folder)


def test_variants_are_trained_and_scored_on_the_harder_tasks(tmp_path: Path) -> None:
    """These are the first and the last variant. `resolve` checks the others below."""
    tiny(tmp_path / "tiny")
    small = {"source": str(tmp_path / "tiny"), "tasks": HARDER, "lengths": (136,), "samples": 1, "seeds": (0,)}
    data = ("multikey,samples=2", "multivalue,samples=2", "two-needles,samples=2", "recall,pairs=60,samples=2")
    specs = (SECOND.specs[0], SECOND.specs[-1])
    experiment = replace(SECOND, specs=specs, request=replace(SECOND.request, data=data, **small), overrides=QUICK)
    assert run_missing(experiment, tmp_path / "work", one_process, lambda line: None, runs_folder=tmp_path / "runs") == []
    runs = read_runs(tmp_path / "runs")
    assert {run.variant for run in runs} == {variant.name for variant in read_variants(specs)}
    assert all(set(run.figures) == {f"{task} 136" for task in HARDER} for run in runs)
    assert find_missing_runs(experiment, tmp_path / "runs") == {}


def test_every_variant_fits_the_second_teacher_and_has_a_claim() -> None:
    places = [run.partition("/") for run in second.SECOND_RUNS.values()]
    claimed = {variant for experiment, _, variant in places if experiment == SECOND.name}
    assert {variant.name for variant in read_variants(SECOND.specs)} == claimed
    trunk = dimensions(describe_model(SOURCE).trunk)
    for experiment in EXPERIMENTS.values():
        for variant in read_variants(experiment.specs, experiment.overrides):
            assert resolve(variant.spec, trunk).dimensions.heads == 6


def test_hybrids_and_windows_have_nearly_equal_state_bytes() -> None:
    states = {
        variant.name: explain(variant.spec, SOURCE, sequence=512).state_bytes for variant in read_variants(SECOND_HYBRIDS.specs)
    }
    first, last, windows = states.values()
    assert first == last == 449_928
    assert windows == 449_768


def test_claims_about_the_second_teacher_repeat_those_about_the_first() -> None:
    repeated = [claim for claim in second.CLAIMS if claim.title.endswith("a second teacher")]
    first = [claim for claim in lawcat.CLAIMS if f"{claim.title}: a second teacher" in {claim.title for claim in repeated}]
    assert len(first) == len(repeated) == 4
    assert {claim.reference for claim in first} >= {"LAWCAT, section 5.2, table 5", "LAWCAT, tables 2 and 3", "LAWCAT, table 6"}
    for before, after in zip(first, repeated, strict=True):
        assert (before.statement, before.columns) == (after.statement, after.columns)
        assert [(expectation.text, expectation.is_beyond_paper) for expectation in before.expectations] == [
            (expectation.text, expectation.is_beyond_paper) for expectation in after.expectations
        ]
        assert all(run.startswith("second") for run in after.rows.values())
    assert repeated[0].expectations[0].left == Place(second.SECOND_RUNS[LAWCAT], "passkey 512")
    assert repeated[0].expectations[0].right == Place(second.SECOND_RUNS[LOLCATS], "passkey 512")


def test_remarks_refer_to_existing_claims_or_tasks() -> None:
    assert second.REMARKS.keys() <= {*HARDER, *(claim.title for claim in lawcat.CLAIMS)}
