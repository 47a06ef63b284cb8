"""Layers are chosen once per seed, every choice has an equal state, and the chosen layers are trained."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
import torch
import yaml

from composer.ablation.runner import one_process
from composer.errors import ComposerError
from evidence.experiments import TEACHER
from evidence.kept import path_of, read_run, read_runs
from evidence.running import find_missing_runs
from evidence.selecting import (
    BEATEN,
    BEFORE,
    CHANCE,
    NAME,
    SCORES,
    STATE,
    TRAINED,
    Setting,
    build_experiment,
    read_choices,
    run_all,
)
from tests.evidence.sizes import SMALL

QUICK = (
    "recipe={sequence: 32, rows: whole}",
    "recipe.transfer={lr: 1e-2, steps: 2, batch: 2, epochs: null, tokens: null}",
    "recipe.finetune={lr: 1e-3, steps: 1, epochs: null, batch: 1, lora: {rank: 1, alpha: 1, targets: [q]}}",
)


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """A teacher of four small layers with random weights."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("teachers") / "four"
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=507, num_hidden_layers=4, max_position_embeddings=64, initializer_range=0.3, **SMALL)
    LlamaForCausalLM(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(TEACHER).save_pretrained(folder)
    return Setting(
        layers=4,
        source=str(folder),
        data=("stories,samples=40",),
        share=0.1,
        rows=2,
        recipe=QUICK,
        tasks=("recall,pairs=2",),
        lengths=(32,),
        samples=2,
        seeds=(0,),
    )


@pytest.fixture(scope="module")
def finished_runs(setting: Setting, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs, to copy before a change."""
    runs_folder = tmp_path_factory.mktemp("runs")
    assert run_all(tmp_path_factory.mktemp("work"), one_process, lambda line: None, runs_folder=runs_folder, setting=setting) == []
    return runs_folder


def test_every_choice_is_kept_and_has_an_equal_state(setting: Setting, finished_runs: Path) -> None:
    runs = {run.variant: run for run in read_runs(finished_runs) if run.experiment == NAME}
    assert set(runs) == {*SCORES, *CHANCE, "every-2", "none"}
    layers = {name: tuple(run.values["keep"]) for name, run in runs.items()}
    assert layers["every-2"] == (1, 3)
    assert layers["none"] == ()
    assert layers["chance-1"] != layers["chance-2"]
    names = {name for name in runs if name != "none"}
    assert all(layers[name] in set(combinations(range(4), 2)) for name in names)
    assert len({runs[name].figures[STATE] for name in names}) == 1
    assert runs["none"].figures[STATE] != runs["restored"].figures[STATE]


def test_a_choice_is_compared_with_all_choices(finished_runs: Path) -> None:
    runs = {run.variant: run for run in read_runs(finished_runs) if run.experiment == NAME}
    for name, run in runs.items():
        assert run.values["best of all"] <= run.values["mean of all"]
        if name != "none":
            assert run.figures[BEFORE] >= run.values["best of all"]
            assert run.figures[BEATEN] * 6 == pytest.approx(round(run.figures[BEATEN] * 6))
            assert (run.figures[BEATEN] == 5 / 6) == (run.figures[BEFORE] == run.values["best of all"])
    by_figure = sorted((run.figures[BEFORE], -run.figures[BEATEN]) for name, run in runs.items() if name != "none")
    assert [beaten for _, beaten in by_figure] == sorted(beaten for _, beaten in by_figure)
    assert BEATEN not in runs["none"].figures


def test_the_chosen_layers_are_trained(setting: Setting, finished_runs: Path, tmp_path: Path) -> None:
    experiment = build_experiment(setting, 0, tmp_path, finished_runs)
    layers = read_choices(setting, 0, finished_runs)
    assert layers is not None
    for spec in experiment.specs:
        document = yaml.safe_load(Path(spec).read_text(encoding="utf-8"))
        kept = [layer for rule in document.get("layers", ()) if rule["use"] == "source" for layer in rule["at"]]
        assert tuple(kept) == layers[document["name"]]
    runs = {run.variant: run for run in read_runs(finished_runs) if run.experiment == TRAINED}
    assert set(runs) == set(layers)
    assert all(set(run.figures) == {"recall,pairs=2 32"} for run in runs.values())
    assert find_missing_runs(experiment, finished_runs) == {}


def test_kept_runs_are_not_repeated(setting: Setting, finished_runs: Path, tmp_path: Path) -> None:
    messages: list[str] = []
    assert run_all(tmp_path / "work", one_process, messages.append, runs_folder=finished_runs, setting=setting) == []
    assert messages == [f"{TRAINED}: 0 runs to do"]
    assert not (tmp_path / "work" / NAME).exists()


def test_choices_of_other_settings_count_as_missing(setting: Setting, finished_runs: Path, tmp_path: Path) -> None:
    runs_folder = tmp_path / "runs"
    shutil.copytree(finished_runs, runs_folder)
    other = replace(setting, recipe=(*QUICK, "recipe.transfer.lr=2e-2"))
    assert read_choices(other, 0, runs_folder) is None
    with pytest.raises(ComposerError, match="no layers are chosen with seed 0"):
        build_experiment(other, 0, tmp_path, runs_folder)
    path_of(NAME, "every-2", 0, runs_folder).unlink()
    assert read_choices(setting, 0, runs_folder) is None
    assert read_run(path_of(NAME, "restored", 0, runs_folder)) is not None
