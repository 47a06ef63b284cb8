"""In a build from nothing, the same seed gives the same bytes. The folder loads, is complete or absent, and has its record."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import composer
from composer.building import folder as build_module
from composer.building.folder import build_folder
from composer.errors import BuildError, SpecError
from composer.spec.loading import load_spec
from composer.spec.resolve import resolve
from composer.weights.card import PICTURE
from composer.weights.config import dimensions, own_parameters, trunk_from
from composer.weights.record import RECORD, read_record
from composer.weights.verify import verify
from converters.model_types import STUB
from converters.source import open_source
from tests.checkpoints import edit_config, edit_tensors, llama, logits
from tests.composer.model.trunks import HEADS, TRUNKS, document
from tests.composer.weights.students import SOFTMAX, loaded

WEIGHTS = "model.safetensors"
FILES = [RECORD, "README.md", PICTURE, "config.json", "generation_config.json", WEIGHTS, STUB]


def build(out: Path, head: str = "lolcats", trunk: dict[str, Any] | None = None, **options: Any) -> Path:
    composer.build_folder(document(head, **trunk or {}), out=out, fresh=True, **options)
    return out


@pytest.mark.parametrize("trunk", TRUNKS)
@pytest.mark.parametrize("head", HEADS)
def test_fresh_models_load_and_match_their_record(tmp_path: Path, head: str, trunk: str):
    out = build(tmp_path / "out", head, TRUNKS[trunk])
    assert sorted(os.listdir(out)) == sorted(FILES)
    assert logits(loaded(out)).isfinite().all()
    report = verify(out)
    assert report.ok
    assert not report.unchecked
    record = read_record(out)
    assert record is not None
    assert record.source is None
    assert record.resolved == resolve(load_spec(document(head, **TRUNKS[trunk])))
    assert set(record.untrained) == set(record.plan.parameters) == set(load_file(out / WEIGHTS))
    assert open_source(out).notes == ()


@pytest.mark.parametrize(("labels", "notes"), [(None, 1), (2, 0)])
def test_the_plan_notes_that_encoders_generate_no_text(tmp_path: Path, labels: int | None, notes: int):
    spec = document("softmax", labels=labels) | {"direction": "bidirectional"}
    plan = composer.build_folder(spec, out=tmp_path / "out", fresh=True, dry_run=True).plan
    assert len(plan.notes) == notes
    assert all("so this model cannot generate" in note for note in plan.notes)


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path):
    first, same, other = (build(tmp_path / name, seed=seed) / WEIGHTS for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert first.read_bytes() == same.read_bytes()
    assert first.read_bytes() != other.read_bytes()


def test_models_in_memory_equal_models_in_a_folder(tmp_path: Path):
    out = build(tmp_path / "out", "lawcat", TRUNKS["learned"], seed=3)
    model = composer.build(document("lawcat", **TRUNKS["learned"]), fresh=True, seed=3)
    stored = load_file(out / WEIGHTS)
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    assert tensors.keys() == stored.keys()
    assert all(torch.equal(tensor, stored[name]) for name, tensor in tensors.items())
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not model.training


def test_fresh_weights_have_their_initial_distribution(tmp_path: Path):
    """Norms are 1, biases 0, and heads as their parts start. Other weights are normal with mean 0 and deviation 0.02."""
    out = build(tmp_path / "out", trunk={**TRUNKS["classic"], "tied": False, "width": 128, "vocabulary": 512})
    for name, tensor in load_file(out / WEIGHTS).items():
        if ".composed." in name:
            continue
        if name.endswith("bias"):
            assert not tensor.any()
        elif "norm" in name:
            assert (tensor == 1).all()
        else:
            assert abs(tensor.mean().item()) < 5 * 0.02 / tensor.numel() ** 0.5, name
            assert abs(tensor.std().item() / 0.02 - 1) < 5 / tensor.numel() ** 0.5, name
    window = load_file(out / WEIGHTS)["model.layers.0.self_attn.composed.head.window.weight"]
    folder = tmp_path / "student"
    composer.build_folder({"compose": 1, "name": "y", "head": HEADS["lolcats"]}, llama(tmp_path / "llama"), folder)
    assert torch.equal(window, load_file(folder / "fresh.safetensors")["model.layers.0.self_attn.composed.head.window.weight"])


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_fresh_models_have_the_requested_dtype(tmp_path: Path, dtype: str):
    out = build(tmp_path / "out", dtype=dtype)
    assert {tensor.dtype for tensor in load_file(out / WEIGHTS).values()} == {getattr(torch, dtype)}
    assert json.loads((out / "config.json").read_text())["dtype"] == dtype
    assert verify(out).ok


def test_the_config_and_the_spec_have_the_same_dimensions(tmp_path: Path):
    out = build(tmp_path / "out", trunk={"theta": 500, "head_dim": 12})
    assert dimensions(open_source(out).trunk) == resolve(load_spec(document("lolcats", theta=500, head_dim=12))).dimensions


def test_classifiers_are_built(tmp_path: Path):
    out = build(tmp_path / "out", trunk={"labels": 3})
    assert "generation_config.json" not in os.listdir(out)
    assert verify(out).ok
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["ComposedForSequenceClassification"]
    assert config["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}
    assert "AutoModelForSequenceClassification.from_pretrained" in (out / "README.md").read_text()
    assert logits(composer.load(out)).shape == (1, 3)


def test_the_card_and_the_record_name_no_source(tmp_path: Path):
    out = build(tmp_path / "out", seed=7)
    card = (out / "README.md").read_text()
    assert "built from nothing" in card
    assert "every parameter was random (seed 7)" in card
    assert "base_model" not in card
    record = json.loads((out / RECORD).read_text())
    assert (record["source"], record["seed"], record["spec"]["trunk"]["width"]) == (None, 7, 32)


def test_fresh_models_are_sources(tmp_path: Path):
    out = build(tmp_path / "out", "softmax", TRUNKS["learned"])
    report = composer.build_folder({**SOFTMAX}, out, tmp_path / "again")
    assert set(report.untrained) == set(read_record(out).plan.parameters), "what was random stays known as untrained"
    assert torch.equal(logits(loaded(tmp_path / "again")), logits(loaded(out)))
    assert verify(tmp_path / "again").ok
    with pytest.raises(SpecError, match="would contradict"):
        composer.build_folder(document(), out, tmp_path / "other")


def test_changed_weights_and_configs_are_detected(tmp_path: Path):
    out = build(tmp_path / "out")
    edit_tensors(out / WEIGHTS, lambda tensors: tensors["model.norm.weight"].add_(1))
    assert {check.what for check in verify(out).failed} == {"contents"}
    for changes in ({"norm_type": "layer"}, {"residual_dropout": 0.5}, {"hidden_act": "gelu"}, {"vocab_size": 98}):
        other = build(tmp_path / "-".join(changes))
        edit_config(other, **changes)
        assert "config" in {check.what for check in verify(other).failed}


def test_a_dry_run_writes_nothing(tmp_path: Path):
    report = composer.build_folder(document(), out=tmp_path / "out", fresh=True, dry_run=True)
    assert report.dry_run
    assert len(report.plan.fresh) == len(report.plan.parameters) == 20
    assert not os.listdir(tmp_path)


def test_only_what_a_build_wrote_is_replaced(tmp_path: Path):
    out = build(tmp_path / "out")
    with pytest.raises(BuildError, match="exists already"):
        build(out)
    build(out, "lawcat", force=True)
    assert sorted(os.listdir(out)) == sorted(FILES)
    (out / "notes.txt").write_text("mine")
    with pytest.raises(BuildError, match=r"holds what no build wrote \(notes.txt\)"):
        build(out, force=True)


def test_failed_builds_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(build_module, "complete_folder", broken)
    with pytest.raises(BuildError, match="No space left"):
        build(tmp_path / "deep" / "out")
    assert not os.listdir(tmp_path)


def test_progress_ends_at_the_whole(tmp_path: Path):
    seen: list[tuple[str, int, int]] = []
    build(tmp_path / "out", progress=lambda *step: seen.append(step))
    name, done, total = seen[-1]
    assert (name, done) == (WEIGHTS, total)


def test_specs_resolved_on_a_source_are_refused(tmp_path: Path):
    resolved = resolve(load_spec(document(), ["trunk=null"]), resolve(load_spec(document())).dimensions)
    with pytest.raises(BuildError, match="resolved against a source"):
        build_folder(resolved, None, tmp_path / "out", spec_document={})


def test_from_and_fresh_exclude_each_other(tmp_path: Path):
    out = tmp_path / "out"
    for options, message in (
        ({"source": tmp_path, "fresh": True}, "not both"),
        ({}, "no source is named"),
        ({"fresh": True, "revision": "main"}, "leave one of them out"),
    ):
        with pytest.raises(BuildError, match=message):
            composer.build_folder(document(), out=out, **options)
        if "tokenizer" not in options:
            with pytest.raises(BuildError, match=message):
                composer.build(document(), **options)
    with pytest.raises(SpecError, match="has no `trunk`"):
        composer.build("lawcat", fresh=True)
    with pytest.raises(BuildError, match="no source is named: set `source=SOURCE`"):
        composer.explain("lawcat")
    assert not os.listdir(tmp_path)


def test_explain_uses_the_trunk_of_the_spec(tmp_path: Path):
    out = build(tmp_path / "out")
    own, on_source = (
        composer.explain(document("lolcats")),
        composer.explain(document("lolcats"), overrides=["trunk=null"], source=out),
    )
    assert own.hash != on_source.hash
    assert (own.on, on_source.on) == ("its own trunk", str(out))
    assert own.model_dump(exclude={"hash", "on"}) == on_source.model_dump(exclude={"hash", "on"})


def test_every_parameter_has_a_place_in_the_plan():
    resolved = resolve(load_spec(document("lawcat", **TRUNKS["classic"])))
    wanted = own_parameters(resolved, trunk_from(resolved, "float32"))
    model = composer.build(document("lawcat", **TRUNKS["classic"]), fresh=True)
    assert {name: fresh.shape for name, fresh in wanted.items()} == {
        name: tuple(parameter.shape) for name, parameter in model.named_parameters()
    }


def test_models_too_large_for_memory_or_disk_are_refused_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    spec = document("lolcats", vocabulary=2**31, width=2**12, heads=4)
    with pytest.raises(BuildError, match=r"Not enough memory for the parameters of x: it needs 35,\d{3},\d{3},\d{3},\d{3} bytes"):
        composer.build(spec, fresh=True)
    with pytest.raises(BuildError, match="No space left for"):
        composer.build_folder(spec, out=tmp_path / "out", fresh=True)
    monkeypatch.setattr(build_module, "check_space", lambda *_: None)  # a disk that would take it, one parameter after the other
    with pytest.raises(BuildError, match=r"Not enough memory for model\.embed_tokens\.weight: it needs 35,184,372,088,832 bytes"):
        composer.build_folder(spec, out=tmp_path / "out", fresh=True)
    assert not any(tmp_path.iterdir())
    with pytest.raises(SpecError, match="expected a number of at most 100000"):
        composer.build(document("softmax", labels=20_000_000), fresh=True)
