"""A run writes the trained model with its record, and its output appears only when the run is finished."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoTokenizer

import composer
from composer.data.loading import load_rows
from composer.data.packing import PackedRows
from composer.errors import BuildError, SourceError, TrainingError
from composer.model import adapters
from composer.model.modeling import ComposedForCausalLM
from composer.training import distill as module
from composer.training.finetune import loss_of, merge_adapters
from composer.training.loop import StepProgress
from composer.training.run import TrainingReport
from composer.weights.record import read_record
from composer.weights.verify import verify
from tests.checkpoints import fingerprint, logits
from tests.composer.training.runs import RECIPE, VOCABULARY, make_student, make_teacher, run, solved_projections, timeless
from tests.composer.training.stages import StoppedError, log
from tests.composer.weights.students import weights

pytestmark = pytest.mark.drawn

IDS = torch.arange(40).view(2, 20) % 14
WHOLE = ("recipe.finetune.lora=null", "recipe.finetune.trunk=true", "recipe.finetune.steps=2", "recipe.finetune.fresh_lr=null")


def held_out(model: Path, texts: Path) -> PackedRows:
    tokenizer = AutoTokenizer.from_pretrained(model)
    return load_rows([str(texts)], tokenizer, RECIPE["sequence"], split="evaluation", vocabulary=VOCABULARY, share=0.2)


@pytest.fixture(scope="module")
def distilled(student: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingReport, torch.Tensor]:
    """The folder of a run of both stages, its report, and the student's logits in memory at its end."""
    seen: list[torch.Tensor] = []
    original, out = module._find_changed, tmp_path_factory.mktemp("runs") / "out"

    def spy(learned: Any, trained: Any, **options: Any) -> Any:
        seen.append(logits(trained.eval(), IDS))
        return original(learned, trained, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_find_changed", spy)
        report = run(student, out, texts)
    return out, report, seen[0]


def test_the_loaded_model_equals_the_trained_model(
    distilled: tuple[Path, TrainingReport, torch.Tensor], student: Path, texts: Path
) -> None:
    out, report, trained = distilled
    loaded = ComposedForCausalLM.from_pretrained(out).eval()
    assert torch.equal(logits(loaded, IDS), trained)
    assert torch.equal(logits(composer.load(out), IDS), trained)
    plain = ComposedForCausalLM.from_pretrained(out, with_adapter=False).eval()
    assert not any(".lora_" in name for name, _ in plain.named_parameters())
    assert (logits(plain, IDS) - trained).abs().max() > 1e-4
    adapted = PeftModel.from_pretrained(plain, str(out / "adapter"))
    assert torch.equal(logits(adapted, IDS), trained)
    last_loss = report.stages[-1].after["model"]
    assert loss_of(loaded, held_out(out, texts), 4) == pytest.approx(last_loss, rel=1e-5)
    assert report.teacher_loss is not None
    assert last_loss < report.stages[-1].before["model"]


def test_adapters_are_loaded_with_the_model_and_can_be_omitted(
    distilled: tuple[Path, TrainingReport, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _, trained = distilled
    plain = ComposedForCausalLM.from_pretrained(out, with_adapter=False)
    plain.save_pretrained(tmp_path / "plain")
    assert json.loads((tmp_path / "plain" / "config.json").read_text()).get("adapter") is None
    assert torch.equal(logits(ComposedForCausalLM.from_pretrained(tmp_path / "plain").eval(), IDS), logits(plain.eval(), IDS))
    shutil.copytree(out, tmp_path / "shelf" / "model")
    loads: list[dict[str, Any]] = []
    original = adapters.cached_file

    def spy(*arguments: Any, **options: Any) -> Any:
        loads.append(options)
        return original(*arguments, **options)

    monkeypatch.setattr(adapters, "cached_file", spy)
    where: dict[str, Any] = {"revision": "main", "cache_dir": str(tmp_path), "local_files_only": True}
    loaded = ComposedForCausalLM.from_pretrained(tmp_path / "shelf", subfolder="model", token=None, **where).eval()
    assert torch.equal(logits(loaded, IDS), trained)
    assert loads == [where | {"subfolder": "model/adapter"}] * 2, "its config, and its weights"


def test_only_trained_or_solved_weights_have_changed(distilled: tuple[Path, TrainingReport, torch.Tensor], student: Path) -> None:
    out = distilled[0]
    before, after = weights(student), weights(out)
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if ".composed." in name} | solved_projections(out)


def test_the_record_contains_both_stages_and_matches_the_report(
    distilled: tuple[Path, TrainingReport, torch.Tensor], student: Path, teacher: Path
) -> None:
    out, report, _ = distilled
    record, before = read_record(out), read_record(student)
    assert record is not None
    assert before is not None
    assert (record.spec_hash, record.plan, record.source) == (before.spec_hash, before.plan, before.source)
    assert before.untrained
    assert not record.untrained
    assert [stage.stage for stage in record.training] == ["transfer", "finetune"]
    for recorded, outcome in zip(record.training, report.stages, strict=True):
        assert (recorded.steps, recorded.tokens, recorded.before, recorded.after) == (
            outcome.steps,
            outcome.tokens,
            outcome.before,
            outcome.after,
        )
        assert (recorded.teacher, recorded.seed) == (str(teacher), 0)
        assert recorded.data["rows"] > 0
        assert recorded.recipe["lr"] == RECIPE[recorded.stage]["lr"]
    assert record.files["adapter/adapter_model.safetensors"].sha256
    checks = verify(out).checks
    assert {check.outcome for check in checks} == {"passed"}
    assert sorted(path.name for path in (out / "training").iterdir()) == ["curve.png", "log.jsonl"]
    lines = log(out / "training")
    assert [(line["stage"], line["step"]) for line in lines if "loss" in line] == [
        (stage.stage, step) for stage in report.stages for step in range(1, stage.steps + 1)
    ]


def test_the_run_leaves_no_other_files_and_keeps_its_inputs(teacher: Path, student: Path, texts: Path, tmp_path: Path) -> None:
    before = fingerprint(teacher), fingerprint(student)
    run(student, tmp_path / "out", texts, *WHOLE)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (fingerprint(teacher), fingerprint(student)) == before
    assert not (tmp_path / "out" / "source-1-of-1.safetensors").samefile(student / "source-1-of-1.safetensors")
    assert verify(tmp_path / "out").ok
    again = run(tmp_path / "out", tmp_path / "again", texts, which="transfer")
    record = read_record(tmp_path / "again")
    assert record is not None
    assert [stage.stage for stage in record.training] == ["transfer", "finetune", "transfer"]
    assert again.stages[0].steps == RECIPE["transfer"]["steps"]
    assert verify(tmp_path / "again").ok


def test_merged_weights_are_the_same_in_the_run_and_later(
    distilled: tuple[Path, TrainingReport, torch.Tensor], student: Path, texts: Path, tmp_path: Path
) -> None:
    """Merging in the run or later gives the same weights without adapters, and a model that can be trained and be a source."""
    out, _, trained = distilled
    run(student, tmp_path / "merged", texts, merge=True)
    merge_adapters(out, tmp_path / "later")
    merged, other = weights(tmp_path / "merged"), weights(tmp_path / "later")
    assert all(torch.equal(tensor, other[name]) for name, tensor in merged.items())
    for name in ("merged", "later"):
        assert not (tmp_path / name / "adapter").exists()
        assert verify(tmp_path / name).ok
        torch.testing.assert_close(logits(composer.load(tmp_path / name), IDS), trained, rtol=0, atol=1e-5)
    composer.build_folder("softmax", tmp_path / "merged", tmp_path / "built")
    with pytest.raises(TrainingError, match="has no adapters"):
        merge_adapters(tmp_path / "merged", tmp_path / "more")
    (tmp_path / "merged" / "config.json").write_text("{")
    with pytest.raises(SourceError, match=r"config\.json is not JSON"):
        merge_adapters(tmp_path / "merged", tmp_path / "more")


def test_commands_without_adapter_support_refuse_adapters_in_the_same_words(
    distilled: tuple[Path, TrainingReport, torch.Tensor], student: Path, texts: Path, tmp_path: Path
) -> None:
    """Every command that cannot use adapters reports them in the same words."""
    out, before = distilled[0], fingerprint(distilled[0])
    streamed: dict[str, Any] = {"which": "transfer", "stream": True}
    for act in (
        lambda: run(out, tmp_path / "again", texts),
        lambda: run(student, tmp_path / "again", texts, teacher=str(out), **streamed),  # in memory it teaches with them
        lambda: composer.build("softmax", out),
        lambda: composer.build_folder("softmax", out, tmp_path / "built"),
    ):
        with pytest.raises(SourceError) as caught:
            act()
        assert str(caught.value) == f"{out} has adapters beside its weights. Merge them first: compose merge {out}"
    assert not list(tmp_path.iterdir())
    assert fingerprint(out) == before


@pytest.mark.parametrize("copy", [False, True])
def test_tied_embeddings_are_still_tied_after_training(texts: Path, tmp_path: Path, copy: bool) -> None:
    """The source stores a copy of the embeddings, which transformers would load as a separate matrix once they differ."""
    teacher = make_teacher(tmp_path / "teacher", tie_word_embeddings=True)
    if copy:
        from safetensors.torch import save_file

        tensors = load_file(teacher / "model.safetensors")
        tensors = {
            name: tensor.clone() for name, tensor in (tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]}).items()
        }
        (teacher / "model.safetensors").unlink()
        save_file(tensors, teacher / "model.safetensors", {"format": "pt"})
    student = make_student(tmp_path / "student", teacher)
    report = run(student, tmp_path / "out", texts, *WHOLE, which="finetune")
    loaded: Any = composer.load(tmp_path / "out")
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert loss_of(loaded, held_out(student, texts), 4) == pytest.approx(report.stages[0].after["model"], rel=1e-5)
    assert verify(tmp_path / "out").ok


def test_runs_killed_in_either_stage_resume_to_the_same_output(
    distilled: tuple[Path, TrainingReport, torch.Tensor], student: Path, texts: Path, tmp_path: Path
) -> None:
    """No output appears before the end, --resume continues, and the output equals that of an uninterrupted run."""
    out, report, _ = distilled

    def stop(stage: str, at: int) -> Any:
        def watch(step: StepProgress) -> None:
            if (step.stage, step.step) == (stage, at):
                raise StoppedError

        return watch

    for resume, moment in enumerate([("transfer", 3), ("finetune", 2)]):
        with pytest.raises(StoppedError):
            run(student, tmp_path / "out", texts, checkpoint_seconds=0.0, resume=bool(resume), watch=stop(*moment))
        assert [path.name for path in tmp_path.iterdir()] == ["out.run"]
    with pytest.raises(
        TrainingError, match=r"out\.run has .* an earlier run\. Continue it with --resume, or start again with --force"
    ):
        run(student, tmp_path / "out", texts)
    with pytest.raises(
        TrainingError,
        match=r"other settings:\n  seed: was 0, now 3\nUse the same settings.*start again with --force",
    ):
        run(student, tmp_path / "out", texts, resume=True, seed=3)
    with pytest.raises(TrainingError, match=r"settings:\n  recipe\.transfer\.lr: was 0\.\d+, now 0\.5\nUse the same"):
        run(student, tmp_path / "out", texts, "recipe.transfer.lr=0.5", resume=True)
    resumed = run(student, tmp_path / "out", texts, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    for actual, other in zip(resumed.stages, report.stages, strict=True):
        assert timeless(actual) == timeless(other)
    for file in ("fresh.safetensors", "adapter/adapter_model.safetensors", "adapter/adapter_config.json", "training/log.jsonl"):
        assert (tmp_path / "out" / file).read_bytes() == (out / file).read_bytes()


def test_force_starts_a_new_run_and_replaces_the_output(student: Path, texts: Path, tmp_path: Path) -> None:
    def stop(step: StepProgress) -> None:
        raise StoppedError

    (tmp_path / "out.run").mkdir()  # nothing in it: as a run leaves it that is killed in its first moment
    with pytest.raises(StoppedError):
        run(student, tmp_path / "out", texts, checkpoint_seconds=0.0, watch=stop)
    run(student, tmp_path / "out", texts, which="transfer", force=True, seed=1)
    first = fingerprint(tmp_path / "out")
    with pytest.raises(BuildError, match=r"exists already\. Use --force"):
        run(student, tmp_path / "out", texts, which="transfer")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert fingerprint(tmp_path / "out") == first
    with pytest.raises(StoppedError):
        run(student, tmp_path / "out", texts, which="transfer", force=True, watch=stop)
    assert fingerprint(tmp_path / "out") == first, "what stands there stays until there is something to take its place"
