"""An ablation runs a sweep from its specs to its report: shared steps run once, a stopped run resumes, and a failure leaves the
other variants.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import composer
from composer.ablation.ablate import REPORT, STEPS, VARIANTS, ablate
from composer.ablation.options import Request
from composer.ablation.plan import AblationStep
from composer.ablation.report import AblationReport
from composer.ablation.runner import processes
from composer.ablation.steps import Figures
from composer.errors import AblationError, Stopped
from composer.evaluation.options import EvaluationOptions
from composer.evaluation.runner import evaluate
from composer.runs.store import TABLE
from composer.training import checkpoint
from composer.training import distill as distilling
from composer.training.distill import distill
from composer.training.run import TrainingOptions
from composer.training.student import read_student
from composer.weights.record import read_record
from composer.weights.verify import verify
from tests.composer.ablation.variants import RECIPE, SECOND_STAGES, TINY, TRUNK, request_for, stored, write_spec
from tests.composer.training.processes import ending, forked
from tests.composer.training.runs import make_student
from tests.covers import some

pytestmark = pytest.mark.long

COMPARED = ("perplexity before stage 2", "attention MSE", "attention KL")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a sweep of two variants that differ in the second stage."""
    return write_spec(tmp_path_factory.mktemp("specs") / "s.yaml", vary=SECOND_STAGES)


@pytest.fixture(scope="module")
def whole(
    sweep: str, ablation_request: Request, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, AblationReport, list[str]]:
    """Return the folder, the report and the steps of an uninterrupted ablation."""
    messages: list[str] = []
    out = tmp_path_factory.mktemp("whole") / "out"
    report = ablate([sweep], ablation_request, out, tell=listener(messages))
    return out, report, messages


def listener(messages: list[str]) -> Callable[[AblationStep | None, Figures, int, int], None]:
    def tell(step: AblationStep | None, _figures: Figures, done: int, total: int) -> None:
        assert done <= total
        if step is not None:
            messages.append(step.kind)

    return tell


def test_the_report_equals_stages_run_by_hand(
    whole: tuple[Path, AblationReport, list[str]], teacher: Path, texts: Path, tmp_path: Path
) -> None:
    """The report has the figures of the same stages run by hand."""
    out, report, messages = whole
    assert Counter(messages) == {"build": 1, "transfer": 1, "compare": 1, "finetune": 2, "evaluate": 2}
    assert sorted(path.name for path in out.iterdir()) == sorted(["plot.png", REPORT, STEPS, TABLE, VARIANTS])
    assert AblationReport.model_validate_json((out / REPORT).read_text()) == report
    options = EvaluationOptions(samples=report.request["samples"])
    (cell,) = evaluate([teacher], report.request["tasks"], report.request["lengths"], options).cells
    assert report.teacher == {"mqar,pairs=2 12": pytest.approx(cell.mean)}
    assert "The teacher's own scores: mqar,pairs=2 12 " in (out / TABLE).read_text()
    assert [variant.name for variant in report.variants] == ["tiny-slow", "tiny-fast"]
    titles = ["perplexity before stage 2", "perplexity", "attention MSE", "attention KL", "mqar,pairs=2 12"]
    assert [column.title for column in report.columns] == titles
    slow, fast = report.variants
    assert all(title in slow.figures for title in titles)
    for title in COMPARED:
        assert slow.figures[title] == fast.figures[title]
    assert slow.figures["perplexity"] != fast.figures["perplexity"]
    student = make_student(tmp_path / "student", teacher, TINY)
    ran = distill(read_student(student, ()), tmp_path / "distilled", TrainingOptions([str(texts)], share=0.2, held_out_rows=10**6))
    assert ran.loss is not None
    assert slow.figures["perplexity"].mean == pytest.approx(2.718281828459045**ran.loss, rel=1e-6)
    assert ran.teacher_loss is not None
    assert slow.teacher_perplexity == pytest.approx(2.718281828459045**ran.teacher_loss, rel=1e-6)
    assert (slow.trained, slow.failures) == (("transfer", "finetune"), {})
    assert slow.spec_hash == read_record(student).spec_hash  # pyright: ignore[reportOptionalMemberAccess]


def test_models_are_named_after_their_variants(whole: tuple[Path, AblationReport, list[str]]) -> None:
    """Each variant's folder is the scored model, verifies and names its variant, although both share the first stage."""
    out, report, _ = whole
    assert [variant.models for variant in report.variants] == [{0: "variants/tiny-slow"}, {0: "variants/tiny-fast"}]
    text = (out / TABLE).read_text()
    for variant, lr in zip(report.variants, (1e-2, 2e-2), strict=True):
        folder = out / variant.models[0]
        assert text.count(f"| {variant.models[0]} |") == 1
        record = read_record(folder)
        assert record is not None
        assert record.spec["recipe"]["finetune"]["lr"] == lr
        assert (record.resolved.name, record.spec_hash) == (variant.name, variant.spec_hash)
        card = (folder / "README.md").read_text()
        assert f"\n# {variant.name}\n" in card
        assert f"`{variant.name}` heads on" in card
        assert verify(folder).ok
        step = next(path for path in (out / STEPS).glob("finetune-*/") if _recipe_of(path) == lr)
        ours, theirs = (composer.load(path).state_dict() for path in (folder, step))
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
        assert (folder / "adapter" / "adapter_model.safetensors").samefile(step / "adapter" / "adapter_model.safetensors")
    slow, fast = report.variants
    assert slow.state_bytes == fast.state_bytes
    assert slow.state_bytes is not None
    assert (report.state_length, slow.kv_cache_bytes is not None) == (12, True)


def _recipe_of(step: Path) -> float:
    record = read_record(step)
    assert record is not None
    return record.training[-1].recipe["lr"]


def test_a_second_run_changes_nothing(
    whole: tuple[Path, AblationReport, list[str]], sweep: str, ablation_request: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run changes nothing. With other samples it only scores the models again."""
    out, report, _ = whole
    messages: list[str] = []
    assert ablate([sweep], ablation_request, out, tell=listener(messages)) == report
    assert messages == []
    monkeypatch.setattr(distilling, "distill", None)
    ablate([sweep], replace(ablation_request, samples=3), out, tell=listener(messages))
    assert messages == ["evaluate", "evaluate"]
    assert ablate([sweep], ablation_request, out) == report


@pytest.mark.parametrize(("error", "number"), [(KeyboardInterrupt(), signal.SIGINT), (Stopped("", signal.SIGTERM), signal.SIGTERM)])
def test_interrupted_ablations_report_how_to_continue(
    error: KeyboardInterrupt, number: int, sweep: str, ablation_request: Request, tmp_path: Path
) -> None:
    def interrupt(*_: Any) -> None:
        raise error

    with pytest.raises(
        Stopped, match=r"Interrupted\. Finished steps are kept in .*steps\. Run the same command again to continue\."
    ) as caught:
        ablate([sweep], ablation_request, tmp_path / "out", tell=interrupt)
    assert caught.value.number == number


@pytest.mark.parametrize(
    "stop",
    some(
        ["between steps", "in a step of training", "in the first of it", "before figures"],
        ["in a step of training", "before figures"],
    ),
)
def test_stopped_ablations_resume_from_shared_steps(
    stop: str,
    whole: tuple[Path, AblationReport, list[str]],
    sweep: str,
    ablation_request: Request,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After SIGKILL at different places, a run of the second variant alone resumes from the shared steps."""
    out = tmp_path / "out"

    def child() -> None:
        if stop == "between steps":
            ablate([sweep], ablation_request, out, tell=lambda step, *_: step is not None and step.kind == "transfer" and die())
        elif stop == "before figures":
            from composer.ablation import steps

            original = steps.write_whole
            monkeypatch.setattr(steps, "write_whole", lambda path, text: die() if "finetune" in path.name else original(path, text))
            ablate([sweep], ablation_request, out)
        else:
            kind = "finetune" if stop == "in a step of training" else "transfer"
            original = checkpoint.save

            def save(folder: Path, *arguments: Any) -> None:
                original(folder, *arguments)
                if folder.name == kind:
                    die()

            monkeypatch.setattr(checkpoint, "save", save)
            original_options = TrainingOptions.__init__
            monkeypatch.setattr(
                TrainingOptions,
                "__init__",
                lambda self, **options: original_options(self, **{**options, "checkpoint_seconds": 0.0}),
            )
            ablate([sweep], ablation_request, out)

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    assert ending(forked(child)) == -signal.SIGKILL
    assert not (out / REPORT).exists()
    left = [path.name for path in (out / STEPS).iterdir() if path.suffix == ".run"]
    assert bool(left) is ("training" in stop or "first" in stop)
    messages: list[str] = []
    fast = ablate([f"{sweep}:fast"], ablation_request, out, tell=listener(messages))
    assert ("transfer" in messages) is (stop == "in the first of it")
    assert fast.variants[0].figures == whole[1].variants[1].figures
    ablate([sweep], ablation_request, out)
    assert stored(out) == stored(whole[0])
    assert not [path for path in (out / STEPS).iterdir() if path.suffix == ".run" or path.name.endswith(".partial")]


def test_failed_variants_do_not_stop_the_others(
    sweep: str, ablation_request: Request, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rate that ends in NaN, and heads without a transfer, are reported as failures and tried again."""
    finetune = {"lr": 1e30, "steps": 4, "batch": 2, "clip": None, "lora": {"rank": 2}}
    diverging = write_spec(tmp_path / "d.yaml", name="diverging", recipe={**RECIPE, "finetune": finetune})
    softmax = {"compose": 1, "name": "softmax", "head": {"position": "rope", "memory": ["full"]}, "recipe": RECIPE}
    specs, out = [diverging, f"{sweep}:slow", write_spec(tmp_path / "f.yaml", softmax)], tmp_path / "out"
    report = ablate(specs, ablation_request, out)
    assert report.failed
    nan, fine, fixed = report.variants
    assert "model" in nan.failures[0]
    assert "no fresh parameters, so attention transfer has nothing to train" in fixed.failures[0]
    assert fine.figures == whole[1].variants[0].figures
    assert nan.figures == {title: fine.figures[title] for title in fine.figures if title in COMPARED}
    assert fixed.figures == {}
    table = (out / TABLE).read_text()
    assert "| softmax | – | – | – | – | – |" in table
    assert f"diverging, seed 0: {nan.failures[0]}" in table
    messages: list[str] = []
    assert ablate(specs, ablation_request, out, tell=listener(messages)).failed
    assert sorted(messages) == ["finetune", "transfer"]
    mended = ablate(specs, ablation_request, out, overrides=["recipe.finetune.lr=0.01"])
    assert [bool(variant.failures) for variant in mended.variants] == [False, False, True]
    assert set(mended.variants[0].figures) == set(fine.figures)


def test_figures_are_means_and_spreads_over_seeds(ablation_request: Request, sweep: str, tmp_path: Path, whole: Any) -> None:
    """Each seed is a separate run."""
    request = replace(ablation_request, seeds=(0, 4), tasks=(), lengths=())
    (slow,) = ablate([f"{sweep}:slow"], request, tmp_path / "out").variants
    figure = slow.figures["perplexity"]
    assert set(figure.values) == {0, 4}
    assert figure.values[0] == whole[1].variants[0].figures["perplexity"].mean
    assert figure.values[4] != figure.values[0]
    assert figure.mean == sum(figure.values.values()) / 2
    assert figure.spread == pytest.approx(abs(figure.values[4] - figure.values[0]) / 2**0.5)


def test_fresh_variants_have_separate_trunks(texts: Path, teacher: Path, tmp_path: Path) -> None:
    """Each variant has its own trunk."""
    vary = {"grid": {"trunk.layers": [1, 2]}, "names": ["one", "two"]}
    spec = write_spec(tmp_path / "s.yaml", trunk=TRUNK, recipe={"sequence": 16, "train": {"lr": 1e-2, "steps": 2}}, vary=vary)
    report = ablate([spec], request_for(None, texts, tokenizer=str(teacher)), tmp_path / "out")
    assert not report.failed
    assert [column.title for column in report.columns] == ["perplexity", "mqar,pairs=2 12"]
    first, two = report.variants
    assert first.figures["perplexity"] != two.figures["perplexity"]
    assert (first.trained, first.teacher_perplexity) == (("train",), None)


def test_without_data_nothing_is_trained(ablation_request: Request, tmp_path: Path) -> None:
    report = ablate([write_spec(tmp_path / "s.yaml")], replace(ablation_request, data=()), tmp_path / "out")
    assert [column.kind for column in report.columns] == ["score"]
    assert report.variants[0].trained == ()
    assert "trained" not in (tmp_path / "out" / TABLE).read_text()


def test_untrained_lola_is_scored_on_the_weights_of_lolcats(teacher: Path, texts: Path, tmp_path: Path) -> None:
    """A variant without training is built, compared with the named teacher, and scored."""
    lolcats = {
        "compose": 1,
        "name": "cats",
        "extends": "lolcats",
        "head": {"feature_map": {"kind": "hedgehog", "dim": 4}},
        "recipe": RECIPE,
    }
    built = tmp_path / "built"
    composer.build_folder(write_spec(tmp_path / "cats.yaml", lolcats), teacher, built)
    trained = tmp_path / "trained"
    distill(read_student(built, ()), trained, TrainingOptions([str(texts)], share=0.2, held_out_rows=10**6), which="transfer")
    lola = {"compose": 1, "name": "lola-small", "extends": "lola", "head": {"feature_map": {"kind": "hedgehog", "dim": 4}}}
    request = request_for(trained, texts, teacher=str(teacher))
    report = ablate([write_spec(tmp_path / "lola.yaml", lola)], request, tmp_path / "out")
    (variant,) = report.variants
    assert not report.failed
    assert (variant.trained, "perplexity" in variant.figures, "mqar,pairs=2 12" in variant.figures) == ((), True, True)
    assert variant.figures["perplexity"] == variant.figures["perplexity before stage 2"]
    assert "lola-small: nothing of it is trained." in (tmp_path / "out" / TABLE).read_text()


def test_several_processes_equal_one(whole: Any, sweep: str, ablation_request: Request, tmp_path: Path) -> None:
    messages: list[str] = []
    ablate([sweep], ablation_request, tmp_path / "out", workers=processes(2), tell=listener(messages))
    assert Counter(messages) == Counter(whole[2])
    assert stored(tmp_path / "out") == stored(whole[0])


def test_folders_of_other_origin_are_refused(sweep: str, ablation_request: Request, tmp_path: Path) -> None:
    (tmp_path / "out" / STEPS).mkdir(parents=True)
    with pytest.raises(AblationError, match="so no ablation wrote it"):
        ablate([sweep], ablation_request, tmp_path / "out")
    assert list((tmp_path / "out" / STEPS).iterdir()) == []
