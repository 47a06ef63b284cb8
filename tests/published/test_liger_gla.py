"""A checkpoint in Liger-GLA's layout is built with its spec, and every layer equals its formula over all pairs, for whole texts
and token by token.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import composer
from tests.checkpoints import edit_config, edit_tensors, llama
from tests.composer.cli.conftest import Compose
from tests.published.layers import CONFIG, LENGTH, SIZE, Seen, decoded, projected, put_out, rotated, whole

ATTENTION = [f"self_attn.{name}_proj" for name in "qkvo"]
TENSORS = ["input_layernorm", *ATTENTION, "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with Llama's names and a config of liger_gla."""
    folder = llama(tmp_path_factory.mktemp("liger") / "Liger-GLA", **CONFIG)
    edit_config(folder, model_type="liger_gla", architectures=["LigerGLAForCausalLM"])
    names = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    names |= {f"model.layers.{layer}.{tensor}.weight" for layer in range(2) for tensor in TENSORS}
    assert load_file(folder / "model.safetensors").keys() == names
    return folder


def formula(weights: dict[str, Tensor], layer: int, hidden: Tensor, window: int) -> Tensor:
    """Compute half softmax over the window's rotated keys, half Σ_s Σ_i softmax(q_t)_i softmax(k_s)_i Π_{s<r≤t} σ(k_r)_i^(1/16)
    v_s.
    """
    query, key, value = projected(weights, layer, hidden)
    back = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    exponents = rotated(query) @ rotated(key).mT / math.sqrt(SIZE)
    near = exponents.masked_fill((back < 0) | (back >= window), -math.inf).softmax(-1) @ value
    lost = torch.log(1 / (1 + torch.exp(-key))).cumsum(2) / 16
    survives = (lost[:, :, :, None] - lost[:, :, None]).masked_fill((back < 0)[..., None], -math.inf).exp()
    products = torch.einsum("bhti,bhsi,bhtsi->bhts", query.softmax(-1), key.softmax(-1), survives)
    return put_out(weights, layer, near / 2 + products @ value / 2)


def assert_are(seen: list[Seen], weights: dict[str, Tensor], window: int) -> None:
    for layer, inputs_of_layer in enumerate(seen):
        hidden, output = inputs_of_layer.join()
        assert output.abs().max() > 0.1
        torch.testing.assert_close(output, formula(weights, layer, hidden, window), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("settings", "window"), [([], 65), (["--set", "head.memory.0.size=64"], 64)], ids=["code", "paper"])
def test_every_layer_equals_its_formula(compose: Compose, source: Path, settings: list[str], window: int) -> None:
    result = compose("build", "published/liger-gla", "--from", source, "-o", "built", *settings)
    assert result.exit_code == 0, result.output
    assert "untrained" not in result.stdout, "it has no parameter of its own"
    model = composer.load("built", dtype="float64")
    weights = load_file(source / "model.safetensors")
    assert_are(whole(model), weights, window)
    assert_are(decoded(model, 1), weights, window)
    assert_are(decoded(model, 70), weights, window)


def test_all_weight_files_are_linked(compose: Compose, source: Path) -> None:
    report = json.loads(compose("build", "published/liger-gla", "--from", source, "-o", "built", "--json").stdout)
    assert [file["how"] for file in report["files"].values()] == ["linked"]
    assert not report["untrained"]
    assert {entry["kind"] for entry in report["plan"]["parameters"].values()} == {"inherited"}


def test_students_with_additional_tensors_are_refused(compose: Compose, source: Path, tmp_path: Path) -> None:
    """Liger's students with their own gate have such tensors, and are not supported."""
    folder = llama(tmp_path / "other", **CONFIG)
    edit_config(folder, model_type="liger_gla")
    name = "model.layers.1.self_attn.g_proj.weight"
    edit_tensors(folder / "model.safetensors", lambda tensors: tensors.update({name: torch.zeros(3, 32)}))
    refused = compose("build", "published/liger-gla", "--from", folder, "-o", "built")
    assert refused.exit_code == 2
    assert f"{name} [3, 32]" in refused.stderr
    assert not Path("built").exists()
