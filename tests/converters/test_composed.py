"""The config of a composed model states what Llama's config has no key for, with the matching tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from converters.composed import COMPOSED_FAMILY, NAMES, TRUNK_KEYS
from converters.errors import ConfigError
from converters.llama import read_config
from converters.trunk import DEFAULTS, Trunk, list_expected_tensors
from tests.converters.test_llama import NEW

CONFIG = NEW | {"model_type": "composed", "spec": {}, "spec_hash": "0"}
OWN = {"norm_type": "layer", "mlp_type": "plain", "position_embedding": "learned", "residual_dropout": 0.1, "labels": 4}


def read(**changes: object) -> Trunk:
    notes: list[str] = []
    trunk = COMPOSED_FAMILY.read_config(CONFIG | changes, notes)
    assert not notes
    return trunk


def test_a_config_without_composed_keys_equals_llamas() -> None:
    assert read() == read_config(NEW, [])
    assert {field: getattr(read(), field) for field in DEFAULTS} == DEFAULTS


def test_every_composed_key_is_read() -> None:
    assert OWN.keys() == TRUNK_KEYS.keys()
    expected = {field: OWN[key] for key, field in TRUNK_KEYS.items()}
    assert read(**OWN, hidden_act="gelu", problem_type=None) == replace(read(), activation="gelu", **expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm_type": "batch"}, "norm_type: 'batch'; expected one of rms, layer"),
        ({"mlp_type": 3}, "mlp_type: 3; expected one of gated, plain"),
        ({"position_embedding": "alibi"}, "expected one of none, sinusoidal, learned"),
        ({"hidden_act": "tanh"}, "expected one of silu, gelu, relu"),
        ({"residual_dropout": "much"}, "residual_dropout: 'much'; expected a number"),
        ({"labels": 0}, "labels: 0; expected a positive whole number"),
    ],
    ids=str,
)
def test_invalid_values_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**changes)


def test_head_dimension_may_be_odd_without_rotary_positions() -> None:
    """Rotary positions need an even dimension. The spec states whether there are any."""
    assert read(head_dim=7).head_dim == 7
    with pytest.raises(ConfigError, match="head_dim is 7.*even"):
        read_config(NEW | {"head_dim": 7}, [])


def test_expected_tensors_follow_from_the_trunk() -> None:
    own, llamas = list_expected_tensors(read(**OWN, num_hidden_layers=1)), list_expected_tensors(read(num_hidden_layers=1))
    assert llamas.keys() - own.keys() == {f"model.layers.0.mlp.gate_proj.{name}" for name in ("weight", "bias")}
    assert {name: own[name] for name in own.keys() - llamas.keys()} == {
        "model.embed_positions.weight": (131072, 64),
        "model.layers.0.input_layernorm.bias": (64,),
        "model.layers.0.post_attention_layernorm.bias": (64,),
        "model.norm.bias": (64,),
        "score.weight": (4, 64),
    }
    assert all(COMPOSED_FAMILY.table.canonical(name) == name for name in own)
    untied = {"tie_word_embeddings": False}
    assert "lm_head.weight" in list_expected_tensors(read(**untied))
    assert "lm_head.weight" not in list_expected_tensors(read(**untied, labels=4)), "a classifier has a score instead"
    assert set(NAMES) == set(NAMES.values())
