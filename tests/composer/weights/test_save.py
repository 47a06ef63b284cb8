"""A model saved by transformers keeps its record: `verify` and `distill` accept it, and it states only what is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments, default_data_collator
from transformers.utils.hub import PushToHubMixin

import composer
from composer.building.in_memory import IN_MEMORY
from composer.building.rewrite import Adapter, Trained, write_trained
from composer.model.modeling import ComposedPreTrainedModel
from composer.weights.record import RECORD, Record, read_record
from composer.weights.verify import verify
from tests.checkpoints import logits
from tests.composer.cli.conftest import Compose
from tests.composer.hosts.families import small

SPEC: dict[str, Any] = {
    "compose": 1,
    "name": "tiny",
    "head": {
        "feature_map": {"kind": "hedgehog", "dim": 4},
        "memory": [{"kind": "window", "size": 4, "weight": "learned"}, "state"],
    },
    "recipe": {"sequence": 16, "transfer": {"lr": 0.01, "steps": 2}, "finetune": {"lr": 0.001, "steps": 2}},
}
IDS = torch.arange(1, 11)[None]


@pytest.fixture
def built(teacher: Path, tmp_path: Path) -> Path:
    return composer.build_folder(SPEC, teacher, tmp_path / "built").out


def record_in(folder: Path) -> Record:
    record = read_record(folder)
    assert record is not None
    return record


def trained(model: Any, folder: Path, tokenizer: Any = None) -> Trainer:
    """Two steps of transformers' training."""
    rows = [{"input_ids": IDS[0], "labels": IDS[0]}] * 4
    options = TrainingArguments(
        str(folder), max_steps=2, per_device_train_batch_size=2, learning_rate=1e-2, use_cpu=True, report_to=[], save_strategy="no"
    )
    trainer = Trainer(
        model=model,
        args=options,
        train_dataset=rows,  # pyright: ignore[reportArgumentType]
        processing_class=tokenizer,
        data_collator=default_data_collator,
    )
    trainer.train()
    return trainer


def test_models_saved_by_a_trainer_are_accepted_by_every_command(
    teacher: Path, built: Path, compose: Compose, tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(built)
    trainer = trained(model, tmp_path / "runs", AutoTokenizer.from_pretrained(built))
    trainer.save_model(str(tmp_path / "saved"))
    report = composer.verify("saved")
    assert report.ok, report
    (training_check,) = [check for check in report.checks if check.what == "training"]
    assert training_check.outcome == "unknown"
    record, before = record_in(tmp_path / "saved"), record_in(built)
    (save,) = record.saved
    assert (record.spec, record.spec_hash, record.source, record.seed) == (
        before.spec,
        before.spec_hash,
        before.source,
        before.seed,
    )
    assert save.after == composer.verify(built).record_sha256
    assert save.changed == save.tensors == len(record.plan.parameters)
    assert record.untrained == ()
    assert torch.equal(logits(composer.load("saved"), IDS), logits(model.eval(), IDS))
    assert compose("verify", "saved").exit_code == 0
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "once upon a time there was a cat and it slept once upon a time"}\n' * 24)
    result = compose("distill", "saved", "--data", texts, "--share", 0.25, "-o", "distilled")
    assert result.exit_code == 0, result.output
    assert composer.verify("distilled").ok
    assert record_in(tmp_path / "distilled").saved == record.saved
    for command in (("generate", "saved", "--prompt", "once upon"), ("eval", "saved", "--tasks", "mqar,pairs=2", "--lengths", 12)):
        assert compose(*command).exit_code == 0


def test_checkpoints_have_a_record(built: Path, tmp_path: Path) -> None:
    trainer = trained(composer.load(built), tmp_path / "runs")
    model: Any = trainer.model
    trainer._save_checkpoint(model, None)
    trainer.save_model()
    assert composer.verify(tmp_path / "runs" / "checkpoint-2").ok
    assert composer.verify(tmp_path / "runs").ok


def test_saving_without_changes_is_recorded(built: Path, tmp_path: Path) -> None:
    composer.load(built).save_pretrained(tmp_path / "saved")
    record = record_in(tmp_path / "saved")
    assert [save.changed for save in record.saved] == [0]
    assert record.untrained == record_in(built).untrained != ()
    assert not [check for check in composer.verify(tmp_path / "saved").checks if check.what == "training"]


def test_records_distinguish_trained_and_untrained_parameters(built: Path, tmp_path: Path) -> None:
    model, first = composer.load(built), record_in(built).untrained[0]
    with torch.no_grad():
        model.get_parameter(first).add_(1)
    model.save_pretrained(tmp_path / "saved")
    record = record_in(tmp_path / "saved")
    assert [save.changed for save in record.saved] == [1]
    assert record.untrained == record_in(built).untrained[1:]


@pytest.mark.parametrize("size", ["20KB", "1GB"])
def test_models_built_in_memory_are_saved_with_a_record(teacher: Path, tmp_path: Path, size: str) -> None:
    model = composer.build(SPEC, teacher, seed=3)
    model.save_pretrained(tmp_path / "saved", max_shard_size=size)
    record, folder = record_in(tmp_path / "saved"), composer.build_folder(SPEC, teacher, tmp_path / "built", seed=3).out
    assert composer.verify(tmp_path / "saved").ok
    built = record_in(folder)
    assert (record.spec, record.source, record.seed, record.untrained) == (built.spec, built.source, 3, built.untrained)
    assert [(save.after, save.changed) for save in record.saved] == [(None, 0)]
    assert {name: entry.kind for name, entry in record.plan.parameters.items()} == {
        name: entry.kind for name, entry in built.plan.parameters.items()
    }
    with torch.no_grad():
        model.get_parameter(record.untrained[0]).add_(1)
    model.save_pretrained(tmp_path / "again")
    assert [save.changed for save in record_in(tmp_path / "again").saved] == [1]
    assert record_in(tmp_path / "again").untrained == record.untrained[1:]


def test_plans_in_memory_and_in_a_folder_drop_the_same_tensors(built: Path, tmp_path: Path) -> None:
    """Shapes and reasons are equal, since all plans are made by one function."""
    wider = SPEC | {"head": SPEC["head"] | {"feature_map": {"kind": "hedgehog", "dim": 6}}}
    with pytest.warns(UserWarning, match="are not kept"):
        composer.build(wider, composer.load(built)).save_pretrained(tmp_path / "saved")
    in_folder = record_in(composer.build_folder(wider, built, tmp_path / "second").out).plan
    in_memory = record_in(tmp_path / "saved").plan
    assert in_folder.dropped
    assert {name: (entry.shape, entry.reason) for name, entry in in_memory.dropped.items()} == {
        name: (entry.shape, entry.reason) for name, entry in in_folder.dropped.items()
    }
    assert {name: entry.kind for name, entry in in_memory.parameters.items()} == {
        name: entry.kind for name, entry in in_folder.parameters.items()
    }


def test_sources_in_memory_are_named_by_their_path(teacher: Path, tmp_path: Path) -> None:
    source = AutoModelForCausalLM.from_pretrained(teacher)
    composer.build(SPEC, source).save_pretrained(tmp_path / "saved")
    record = record_in(tmp_path / "saved")
    assert record.source is not None
    assert record.source.folder == str(teacher.resolve())
    assert [save.changed for save in record.saved] == [None], "nobody knows what was done to the source in memory"
    assert composer.verify(tmp_path / "saved").ok
    source.config._name_or_path = ""
    source.name_or_path = ""
    composer.build(SPEC, source).save_pretrained(tmp_path / "nowhere")
    recorded_source = record_in(tmp_path / "nowhere").source
    assert recorded_source is not None
    assert recorded_source.folder == IN_MEMORY
    with pytest.raises(composer.ComposerError, match="`teacher=SOURCE`"):
        composer.distill(tmp_path / "nowhere", "stories,samples=4")


def test_fresh_models_are_saved_with_a_record(tmp_path: Path) -> None:
    spec = SPEC | {"trunk": {"width": 16, "layers": 1, "heads": 2, "vocabulary": 16}}
    model = composer.build(spec, fresh=True)
    model.save_pretrained(tmp_path / "saved")
    record = record_in(tmp_path / "saved")
    assert composer.verify(tmp_path / "saved").ok
    assert record.source is None
    assert [save.changed for save in record.saved] == [0]
    assert set(record.untrained) == set(record.plan.parameters)


def test_a_model_saved_in_another_dtype_is_recorded_as_unchanged(built: Path, tmp_path: Path) -> None:
    model: Any = composer.load(built)
    model.to(torch.bfloat16).save_pretrained(tmp_path / "saved")
    record = record_in(tmp_path / "saved")
    assert composer.verify(tmp_path / "saved").ok
    assert [save.changed for save in record.saved] == [0]
    assert record.plan.dtype == "bfloat16"


def test_saving_in_place_keeps_the_record(built: Path) -> None:
    model = composer.load(built)
    with torch.no_grad():
        model.get_parameter(record_in(built).untrained[0]).add_(1)
    model.save_pretrained(built)
    assert [save.changed for save in record_in(built).saved] == [None], "what it was has been written over"
    assert torch.equal(logits(composer.load(built), IDS), logits(model.eval(), IDS))
    assert composer.verify(built).ok


def test_repeated_saves_are_all_recorded(built: Path, tmp_path: Path) -> None:
    composer.load(built).save_pretrained(tmp_path / "first")
    composer.load(tmp_path / "first").save_pretrained(tmp_path / "second")
    saves = record_in(tmp_path / "second").saved
    assert [save.after for save in saves] == [composer.verify(folder).record_sha256 for folder in (built, tmp_path / "first")]


def test_models_with_changed_specs_get_no_record(built: Path, tmp_path: Path) -> None:
    model = composer.load(built)
    model.config.spec_hash = "0" * 64
    with pytest.warns(UserWarning, match="is saved without composition.json, its record: its config.json has the spec 0") as warned:
        model.save_pretrained(tmp_path / "saved")
    assert [warning.filename for warning in warned if "saved without" in str(warning.message)] == [
        __file__
    ]  # at this call, not inside
    assert not (tmp_path / "saved" / RECORD).exists()


def test_models_without_a_record_are_saved_without(built: Path, tmp_path: Path) -> None:
    (built / RECORD).unlink()
    composer.load(built).save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved" / RECORD).exists()


def test_only_adapters_are_saved_for_models_with_adapters(built: Path, tmp_path: Path) -> None:
    shapes = {
        name: parameter.shape for name, parameter in composer.load(built).named_parameters() if name.endswith("q_proj.weight")
    }
    tensors = {
        f"base_model.model.{name.removesuffix('weight')}lora_{side}.weight": torch.zeros(size)
        for name, (out, input_size) in shapes.items()
        for side, size in (("A", (2, input_size)), ("B", (out, 2)))
    }
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    write_trained(built, tmp_path / "adapted", Trained({}, Adapter(config, tensors), (), {}))
    with pytest.warns(UserWarning, match="is saved without its model: transformers writes only the adapters .*`compose merge`"):
        composer.load(tmp_path / "adapted").save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved" / RECORD).exists()


def test_changed_bytes_are_detected(built: Path, tmp_path: Path) -> None:
    composer.load(built).save_pretrained(tmp_path / "saved")
    path = tmp_path / "saved" / "model.safetensors"
    contents = bytearray(path.read_bytes())
    contents[-1] ^= 1
    path.write_bytes(contents)
    assert {check.subject for check in composer.verify(tmp_path / "saved").failed} == {"model.safetensors"}


def test_records_without_saves_are_unchanged(built: Path) -> None:
    assert "saved" not in json.loads((built / RECORD).read_text())


def test_other_families_are_saved_with_a_record(tmp_path: Path) -> None:
    small("qwen3_moe").save_pretrained(tmp_path / "source")
    composer.build_folder(SPEC, tmp_path / "source", tmp_path / "built")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "built")
    model.save_pretrained(tmp_path / "saved")
    assert composer.verify(tmp_path / "saved").ok
    assert [save.changed for save in record_in(tmp_path / "saved").saved] == [0]
    composer.build(SPEC, tmp_path / "source").save_pretrained(tmp_path / "second")
    assert composer.verify(tmp_path / "second").ok


def test_no_record_is_looked_for_beside_weights_in_memory(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of another host is checked by its names alone, and the Hub is not queried for a model without a name."""
    composer.load(built)  # from now on records are kept
    places: list[str] = []
    monkeypatch.setattr("composer.weights.save.cached_file", lambda name, *_, **__: places.append(name))
    small("gemma2").save_pretrained(tmp_path / "source")
    composer.build_folder(SPEC, tmp_path / "source", tmp_path / "student")
    assert not places
    composer.load(tmp_path / "student")
    assert places == [str(tmp_path / "student")]


def test_models_pushed_by_transformers_have_a_record(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bool] = []
    monkeypatch.setattr(
        PushToHubMixin, "_upload_modified_files", lambda _, folder, *rest, **more: sent.append(verify(Path(folder)).ok)
    )
    model = composer.load(built)
    super(ComposedPreTrainedModel, model).save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved" / RECORD).exists()
    model._upload_modified_files(str(tmp_path / "saved"), "somebody/saved", {})
    assert sent == [True]
