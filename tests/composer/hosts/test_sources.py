"""A model that cannot be a source is rejected with the reason, mismatched weights are reported before a build writes, and layers
can be kept unchanged.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import composer
from composer.errors import BuildError, SourceError, TrainingError
from composer.spec.recipe import Lora
from composer.training.finetune import add_adapters, projections
from composer.weights.record import RECORD
from composer.weights.verify import verify
from converters import hybrid_layers
from converters.hosts import REFUSED, WHOLE
from tests.checkpoints import edit_config
from tests.composer.hosts.families import HYBRIDS, PASSED, small
from tests.composer.hosts.multimodal import MULTIMODAL

DOCS = Path(__file__).parents[3] / "docs" / "sources.md"
KEPT: dict[str, Any] = {
    "compose": 1,
    "name": "kept",
    "head": {"memory": ["state"], "feature_map": "elu"},
    "layers": [{"at": "all", "use": "source"}],
}

BOUNDED: dict[str, Any] = {
    "compose": 1,
    "name": "bounded",
    "heads": {
        "near": {"position": "rope", "memory": [{"kind": "window", "size": 8, "evict": "drop"}]},
        "all": {"position": "rope", "memory": ["full"]},
    },
    "layers": [{"at": [0], "use": "near"}, {"at": [1], "use": "all"}],
}


def saved(family: str, folder: Path) -> Path:
    small(family).save_pretrained(folder)
    return folder


@torch.no_grad()
def test_an_old_name_of_rotary_positions(tmp_path: Path) -> None:
    """`su` stands for longrope if the original length is set beside it, as in transformers."""
    folder = saved("phi3", tmp_path / "source")
    rotation = {"type": "su", "original_max_position_embeddings": 64, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    edit_config(folder, rope_parameters=None, rope_scaling=rotation, rope_theta=10000.0)
    composer.build_folder("softmax", folder, tmp_path / "student")
    ids = torch.randint(3, 90, (1, 12), generator=torch.Generator().manual_seed(0))
    wanted = AutoModelForCausalLM.from_pretrained(folder)(ids).logits
    torch.testing.assert_close(composer.load(tmp_path / "student")(ids).logits, wanted, rtol=1e-4, atol=1e-4)
    edit_config(folder, rope_scaling={name: value for name, value in rotation.items() if "original" not in name})
    with pytest.raises(SourceError, match="'su', an old name of 'longrope', without rope_scaling.original_max_position_embeddings"):
        composer.build_folder("softmax", folder, tmp_path / "other")


def test_the_docs_list_what_the_law_has_passed() -> None:
    listed = DOCS.read_text(encoding="utf-8").partition("## Families")[2]
    families, _, refused = listed.partition("## What cannot be a source")
    families, _, hybrids = families.partition("Hybrids, by the same test")
    assert re.findall(r"`([a-z0-9_-]+)`", families.split("\n\n", 2)[2]) == PASSED
    hybrids, _, whole = hybrids.partition("Models that read images, whole")
    assert re.findall(r"`([a-z0-9_-]+)`", hybrids) == HYBRIDS
    assert re.findall(r"`([a-z0-9_]+)`", whole.partition("With `--text-only`")[0]) == sorted(WHOLE)
    assert set(HYBRIDS) == hybrid_layers.HYBRIDS.keys()
    assert set(re.findall(r"`([a-z0-9_-]+)`", refused.partition("| family |")[2])) == REFUSED.keys()
    assert len({*PASSED, *HYBRIDS, *MULTIMODAL}) >= 85


@pytest.mark.parametrize(
    ("spec", "family", "words"),
    [
        ("gated-delta", "gpt_oss", "layer 0 of GptOssModel has attention sinks"),
        ("lolcats", "falcon", "attention interface"),
        ("softmax", "jetmoe", "layer 0 of JetMoeModel could not be probed"),
    ],
)
def test_unsupported_sources_are_refused_with_the_reason(spec: str, family: str, words: str, tmp_path: Path) -> None:
    with pytest.raises((BuildError, SourceError), match=words):
        composer.build_folder(spec, saved(family, tmp_path / "source"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@torch.no_grad()
def test_a_gemma_4_is_a_source_if_its_layers_share_no_keys_and_have_one_size(tmp_path: Path) -> None:
    source = small("gemma4_text")
    ids = torch.randint(3, 90, (2, 23), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(composer.build("softmax", source)(ids).logits, source(ids).logits, rtol=0, atol=2e-5)
    folder = saved("gemma4_text", tmp_path / "source")
    refusals = {
        "its last 1 layers use keys and values of earlier layers": {"num_kv_shared_layers": 1},
        "have heads of another size than the others": {"per_layer_config": {"1": {"head_dim": 32}}},
    }
    for words, changed in refusals.items():
        edit_config(folder, **{"num_kv_shared_layers": 0, **changed})
        with pytest.raises(SourceError, match=f"gemma4_text cannot be a source: .*{words}"):
            composer.explain("softmax", folder)


@pytest.mark.parametrize("family", ["qwen3", "mixtral"])
@pytest.mark.parametrize("damage", ["missing", "unknown", "of another shape"])
def test_weights_that_do_not_fit_are_refused(family: str, damage: str, tmp_path: Path) -> None:
    """Transformers joins Mixtral's experts on loading. A missing expert would start at random."""
    source = saved(family, tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    name = next(name for name in sorted(tensors) if "mlp" in name or "block_sparse_moe.experts" in name)
    if damage == "missing":
        del tensors[name]
    elif damage == "unknown":
        tensors[f"{name}.other"] = tensors[name].clone()
    else:
        tensors[name] = tensors[name][:-1].clone()
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(BuildError, match="do not fit its config"):
        composer.build_folder("softmax", source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_sources_with_quantised_weights_are_refused(tmp_path: Path) -> None:
    source = saved("qwen3", tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(SourceError, match="quantised"):
        composer.build_folder("softmax", source, tmp_path / "out")


@pytest.mark.parametrize("spec", [KEPT, BOUNDED], ids=lambda spec: spec["name"])
@torch.no_grad()
def test_layers_with_the_sources_attention_are_unchanged(spec: dict[str, Any]) -> None:
    """This holds also if a window of the spec replaces the source's window."""
    source = small("gemma3_text")
    ids = torch.randint(3, 90, (2, 23))
    kept = composer.build(spec, source)
    torch.testing.assert_close(kept(ids).logits, source(ids, use_cache=False).logits, rtol=0, atol=2e-5)


@pytest.mark.parametrize("known", [True, False])
def test_a_student_of_a_source_with_local_layers_passes_verify(tmp_path: Path, known: bool) -> None:
    """This holds also for a record without the windows of its layers."""
    small("gemma2").save_pretrained(tmp_path / "source")
    composer.build_folder("softmax", tmp_path / "source", tmp_path / "student")
    record = json.loads((tmp_path / "student" / RECORD).read_text())
    assert record["trunk"]["windows"] == [8, None]
    if not known:
        del record["trunk"]["windows"]
        (tmp_path / "student" / RECORD).write_text(json.dumps(record))
    assert verify(tmp_path / "student").ok
    edit_config(tmp_path / "student", sliding_window=4)
    assert not verify(tmp_path / "student").ok


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("qwen3", ["q_proj", "k_proj", "v_proj", "o_proj"]),
        ("phi3", ["self_attn.qkv_proj", "o_proj"]),
        ("gpt_neox", ["attention.query_key_value", "attention.dense"]),
        ("gpt2", ["attn.c_attn", "attn.c_proj"]),
    ],
)
def test_adapters_find_the_projections(family: str, names: list[str]) -> None:
    student = composer.build("softmax", small(family))
    assert projections(student, ("q", "k", "v", "o")) == names  # pyright: ignore[reportArgumentType]
    add_adapters(student, Lora(rank=2), 0)  # pyright: ignore[reportArgumentType]
    adapted = {name.partition(".lora_")[0] for name, _ in student.named_parameters() if ".lora_" in name}
    assert len(adapted) == 2 * len(names)


def test_missing_projections_are_refused() -> None:
    with pytest.raises(TrainingError, match="no projection that would be `x`"):
        projections(composer.build("softmax", small("qwen3")), ("x",))  # pyright: ignore[reportArgumentType]


def test_a_mixer_needs_projections_of_its_own() -> None:
    mixed = {"compose": 1, "name": "mixed", "head": {"mix_input": {"kind": "conv", "feeds": "qk"}, "memory": ["full"]}}
    composer.build(mixed, small("qwen3"))
    with pytest.raises(BuildError, match="no separate projections of queries and of keys"):
        composer.build(mixed, small("gpt2"))
