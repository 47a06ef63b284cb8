"""Sources whose values and keys have different sizes, such as multi-head latent attention: figures, kernels, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import composer
from composer.errors import BuildError, ExportError, SourceError, SpecError
from composer.exporting.folder import causal
from composer.spec.recipe import Lora
from composer.training.finetune import add_adapters, projections
from composer.vllm.folder import check_servable
from converters.errors import ConfigError
from converters.hybrid_layers import layers_without_attention
from tests.checkpoints import edit_config
from tests.composer.exporting.models import randomised
from tests.composer.hosts.families import small, tokens
from tests.composer.vllm.test_served_heads import check_served

TOKENS = 100


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The same model with values of several sizes and keys of 16 numbers."""
    folders = {}
    for size in (4, 8, 16):
        folders[size] = tmp_path_factory.mktemp("source") / str(size)
        small("deepseek_v3", v_head_dim=size).save_pretrained(folders[size])
    return folders


def state_bytes(spec: str, source: Path) -> int:
    return composer.explain(spec, source, sequence=TOKENS).groups[0].state_bytes


def test_states_are_smaller_by_the_factor_of_the_values(sources: dict[int, Path]) -> None:
    """4 heads in float32. A convolution also holds 3 queries and keys, or values."""
    for size, source in sources.items():
        assert state_bytes("gated-delta", source) == 4 * 4 * 16 * size + 3 * 4 * (4 + 4) * 16
        assert state_bytes("gated-deltanet", source) == 4 * 4 * 16 * size + 3 * 4 * (4 * 16 + 4 * 16 + 4 * size)
        # Keys and values of 4 heads, and a position of 8 bytes.
        assert state_bytes("softmax", source) == TOKENS * (4 * 4 * (16 + size) + 8)
        # 2 × 16 features of hedgehog, and a mass beside the values.
        assert state_bytes("lawcat", source) == 4 * 4 * 2 * 16 * (size + 1) + 3 * 4 * (4 + 4) * 16
        # 64 pairs, and a state of 128 features.
        assert state_bytes("lolcats", source) == 64 * (4 * 4 * (16 + size) + 8) + 4 * 4 * 128 * (size + 1)


def test_explain_shows_the_sizes(sources: dict[int, Path]) -> None:
    """The source's cache has the compressed vector of 12 numbers and the rotated 6 numbers of a key."""
    explanation = composer.explain("lolcats", sources[8], sequence=TOKENS)
    (group,) = explanation.groups
    assert (group.head_dim, group.value_dim, group.kv_cache_bytes) == (16, 8, TOKENS * (12 + 6) * 4)
    text = str(explanation)
    assert "4 query heads (4 key heads), keys of 16 and values of 8 numbers, in layers 0 to 1" in text
    assert "of compressed keys and values" in text
    assert "keys of" not in str(composer.explain("lolcats", sources[16], sequence=TOKENS))


@pytest.mark.parametrize(("family", "more"), [("deepseek_v3", {"rope_interleave": False}), ("deepseek_v3", {"q_lora_rank": None})])
@torch.no_grad()
def test_variants_of_latent_attention_equal_their_source(family: str, more: dict[str, Any]) -> None:
    source, ids = small(family, **more), tokens()
    student = composer.build("softmax", source)
    torch.testing.assert_close(student(ids).logits, source(ids, use_cache=False).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("spec", "backend"), [("lolcats", "triton"), ("softmax", "fla"), ("window", "triton")])
def test_kernels_for_one_size_refuse(spec: str, backend: str, sources: dict[int, Path]) -> None:
    """Other forms compute these steps instead."""
    reasons = {}
    for size in (8, 16):
        (group,) = composer.explain(spec, sources[size], device="cuda", dtype="bfloat16", backend=backend).groups
        reasons[size] = " ".join(part.why_this_form for part in group.parts)
    assert "it requires values and keys of the same size" in reasons[8]
    assert "it requires values and keys of the same size" not in reasons[16]


def test_adapters_find_the_projections_behind_the_compressed_vectors() -> None:
    student = composer.build("softmax", small("deepseek_v3"))
    names = projections(student, ("q", "k", "v", "o"))  # pyright: ignore[reportArgumentType]
    assert names == ["self_attn.q_b_proj", "self_attn.kv_b_proj", "o_proj"]
    add_adapters(student, Lora(rank=2), 0)  # pyright: ignore[reportArgumentType]
    adapted = {name.partition(".lora_")[0] for name, _ in student.named_parameters() if ".lora_" in name}
    assert len(adapted) == 2 * len(names)


def test_heads_that_mix_inputs_need_projections_of_their_own() -> None:
    mixed = {"compose": 1, "name": "mixed", "head": {"mix_input": {"kind": "conv", "feeds": "qk"}, "memory": ["full"]}}
    with pytest.raises(BuildError, match="no separate projections of queries and of keys"):
        composer.build(mixed, small("deepseek_v3", q_lora_rank=None))


def test_attention_weights_have_all_tokens() -> None:
    """Distillation computes weights with unit vectors as values. A value here has fewer numbers than a key."""
    student, ids = composer.build("softmax", small("deepseek_v3")), tokens()
    with torch.no_grad():
        attended = student(ids, output_attentions=True, use_cache=False).attentions
    for weights in attended:
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 23), rtol=0, atol=1e-5)


def test_students_are_served_in_an_engine_where_no_head_is_softmax() -> None:
    student = randomised(composer.build("lolcats", small("deepseek_v3"), overrides=["recipe=null"]))
    check_servable(student.config)
    check_served(student)
    with pytest.raises(ValueError, match="keys of 16 numbers and values of 8, and vLLM caches keys and values of one size"):
        check_servable(composer.build("softmax", small("deepseek_v3")).config)


def test_exports_rotate_whole_keys() -> None:
    with pytest.raises(ExportError, match="family deepseek_v3 are not exported: only a part of each key is rotated"):
        causal(composer.build("softmax", small("deepseek_v3")))


def test_a_resolved_spec_is_for_values_of_one_size(sources: dict[int, Path], tmp_path: Path) -> None:
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(composer.show("lolcats", sources[8]).yaml)
    composer.build(resolved, sources[8])
    with pytest.raises(SpecError, match=r"value_dim 8 \(here 16\)"):
        composer.build(resolved, sources[16])


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("deepseek_v3", {"v_head_dim": 0}, "v_head_dim"),
        ("deepseek_v3", {"qk_nope_head_dim": "many"}, "qk_nope_head_dim"),
    ],
)
def test_configs_with_wrong_sizes_are_refused(family: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    small(family).save_pretrained(tmp_path / "source")
    edit_config(tmp_path / "source", **changes)
    with pytest.raises(SourceError, match=message):
        composer.build_folder("softmax", tmp_path / "source", tmp_path / "built")


def test_layers_of_a_kimi_checkpoint_count_from_one() -> None:
    config = {"linear_attn_config": {"full_attn_layers": [2, 4], "kda_layers": [1, 3]}}
    assert layers_without_attention("kimi_linear", config, 4) == (0, 2)
    with pytest.raises(ConfigError, match="counted from 1 to 3"):
        layers_without_attention("kimi_linear", config, 3)
