"""A built folder loads through the Auto classes, computes what its source does, shares its bytes and never changes it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

import composer
from composer.building import folder as build_module
from composer.errors import BuildError
from composer.weights import sources
from composer.weights.plan import FRESH_FILE
from composer.weights.record import CARD, RECORD, read_record
from composer.weights.sources import open_model
from converters.source import open_source
from tests.checkpoints import LLAMA3_ROPE, edit_config, edit_tensors, fingerprint, llama, logits
from tests.composer.exporting.models import of_file, uncompared
from tests.composer.hosts.families import small
from tests.composer.weights.students import LAWCAT, LOLCATS, SOFTMAX, build, loaded, resolved_for, weights
from tests.gguf_files import gguf_model, write_gguf

VARIANTS = {
    "gqa": {},
    "mha": {"num_key_value_heads": 4},
    "tied": {"tie_word_embeddings": True},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "head_dim": {"head_dim": 12},
    "llama3": {"rope_parameters": LLAMA3_ROPE, "rms_norm_eps": 1e-5},
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 5e-5), ("float64", 1e-9)])
def test_a_softmax_student_of_every_variant_equals_its_source(tmp_path: Path, variant: dict, dtype: str, tolerance: float):
    folder = llama(tmp_path / "source", sharded=True, dtype=dtype, **variant)
    build(folder, tmp_path / "out")
    expected = logits(LlamaForCausalLM.from_pretrained(folder, dtype=dtype))
    student_logits = logits(loaded(tmp_path / "out"))
    assert student_logits.dtype == getattr(torch, dtype)
    assert (student_logits - expected).abs().max() < tolerance


def test_old_and_new_styles_of_config_build_the_same_model(tmp_path: Path):
    folder = llama(tmp_path / "source", rope_parameters=LLAMA3_ROPE)
    expected = logits(LlamaForCausalLM.from_pretrained(folder))
    scaling = {key: value for key, value in LLAMA3_ROPE.items() if key != "rope_theta"}
    edit_config(
        folder, rope_parameters=..., rope_theta=LLAMA3_ROPE["rope_theta"], rope_scaling=scaling, dtype=..., torch_dtype="float32"
    )
    build(folder, tmp_path / "out")
    assert (logits(loaded(tmp_path / "out")) - expected).abs().max() < 5e-5


@pytest.mark.parametrize("spec", [LOLCATS, LAWCAT], ids=lambda spec: spec["name"])
def test_students_with_fresh_parameters_load_with_their_record(sharded: Path, tmp_path: Path, spec: dict):
    report = build(sharded, tmp_path / "out", spec)
    assert torch.isfinite(logits(loaded(tmp_path / "out"))).all()
    record = read_record(tmp_path / "out")
    assert record is not None
    assert record.resolved == resolved_for(sharded, spec)
    assert record.spec_hash == report.spec_hash == record.resolved.hash
    assert record.spec == spec
    assert record.plan == report.plan
    assert (record.source.folder, record.source.repo_id) == (str(sharded), None)
    assert record.source.config_sha256 == open_source(sharded).config_sha256
    assert "torch" in record.versions
    card = (tmp_path / "out" / "README.md").read_text()
    assert record.spec_hash in card
    assert spec["name"] in card


def test_unchanged_files_are_linked(sharded: Path, tmp_path: Path):
    report = build(sharded, tmp_path / "out", LAWCAT)
    for shard in report.plan.shards:
        assert os.path.samefile(sharded / shard.file, tmp_path / "out" / str(shard.output))
        assert report.files[str(shard.output)].how == "linked"
    written = sum(path.stat().st_size for path in (tmp_path / "out").iterdir() if path.stat().st_nlink == 1)
    assert report.bytes_shared == sum((sharded / shard.file).stat().st_size for shard in report.plan.shards)
    assert report.bytes_written == written
    assert (tmp_path / "out" / FRESH_FILE).stat().st_nlink == 1
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_a_copy_shares_nothing(sharded: Path, tmp_path: Path):
    report = build(sharded, tmp_path / "out", copy=True)
    assert {file.how for file in report.files.values()} == {"copied"}
    assert report.bytes_shared == 0
    assert all(path.stat().st_nlink == 1 for path in (tmp_path / "out").iterdir())
    assert all(path.stat().st_nlink == 1 for path in sharded.iterdir())
    for shard in report.plan.shards:
        assert (sharded / shard.file).read_bytes() == (tmp_path / "out" / str(shard.output)).read_bytes()


def test_the_source_is_only_read(sharded: Path, tmp_path: Path):
    before = fingerprint(sharded)
    build(sharded, tmp_path / "linked", LAWCAT)
    build(sharded, tmp_path / "copied", LAWCAT, copy=True)
    build(sharded, tmp_path / "turned", LAWCAT, dtype="bfloat16")
    assert fingerprint(sharded) == before


@pytest.mark.parametrize("size", ["20KB", "1GB"])
def test_saving_a_trained_student_over_itself_never_reaches_the_source(sharded: Path, tmp_path: Path, size: str):
    before, out = fingerprint(sharded), tmp_path / "out"
    build(sharded, out, LOLCATS)
    model = loaded(out)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    model.save_pretrained(out, max_shard_size=size)
    (out / "tokenizer.json").write_text("changed")
    assert fingerprint(sharded) == before
    again = loaded(out)
    assert all(torch.equal(first, other) for first, other in zip(model.parameters(), again.parameters(), strict=True))


def test_small_files_are_copied(source: Path, tmp_path: Path):
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "rag.jinja").write_text("template")
    (source / "README.md").write_text("the source's own card")
    build(source, tmp_path / "out")
    for name in open_source(source).small_files:
        assert (source / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
        assert not os.path.samefile(source / name, tmp_path / "out" / name)
    assert (tmp_path / "out" / "additional_chat_templates" / "rag.jinja").exists()
    assert "own card" not in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("packed", [False, True])
def test_builds_of_a_source_and_of_its_copy_have_the_same_bytes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
):
    """This includes quantised sources, which are unpacked anew. The record and the card name folders."""
    first = write_gguf(tmp_path / "tiny.Q8_0.gguf", gguf_model("llama")) if packed else source
    (tmp_path / "elsewhere").mkdir()
    second = (shutil.copy if packed else shutil.copytree)(first, tmp_path / "elsewhere" / first.name)
    contents = []
    for path in (first, Path(second)):
        monkeypatch.setenv("COMPOSER_CACHE", str(path.with_name("cache")))
        out = composer.build_folder("lolcats", path, path.with_name("out"), seed=3, dtype="bfloat16").out
        assert composer.verify(out).ok
        contents.append({file.name: file.read_bytes() for file in out.iterdir() if file.name not in (RECORD, CARD)})
    assert contents[0] == contents[1]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_settings_that_need_a_cache_of_keys_and_values_are_dropped(family: str, tmp_path: Path):
    """In older models they are in config.json."""
    small(family).save_pretrained(tmp_path / "source")
    settings = {"cache_implementation": "static", "cache_config": {"nbits": 4}, "prompt_lookup_num_tokens": 3}
    settings |= {"output_attentions": True, "assistant_early_exit": 1, "use_cache": False}
    for name, added in (("generation_config.json", settings), ("config.json", {"cache_implementation": "static"})):
        file = tmp_path / "source" / name
        file.write_text(json.dumps(json.loads(file.read_text()) | added | {"eos_token_id": None}))
    build(tmp_path / "source", tmp_path / "out", LAWCAT)
    assert composer.verify(tmp_path / "out").ok
    with uncompared():
        composer.export(tmp_path / "out", tmp_path / "exported")
    for folder in ("out", "exported"):
        kept = json.loads((tmp_path / folder / "generation_config.json").read_text())
        assert {*settings} & {*kept} == {"use_cache"}
    ids = torch.arange(3, 9)[None]
    assert loaded(tmp_path / "out").generate(ids, max_new_tokens=2, pad_token_id=0).shape == (1, 8)
    of_file(loaded(tmp_path / "out"))[1].generate(ids, max_new_tokens=2, pad_token_id=0)


def test_a_student_of_a_student_keeps_what_was_trained(source: Path, tmp_path: Path):
    build(source, tmp_path / "first", LOLCATS)
    edit_tensors(tmp_path / "first" / FRESH_FILE, lambda t: t.update({name: tensor + 1 for name, tensor in t.items()}))
    trained = weights(tmp_path / "first")
    wider = {**LOLCATS, "head": {**LOLCATS["head"], "feature_map": {"kind": "hedgehog", "dim": 6}}}
    report = build(tmp_path / "first", tmp_path / "second", wider, seed=3)
    stored = weights(tmp_path / "second")
    kept = [name for name in report.plan.inherited if ".composed." in name]
    assert kept
    assert all(torch.equal(stored[name], trained[name]) for name in report.plan.inherited)
    assert {name: tuple(stored[name].shape) for name in report.plan.fresh} == {
        name: entry.shape for name, entry in report.plan.fresh.items()
    }
    loaded(tmp_path / "second")
    record = read_record(tmp_path / "second")
    assert record is not None
    assert record.source.family == "composed"
    assert record.source.spec_hash == read_record(tmp_path / "first").spec_hash


@pytest.mark.parametrize("size", ["20KB", "1GB"])
def test_students_saved_by_transformers_are_sources(sharded: Path, tmp_path: Path, size: str):
    build(sharded, tmp_path / "first", LOLCATS)
    model = loaded(tmp_path / "first")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    model.save_pretrained(tmp_path / "saved", max_shard_size=size)
    report = build(tmp_path / "saved", tmp_path / "second", LOLCATS)
    assert not report.plan.fresh
    assert not report.plan.notes
    assert torch.equal(logits(loaded(tmp_path / "second")), logits(model))


def test_softmax_from_a_student_equals_the_teacher(source: Path, tmp_path: Path):
    build(source, tmp_path / "student", LAWCAT)
    build(tmp_path / "student", tmp_path / "back", SOFTMAX)
    expected = logits(LlamaForCausalLM.from_pretrained(source))
    assert (logits(loaded(tmp_path / "back")) - expected).abs().max() < 5e-5


def test_old_buffers_and_copies_load_without_a_warning(tmp_path: Path):
    folder = llama(tmp_path / "source", tie_word_embeddings=True)
    extra = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_tensors(
        folder / "model.safetensors",
        lambda t: t.update({extra: torch.ones(4), "lm_head.weight": t["model.embed_tokens.weight"] + 0}),
    )
    build(folder, tmp_path / "out")
    model = loaded(tmp_path / "out")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    build(tmp_path / "out", tmp_path / "again")
    loaded(tmp_path / "again")


def test_a_dry_run_plans_and_checks_and_writes_nothing(source: Path, tmp_path: Path):
    report = build(source, tmp_path / "out", LAWCAT, dry_run=True)
    assert report.dry_run
    assert report.plan.fresh
    assert os.listdir(tmp_path) == ["source"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_text("")
    with pytest.raises(BuildError, match="exists already"):
        build(source, tmp_path / "out", LAWCAT, dry_run=True)


def test_progress_ends_at_the_whole_of_each_written_file(sharded: Path, tmp_path: Path):
    seen: dict[str, list[tuple[int, int]]] = {}

    def progress(name: str, done: int, total: int) -> None:
        seen.setdefault(name, []).append((done, total))

    report = build(sharded, tmp_path / "out", LAWCAT, copy=True, progress=progress)
    assert set(seen) == set(report.files)
    assert all(steps[-1][0] == steps[-1][1] for steps in seen.values())


def test_a_spec_resolved_against_another_model_is_refused(source: Path, tmp_path: Path):
    other = llama(tmp_path / "other", num_key_value_heads=4)
    with pytest.raises(BuildError, match="resolved against another model"):
        build_module.build_folder(resolved_for(other, SOFTMAX), open_model(source), tmp_path / "out", spec_document=SOFTMAX)


def test_models_in_the_hub_cache_are_linked_to_their_blobs(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A large one has no hash: nobody has read it, and the name of a blob is what a server has sent."""
    monkeypatch.setattr(build_module, "HASHED_ANYWAY", 0)
    commit, digest = "0" * 40, fingerprint(source)["model.safetensors"][0]
    cache = tmp_path / "models--owner--tiny"
    snapshot = cache / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for path in source.iterdir():
        blob = cache / "blobs" / (digest if path.name == "model.safetensors" else f"{abs(hash(path.name)):040x}")
        shutil.copyfile(path, blob)
        (snapshot / path.name).symlink_to(blob)
    monkeypatch.setattr(sources, "fetch", lambda *_: (snapshot, commit))
    fetched = open_model("owner/tiny", "main")
    out = tmp_path / "out"
    report = build_module.build_folder(resolved_for(source, LAWCAT), fetched, out, spec_document=LAWCAT)
    stored = report.files["source-1-of-1.safetensors"]
    assert (stored.how, stored.sha256) == ("linked", None)
    assert os.path.samefile(cache / "blobs" / digest, out / "source-1-of-1.safetensors")
    assert not any(path.is_symlink() for path in out.iterdir())
    record = read_record(out)
    assert record is not None
    assert (record.source.repo_id, record.source.revision, record.source.commit) == ("owner/tiny", "main", commit)
    assert "base_model: owner/tiny" in (out / "README.md").read_text()
    assert commit in (out / "README.md").read_text()
    assert (out / RECORD).exists()
