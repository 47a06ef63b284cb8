"""A built model is loaded from its folder. Invalid folders are rejected, adapters included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import composer
from composer.errors import ComposerError, GraphError, SourceError, SpecError
from composer.graph import rules
from composer.weights.verify import verify
from tests.checkpoints import edit_config, llama


@pytest.fixture
def student(tmp_path: Path) -> Path:
    llama(tmp_path / "source")
    composer.build_folder("lolcats", tmp_path / "source", tmp_path / "student", copy=True)
    return tmp_path / "student"


def test_weights_without_an_effect_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a model may be older than the rule against such specs."""
    head = {"feature_map": "elu", "memory": [{"kind": "window", "size": 4, "weight": "learned"}, "delta"], "read": "sum"}
    spec = {"compose": 1, "name": "idle", "head": head}
    source = llama(tmp_path / "source")
    with pytest.raises(SpecError, match="remove `weight`"):
        composer.build_folder(spec, source, tmp_path / "student")
    with monkeypatch.context() as before:
        before.setattr(rules, "IDLE", ())
        composer.build_folder(spec, source, tmp_path / "student")
    assert composer.load(tmp_path / "student")(torch.tensor([[3, 5, 7]])).logits.isfinite().all()
    assert verify(tmp_path / "student").ok


def test_dtypes_are_words_or_torch_dtypes(student: Path) -> None:
    for dtype in ("bfloat16", torch.bfloat16):
        assert composer.load(student, dtype=dtype).dtype == torch.bfloat16
    with pytest.raises(ComposerError, match=r'^dtype: "int8" is unknown\. Known: float32, bfloat16, float16, float64'):
        composer.load(student, dtype=torch.int8)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("device", ["gpuu", "cuda:99", "mps:3"])
def test_missing_devices_are_refused(student: Path, device: str) -> None:
    with pytest.raises(ComposerError, match=f'there is no device "{device}" here: '):
        composer.load(student, device=device)
    assert composer.load(student, device="meta").device == torch.device("meta")


def refused(folder: Path) -> str:
    with pytest.raises(SourceError) as caught:
        composer.load(folder)
    assert len(str(caught.value)) < 1000
    return str(caught.value)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"composed"', "{", "", '{"a":' + "[" * 500_000 + "]" * 500_000 + "}"])
def test_malformed_configs_are_refused(student: Path, text: str) -> None:
    (student / "config.json").write_text(text)
    assert "config.json" in refused(student)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", []),
        ("model_type", {}),
        ("labels", 20_000_000),
        ("vocab_size", 2**30),
        ("eos_token_id", 10**30),
        ("adapter", 5),
    ],
)
def test_configs_with_invalid_values_are_refused(student: Path, key: str, value: Any) -> None:
    edit_config(student, **{key: value})
    assert refused(student)


@pytest.mark.parametrize("adapter", ["..", ".", "", "a/b", "/etc", "a\0b", "x" * 5000])
def test_adapters_are_inside_the_folder(student: Path, adapter: str) -> None:
    edit_config(student, adapter=adapter)
    assert "expected the name of a folder beside it" in refused(student)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, ""),
        ({"r": 10**9}, "adapters of rank 1000000000"),
        ({"r": "2"}, "adapters of rank '2'"),
        ({"rank_pattern": {"q_proj": 10**9}}, "'rank_pattern': {'q_proj': 1000000000}, which these adapters do not support"),
        ({"rank_pattern": None}, "cannot be loaded"),
        ({"init_lora_weights": "pissa"}, "'init_lora_weights': 'pissa', which these adapters"),
        ({"exclude_modules": "(a+)+$"}, "'exclude_modules': '(a+)+$', which these adapters"),
        ({"target_modules": "(a+)+$"}, "expected some of q_proj, k_proj, v_proj, o_proj"),
        ({"target_modules": ["q_proj", "mlp.dense"]}, "or of the names that hosts have for these, with their attention, such as"),
        ({"target_modules": ["dense"]}, "has target_modules: ['dense']; expected"),
        ({"target_modules": [["q_proj"]]}, "has target_modules: [['q_proj']]; expected"),
        ({"lora_alpha": 0}, "lora_alpha: 0; expected"),
        ({"peft_type": "VERA"}, "does not describe LoRA"),
        ({"peft_type": []}, "does not describe LoRA"),
    ],
)
def test_adapters_have_the_rank_of_their_weights(student: Path, change: dict[str, Any], message: str) -> None:
    """PEFT allocates by its settings before it reads the weights."""
    (student / "adapter").mkdir()
    edit_config(student, adapter="adapter")
    names = [f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_" for layer in range(2)]
    weights = {f"{name}{side}.weight": torch.ones(shape) for name in names for side, shape in (("A", (2, 32)), ("B", (32, 2)))}
    save_file(weights, student / "adapter" / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    (student / "adapter" / "adapter_config.json").write_text(json.dumps(settings | change))
    if not message:
        assert composer.load(student)
    else:
        assert message in refused(student)
        (student / "adapter" / "adapter_config.json").write_text("[]")
        assert "does not describe LoRA" in refused(student)
        (student / "adapter" / "adapter_config.json").unlink()
        (student / "adapter" / "adapter_config.json").symlink_to(student.parent / "source" / "config.json")
        assert "leads out of its folder" in refused(student)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": []}, "has heads for 0 layers, and the model has 2"),
        ({"heads": {}}, "has no head head, which a layer names"),
        ({"layers": [[{"head": "head", "heads": 2, "key_heads": 1}]] * 2}, "has a layer whose groups are not its heads"),
        ({"layers": [[{"head": "head", "heads": 4, "key_heads": 4}]] * 2}, "splits a group of key heads"),
        (
            {"dimensions": {"hidden_size": 64, "layers": 2, "heads": 4, "key_heads": 2, "head_dim": 8, "rope_theta": 1e4}},
            "of other sizes",
        ),
        ({"name": []}, "has no spec of heads, at name"),
    ],
)
def test_invalid_unresolved_specs_are_refused(student: Path, change: dict[str, Any], message: str) -> None:
    """A config without a hash has nothing else to detect this."""
    spec = json.loads((student / "config.json").read_text())["spec"]
    edit_config(student, spec=spec | change, spec_hash=None)
    assert message in refused(student)


def test_too_large_heads_are_refused_before_allocation(student: Path) -> None:
    spec = json.loads((student / "config.json").read_text())["spec"]
    spec["heads"]["head"]["feature_map"]["dim"] = 2**40
    edit_config(student, spec=spec, spec_hash=None)
    with pytest.raises(ComposerError, match="lacks parameters of its spec|keeps|size|dim"):
        composer.load(student)


def test_cyclic_edges_are_refused(student: Path) -> None:
    spec = json.loads((student / "config.json").read_text())["spec"]
    spec["heads"]["head"]["graph"] = ["window -> state", "state -> window"]
    edit_config(student, spec=spec, spec_hash=None)
    with pytest.raises(GraphError):
        composer.load(student)
