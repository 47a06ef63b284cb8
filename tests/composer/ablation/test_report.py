"""A report has means and spreads over seeds, perplexities of losses, and a message for each failure."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure as Picture

from composer.ablation.options import Request
from composer.ablation.pictures import draw_all
from composer.ablation.plan import Chain
from composer.ablation.report import AblationReport, Column, Figure, make_report, table
from composer.ablation.steps import FAILURE, Figures
from composer.reporting.plotting import RESOLUTION
from tests.composer.ablation.variants import SECOND_STAGES, chains_of, write_spec

pytestmark = pytest.mark.drawn

LAYERS = [{"mse": 0.5, "divergence": 0.1}, {"mse": 1.5, "divergence": 0.3}]
CELL = {"task": "recall", "length": 2048, "scored": "tokens", "mean": 0.25}


@pytest.fixture
def chains(ablation_request: Request, tmp_path: Path) -> list[Chain]:
    """Return two variants with two seeds each."""
    spec = write_spec(tmp_path / "s.yaml", vary=SECOND_STAGES)
    return list(chains_of([spec], replace(ablation_request, seeds=(0, 1)), tmp_path).values())


def figures_of(step: Any) -> Figures:
    """Return possible figures of each step."""
    seed = step.seed
    faster = step.variant.name == "tiny-fast"
    figures: dict[str, Figures] = {
        "build": {"spec_hash": "abc"},
        "transfer": {"loss": None, "teacher_loss": None},
        "compare": {"loss": math.log(10 + seed), "teacher_loss": math.log(2), "layers": LAYERS},
        "finetune": {"loss": math.log(4 + 2 * seed + faster), "teacher_loss": math.log(2)},
        "evaluate": {"cells": [CELL, CELL | {"task": "stories", "scored": "loss", "mean": math.log(3)}]},
    }
    return {**figures[step.kind], "seconds": 1.0}


def results_of(chains: list[Chain], **instead: Figures) -> dict[str, Figures]:
    return {step.name: instead.get(f"{step.kind}_{step.seed}", figures_of(step)) for chain in chains for step in chain.steps}


def report_of(chains: list[Chain], **instead: Figures) -> AblationReport:
    request = replace(chains[0].steps[0].request, seeds=(0, 1))
    return make_report(chains, results_of(chains, **instead), request, {"torch": "2"})


def test_reports_contain_means_and_spreads_over_seeds(chains: list[Chain]) -> None:
    report = report_of(chains)
    slow, fast = report.variants
    assert slow.figures["perplexity"].values == pytest.approx({0: 4, 1: 6})
    assert slow.figures["perplexity"].mean == pytest.approx(5)
    assert slow.figures["perplexity"].spread == pytest.approx(math.sqrt(2))
    assert fast.figures["perplexity"].mean == pytest.approx(6)
    assert slow.figures["perplexity before stage 2"].mean == pytest.approx(10.5)
    assert slow.figures["attention MSE"] == Figure(mean=1.0, spread=0.0, values={0: 1.0, 1: 1.0})
    assert slow.figures["attention KL"].mean == pytest.approx(0.2)
    assert slow.figures["recall 2,048"].mean == 0.25
    assert slow.figures["stories 2,048 perplexity"].mean == pytest.approx(3)
    assert slow.teacher_perplexity == pytest.approx(2)
    assert (slow.spec_hash, slow.trained, slow.seconds) == ("abc", ("transfer", "finetune"), 10.0)
    assert not report.failed
    assert AblationReport.model_validate_json(report.model_dump_json()) == report


@given(st.lists(st.floats(0.1, 100), min_size=2, max_size=5))
def test_the_spread_is_a_samples_standard_deviation(numbers: list[float]) -> None:
    from composer.ablation import report

    figure = report._figure(dict(enumerate(numbers)))
    mean = sum(numbers) / len(numbers)
    assert figure.mean == pytest.approx(mean)
    assert figure.spread == pytest.approx(math.sqrt(sum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1)), abs=1e-9)


def test_heads_without_weights_have_no_divergence(chains: list[Chain]) -> None:
    without = {"loss": 1.0, "teacher_loss": 1.0, "layers": [LAYERS[0], {"mse": 1.5, "divergence": None}]}
    report = report_of(chains, compare_0=without)
    assert report.variants[0].figures["attention KL"].values == pytest.approx({1: 0.2})
    assert report.variants[0].figures["attention KL"].spread is None
    none = report_of(chains, compare_0=without, compare_1=without)
    assert "attention KL" not in [column.title for column in none.columns]


def test_failures_are_reported_once(chains: list[Chain]) -> None:
    """A failure's message appears once although later steps did not run. Earlier figures stay."""
    failed = {FAILURE: "layer 1 diverged"}
    report = report_of(chains, finetune_1=failed, evaluate_1=failed)
    slow = report.variants[0]
    assert slow.failures == {1: "layer 1 diverged"}
    assert slow.figures["perplexity"].values == pytest.approx({0: 4})
    assert set(slow.figures["attention MSE"].values) == {0, 1}
    assert report.failed
    partly = report_of(chains, evaluate_1={FAILURE: "out of memory", "cells": [CELL]})
    assert set(partly.variants[0].figures["recall 2,048"].values) == {0, 1}
    assert set(partly.variants[0].figures["stories 2,048 perplexity"].values) == {0}


def test_without_a_second_stage_the_model_is_the_one_compared(ablation_request: Request, tmp_path: Path) -> None:
    spec = write_spec(tmp_path / "s.yaml")
    chains = list(chains_of([spec], replace(ablation_request, seeds=(0, 1)), tmp_path, "recipe.finetune=null").values())
    (variant,) = report_of(chains).variants
    assert variant.figures["perplexity"] == variant.figures["perplexity before stage 2"]
    assert variant.trained == ("transfer",)


def test_columns_are_the_papers_then_tasks(chains: list[Chain]) -> None:
    titles = [
        "perplexity before stage 2",
        "perplexity",
        "attention MSE",
        "attention KL",
        "recall 2,048",
        "stories 2,048 perplexity",
    ]
    assert [column.title for column in report_of(chains).columns] == titles
    assert Column(kind="score", task="niah,key=word", length=64).title == "niah,key=word 64"


def test_infinite_losses_are_reported(chains: list[Chain]) -> None:
    report = report_of(chains, finetune_0={"loss": 1e9, "teacher_loss": 1.0})
    assert report.variants[0].figures["perplexity"].values[0] == math.exp(700)


def test_the_table_has_means_spreads_and_failures(chains: list[Chain]) -> None:
    failed = {FAILURE: "layer 1 | diverged"}
    report = report_of(chains, finetune_0=failed, evaluate_0=failed, finetune_1=failed, evaluate_1=failed)
    _, headers, rows, *_ = table(report)
    assert headers[:3] == ("variant", "recipe.finetune.lr", "perplexity before stage 2")
    assert rows[0] == ("tiny-slow", "0.01", "10.5 ± 0.707", "1 ± 0", "0.2 ± 0")
    page = report.view().markdown()
    assert page.splitlines()[1] == "| --- | --- | ---: | ---: | ---: |"
    assert "Means over 2 seeds (0, 1), ± the standard deviation." in page
    assert "The teacher's own perplexity on the held-out rows is 2." in page
    assert r"tiny-slow, seed 0: layer 1 \| diverged" in page
    assert "nothing of it is trained" not in page


def test_each_variant_has_the_teachers_perplexity_on_its_own_rows(chains: list[Chain]) -> None:
    report = report_of(chains)
    other = report.variants[1].model_copy(update={"teacher_perplexity": 3.0})
    page = report.model_copy(update={"variants": (report.variants[0], other)}).view().markdown()
    assert "The teacher's own perplexity on the held-out rows of tiny-slow is 2." in page
    assert "The teacher's own perplexity on the held-out rows of tiny-fast is 3." in page


def test_swept_values_are_short_yaml_in_their_cells(chains: list[Chain]) -> None:
    report = report_of(chains)
    values = {
        "head.feature_map": {"kind": "exp", "skip": True},
        "head.memory": [f"a-long-name-of-{n}" for n in range(9)],
        "head.conv": None,
    }
    report = report.model_copy(update={"variants": (report.variants[0].model_copy(update={"values": values}), report.variants[1])})
    _, headers, rows, *_ = table(report)
    assert headers[1:4] == ("head.feature_map", "head.memory", "head.conv")
    assert (rows[0][1], rows[0][3], rows[1][1]) == ("{kind: exp, skip: true}", "null", "–")
    assert (len(rows[0][2]), rows[0][2][-1]) == (40, "…")


def test_pictures_grow_with_the_number_of_columns(chains: list[Chain], tmp_path: Path) -> None:
    """The picture has a panel for each column, and none for a column without figures."""
    report = report_of(chains)
    draw_all(report, tmp_path)
    few = report.model_copy(update={"columns": report.columns[:1]})
    draw_all(few, tmp_path / "few")
    heights = [int.from_bytes((folder / "plot.png").read_bytes()[20:24], "big") for folder in (tmp_path, tmp_path / "few")]
    title = 0.4 * RESOLUTION
    assert heights[0] - title == pytest.approx(6 * (heights[1] - title), rel=0.02)
    draw_all(report.model_copy(update={"columns": ()}), tmp_path)
    assert not (tmp_path / "plot.png").exists()


def test_the_picture_is_written_whole_or_not_at_all(chains: list[Chain], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = report_of(chains)
    draw_all(report, tmp_path)
    before = (tmp_path / "plot.png").read_bytes()

    def savefig(figure: Picture, path: Path, **_: Any) -> None:
        path.write_bytes(b"half of i")
        raise OSError("No space left on device")

    monkeypatch.setattr(Picture, "savefig", savefig)
    with pytest.raises(OSError, match="No space left"):
        draw_all(report, tmp_path)
    assert (tmp_path / "plot.png").read_bytes() == before
