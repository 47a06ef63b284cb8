"""The number of used latents equals a count by hand, also in inspected models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import composer
from composer.ablation.runner import one_process
from evidence.collapse import (
    LARGEST,
    LEAST,
    NAME,
    TITLES,
    USED,
    USED_BY_TOKEN,
    WINDOW,
    Inspection,
    compute_identity,
    inspect_model,
    measure_usage,
    run_missing,
)
from evidence.experiments import LATTE, TEACHER
from evidence.kept import read_runs

QUICK = ("recipe.train.steps=1", "recipe.train.batch=1", "recipe.train.warmup=0", "recipe.sequence=32")


def test_usage_equals_values_computed_by_hand() -> None:
    alike = np.full((6, 4), 0.1)
    assert measure_usage(alike) == pytest.approx((1.0, 0.25, 1.0, 0.6))
    shares = np.zeros((6, 4))
    shares[:, 2] = 0.5
    assert measure_usage(shares) == pytest.approx((0.25, 1.0, 0.25, 0.5))
    in_turn = np.eye(4)  # every token asks one latent, another each
    assert measure_usage(in_turn) == pytest.approx((1.0, 0.25, 0.25, 0.0))
    # A token that gives the window all but a little says little about latents.
    assert measure_usage(np.array([[0.99, 0.0], [0.0, 0.01]]))[1] == pytest.approx(0.99)


def macchiato(folder: Path) -> Path:
    sizes = ["head.memory.0.size=8", "head.memory.1.size=16", "head.mix_input.blocks=4"]
    composer.build_folder("latte-macchiato", TEACHER, folder, overrides=sizes)
    return folder


def test_models_are_inspected_by_layer_and_head(tmp_path: Path) -> None:
    """The queries of latents are equal first, and then as in a fresh student."""
    model = composer.load(macchiato(tmp_path / "student"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("latents.query"):
                parameter.zero_()
    model.save_pretrained(tmp_path / "alike")
    AutoTokenizer.from_pretrained(TEACHER).save_pretrained(tmp_path / "alike")
    inspection = Inspection(LATTE, "latte-rglru-swa-pp", ("recall,pairs=4",), texts=2, length=64)
    figures, heads = inspect_model(tmp_path / "alike", inspection)
    assert set(figures) == set(TITLES)
    assert set(heads) == {f"{layer}.{head}" for layer in range(2) for head in range(4)}
    assert [figures[title] for title in (USED, LEAST, LARGEST, USED_BY_TOKEN)] == pytest.approx([1.0, 1.0, 0.25, 1.0], abs=1e-6)
    assert 0 < figures[WINDOW] < 1
    calls, _ = inspect_model(tmp_path / "student", inspection)
    assert calls[USED_BY_TOKEN] < calls[USED] < 1


def test_missing_inspections_are_run_once_and_kept(tmp_path: Path) -> None:
    request = replace(LATTE.request, data=("stories,samples=4",), tasks=(), lengths=(), samples=1, seeds=(0,))
    experiment = replace(LATTE, specs=LATTE.specs[:1], request=request, overrides=QUICK)
    inspection = Inspection(experiment, "latte-rglru-swa-pp", ("stories",), texts=1, length=32)
    messages: list[str] = []
    run_missing(tmp_path / "work", one_process, messages.append, runs_folder=tmp_path / "runs", models={"tiny": inspection})
    (run,) = read_runs(tmp_path / "runs")
    assert (run.experiment, run.variant, run.seed, run.identity) == (NAME, "tiny", 0, compute_identity(inspection, 0))
    assert set(run.figures) == set(TITLES)
    run_missing(tmp_path / "elsewhere", one_process, messages.append, runs_folder=tmp_path / "runs", models={"tiny": inspection})
    assert messages[-1] == "collapse: 0 inspections to do"
    assert compute_identity(replace(inspection, texts=2), 0) != run.identity
