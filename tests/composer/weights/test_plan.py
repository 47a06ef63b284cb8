"""The plan has an origin for every parameter and a use for every tensor of the source, and rewrites only what must change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from composer.errors import BuildError
from composer.spec.resolve import fresh_parameters
from composer.weights.plan import FRESH_FILE, Plan, notes_on
from converters.source import open_source
from converters.trunk import list_expected_tensors
from tests.checkpoints import edit_config, edit_tensors, llama
from tests.composer.weights.students import LAWCAT, LOLCATS, SOFTMAX, build, plan_for, resolved_for


@pytest.mark.parametrize("spec", [SOFTMAX, LOLCATS, LAWCAT], ids=lambda spec: spec["name"])
@pytest.mark.parametrize("sharded", [False, True])
def test_both_sides_are_covered(tmp_path: Path, spec: dict, sharded: bool):
    folder = llama(tmp_path / "source", sharded=sharded)
    plan, source = plan_for(folder, spec), open_source(folder)
    fresh = fresh_parameters(resolved_for(folder, spec))
    assert set(plan.inherited) == set(list_expected_tensors(source.trunk))
    assert {name: entry.shape for name, entry in plan.fresh.items()} == {name: entry.shape for name, entry in fresh.items()}
    assert {entry.tensor for entry in plan.inherited.values()} == set(source.tensors)
    assert not plan.dropped
    assert {shard.file for shard in plan.shards} == set(source.shards)


def test_plans_survive_json(tmp_path: Path):
    plan = plan_for(llama(tmp_path), LAWCAT)
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


@pytest.mark.parametrize("sharded", [False, True])
def test_unchanged_files_are_linked_under_names_that_loaders_do_not_prefer(tmp_path: Path, sharded: bool):
    plan = plan_for(llama(tmp_path, sharded=sharded), LAWCAT)
    count = len(plan.shards)
    assert [shard.action for shard in plan.shards] == ["link"] * count
    assert [shard.output for shard in plan.shards] == [f"source-{k}-of-{count}.safetensors" for k in range(1, count + 1)]
    assert plan.bytes("rewrite") == 0
    assert plan.fresh_bytes == sum(4 * torch.Size(entry.shape).numel() for entry in plan.fresh.values()) > 0


def test_other_dtypes_rewrite_only_changed_files(tmp_path: Path):
    folder = llama(tmp_path, sharded=True)
    first = open_source(folder).tensors["model.embed_tokens.weight"].file
    edit_tensors(first, lambda tensors: tensors.update({name: tensor.half() for name, tensor in tensors.items()}))
    plan = plan_for(folder, LOLCATS, dtype="float16")
    assert [shard.file for shard in plan.shards if shard.action == "link"] == [first.name]
    assert all("converted to float16" in shard.reason for shard in plan.shards if shard.action == "rewrite")
    assert {entry.dtype for entry in plan.parameters.values()} == {"float16"}
    assert plan.dtype == "float16"


def test_without_a_dtype_tensors_keep_their_dtype(tmp_path: Path):
    folder = llama(tmp_path)
    edit_tensors(folder / "model.safetensors", lambda t: t.update({"model.norm.weight": t["model.norm.weight"].half()}))
    plan = plan_for(folder, LAWCAT)
    assert plan.parameters["model.norm.weight"].dtype == "float16"
    assert plan.parameters["lm_head.weight"].dtype == plan.dtype == "float32"


def test_students_keep_parameters_that_the_new_spec_shares(tmp_path: Path):
    build(llama(tmp_path / "source"), tmp_path / "student", LOLCATS)
    plan = plan_for(tmp_path / "student", LOLCATS)
    assert not plan.fresh
    assert not plan.dropped
    assert [shard.action for shard in plan.shards] == ["link", "link"]


def test_plans_list_kept_fresh_and_dropped_parameters(tmp_path: Path):
    build(llama(tmp_path / "source"), tmp_path / "student", LOLCATS)
    wider = {**LOLCATS, "head": {**LOLCATS["head"], "feature_map": {"kind": "hedgehog", "dim": 6}}}
    plan = plan_for(tmp_path / "student", wider)
    kept = {name for name in plan.inherited if ".composed." in name}
    assert kept
    assert all("window" in name for name in kept)
    assert plan.fresh
    assert set(plan.fresh) == set(plan.dropped)
    assert all("its shape is [4, 8, 4], this spec's is [4, 8, 6]" in entry.reason for entry in plan.dropped.values())
    actions = {shard.file: shard for shard in plan.shards}
    assert actions[FRESH_FILE].action == "rewrite"
    assert f"{len(plan.dropped)} dropped" in actions[FRESH_FILE].reason
    assert actions["source-1-of-1.safetensors"].action == "link"


def test_students_rebuilt_as_softmax_drop_their_heads(tmp_path: Path):
    build(llama(tmp_path / "source"), tmp_path / "student", LOLCATS)
    plan = plan_for(tmp_path / "student", SOFTMAX)
    assert plan.dropped
    assert {entry.reason for entry in plan.dropped.values()} == {"this spec has no such parameter"}
    assert {shard.file: shard.action for shard in plan.shards}[FRESH_FILE] == "leave"
    assert not plan.fresh


def tied_with_a_copy(folder: Path, factor: float) -> Path:
    llama(folder, tie_word_embeddings=True)
    edit_tensors(
        folder / "model.safetensors",
        lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"] * factor}),
    )
    return folder


def test_a_second_copy_of_a_tied_matrix_is_dropped_and_its_file_linked(tmp_path: Path):
    plan = plan_for(tied_with_a_copy(tmp_path, 1.0), SOFTMAX)
    assert "a copy of the embedding" in plan.dropped["lm_head.weight"].reason
    assert [shard.action for shard in plan.shards] == ["link"]


def test_separate_output_matrices_of_tied_models_are_refused(tmp_path: Path):
    with pytest.raises(BuildError, match=r"lm_head\.weight that differs.*tie_word_embeddings"):
        plan_for(tied_with_a_copy(tmp_path, 1.5), SOFTMAX)


def test_old_rotary_buffers_are_dropped_by_name_and_do_not_stop_a_link(tmp_path: Path):
    folder, name = llama(tmp_path), "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_tensors(folder / "model.safetensors", lambda tensors: tensors.update({name: torch.ones(4)}))
    plan = plan_for(folder, SOFTMAX)
    assert "rope_theta" in plan.dropped[name].reason
    assert [shard.action for shard in plan.shards] == ["link"]


def test_unused_config_keys_are_noted(tmp_path: Path):
    folder = llama(tmp_path)
    edit_config(folder, unsloth_fixed=True)
    assert "unsloth_fixed" in plan_for(folder, SOFTMAX).notes[0]


def test_unused_projections_are_noted(tmp_path: Path):
    latents = {"compose": 1, "name": "x", "head": {"memory": [{"kind": "latents", "size": 8}]}}
    folder = llama(tmp_path)
    assert plan_for(folder, latents).notes == ("q_proj and k_proj are kept, and not used by heads made of latents alone: `head`.",)
    assert plan_for(folder, LOLCATS).notes == ()


def test_bidirectional_students_are_noted_to_generate_no_text(tmp_path: Path):
    both = {**SOFTMAX, "direction": "bidirectional"}
    folder = llama(tmp_path)
    first, second = plan_for(folder, both).notes
    assert first == "The spec is bidirectional, so this model cannot generate. For a classifier, add a `trunk` with `labels`."
    assert second.startswith("Attention is bidirectional from now on")
    trunk = open_source(folder).trunk
    assert notes_on(resolved_for(folder, both), trunk, fresh=True) == (first,)
    assert notes_on(resolved_for(folder, both), replace(trunk, labels=2), fresh=True) == ()
