"""Old and new forms of Llama's config give the same trunk, and unsupported values are rejected by key."""

from __future__ import annotations

import pytest

from converters.composed import FAMILIES, family_of
from converters.errors import ConfigError
from converters.hosts import Host
from converters.llama import read_config
from converters.trunk import Trunk

NEW = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "attention_bias": True,
    "mlp_bias": True,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "pad_token_id": 0,
    "dtype": "bfloat16",
    "initializer_range": 0.01,
    "rope_parameters": {
        "rope_theta": 500000.0,
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
OLD = {
    **{key: value for key, value in NEW.items() if key not in ("rope_parameters", "dtype")},
    "rope_theta": 500000.0,
    "rope_scaling": {key: value for key, value in NEW["rope_parameters"].items() if key != "rope_theta"},
    "torch_dtype": "bfloat16",
}
FIRST = {"vocab_size": 32000, "hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 2, "num_attention_heads": 4}


def trunk(config: dict) -> Trunk:
    return read_config(config, [])


def test_every_field_is_read():
    assert trunk(NEW) == Trunk(
        vocabulary_size=512,
        hidden_size=64,
        intermediate_size=172,
        layers=5,
        heads=8,
        key_heads=4,
        head_dim=16,
        norm_epsilon=1e-5,
        attention_bias=True,
        mlp_bias=True,
        tied_embeddings=True,
        rope_theta=500000.0,
        rope_scaling={
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        max_positions=131072,
        activation="silu",
        bos_token_id=1,
        eos_token_id=[2, 3],
        pad_token_id=0,
        dtype="bfloat16",
        initializer_range=0.01,
    )


def test_old_and_new_styles_of_config_are_equal():
    assert trunk(OLD) == trunk(NEW)


def test_missing_fields_get_the_defaults_of_the_first_llama():
    read = trunk(FIRST)
    assert (read.head_dim, read.key_heads, read.rope_theta, read.rope_scaling) == (32, 4, 10000.0, None)
    assert (read.norm_epsilon, read.tied_embeddings, read.attention_bias, read.mlp_bias) == (1e-6, False, False, False)
    assert (read.dtype, read.bos_token_id, read.eos_token_id, read.pad_token_id) == ("float32", 1, 2, None)


def test_null_equals_a_missing_key():
    assert trunk({**FIRST, "head_dim": None, "num_key_value_heads": None, "rope_scaling": None}) == trunk(FIRST)


def test_scaling_without_original_length_uses_max_position_embeddings():
    scaling = {key: value for key, value in NEW["rope_parameters"].items() if key != "original_max_position_embeddings"}
    assert trunk({**NEW, "rope_parameters": scaling}).rope_scaling["original_max_position_embeddings"] == 131072


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "proportional"])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_other_scalings_are_refused_by_name(kind: str, key: str):
    with pytest.raises(ConfigError, match=f"'{kind}'.*'default' and 'llama3'"):
        trunk({**FIRST, "rope_scaling": {key: kind, "factor": 2.0}})


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_unsupported_rotary_scalings_make_a_llama_a_host(key: str):
    llama = {**FIRST, "model_type": "llama"}
    for kind in ("linear", "dynamic", "yarn", "longrope"):
        rope = {"rope_type": kind, "factor": 2.0} | dict.fromkeys(("short_factor", "long_factor"), [1.0] * 16)
        read = family_of({**llama, key: rope}).read_config({**llama, key: rope}, [])
        assert isinstance(read, Host)
        assert read.config[key] == rope
    for kind in ("default", "llama3", "proportional"):
        assert family_of({**llama, key: {"rope_type": kind}}) is FAMILIES["llama"]
    assert family_of({**llama, key: "yarn"}) is FAMILIES["llama"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu'; only 'silu'"),
        ({"hidden_size": None}, "no 'hidden_size'; expected a positive whole number"),
        ({"hidden_size": "64"}, "hidden_size: '64'; expected a positive whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: 0; expected a positive whole number"),
        ({"num_hidden_layers": 10_001}, "num_hidden_layers: 10001; expected a positive whole number of at most 10,000"),
        ({"vocab_size": 2**31 + 1}, "vocab_size: 2147483649; expected a positive whole number of at most 2,147,483,648"),
        ({"num_attention_heads": True}, "num_attention_heads: True; expected"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps: -1.0; expected"),
        ({"attention_bias": "no"}, "attention_bias: 'no'; expected true or false"),
        ({"eos_token_id": ["</s>"]}, "eos_token_id"),
        ({"pad_token_id": [1]}, "pad_token_id"),
        ({"eos_token_id": 10**30}, "eos_token_id: 1000.*have an embedding"),
        ({"eos_token_id": [2, 32000]}, "eos_token_id.*0 to 31,999 have an embedding"),
        ({"bos_token_id": -2}, "bos_token_id: -2; expected"),
        ({"pad_token_id": 32000}, "pad_token_id: 32000; expected"),
        ({"initializer_range": 1e30}, "initializer_range: 1e[+]30; expected a number from 0 to 1"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps: 1000.*…; expected"),
        ({"hidden_act": "x" * 5000}, "hidden_act: 'x{79}…; only 'silu'"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3"),
        ({"head_dim": 5}, "head_dim is 5.*even"),
        ({"hidden_size": 130}, "130 does not divide by 4 heads"),
        ({"dtype": "float8_e4m3fn"}, "float8_e4m3fn.*expected one of"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5"),
        ({"rope_scaling": {"rope_type": "llama3", "low_freq_factor": 1.0}}, "no 'factor'"),
        ({"rope_scaling": {"rope_type": "default", "beta_fast": 32}}, "for the type 'default': beta_fast"),
        ({"rope_theta": 0}, "rope_theta: 0; expected a number greater than 0"),
        ({"rope_theta": float("inf")}, "rope_theta: inf; expected"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: nan; expected"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}},
            "low_freq_factor ≥ high_freq_factor",
        ),
        ({"rope_scaling": "llama3"}, "expected a mapping or null"),
    ],
)
def test_invalid_values_are_refused(change: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        trunk({**FIRST, **change})


@pytest.mark.parametrize("spelled", ["float16", "torch.float16"])
def test_dtypes_may_have_the_prefix_torch(spelled: str):
    assert trunk({**FIRST, "torch_dtype": spelled}).dtype == "float16"


def test_unused_keys_are_ignored_and_unknown_keys_are_noted():
    notes: list[str] = []
    read = read_config({**FIRST, "pretraining_tp": 2, "use_cache": False, "sliding_window": None, "unsloth_fixed": True}, notes)
    assert read == trunk(FIRST)
    assert len(notes) == 1
    assert "unsloth_fixed" in notes[0]
    assert "pretraining_tp" not in notes[0]


def test_families_without_a_table_are_hosts():
    assert family_of({"model_type": "qwen3"}).title == "qwen3"
    assert family_of({"model_type": "composed_qwen3"}).title == "qwen3"
    with pytest.raises(ConfigError, match="no 'model_type'"):
        family_of({})
    for wrong in (["llama"], "", "../llama", "a" * 5000):
        with pytest.raises(ConfigError, match="model_type"):
            family_of({"model_type": wrong})


def test_a_student_is_read_as_its_trunk():
    notes: list[str] = []
    student = {**NEW, "model_type": "composed", "spec": {"heads": {}}, "spec_hash": "0"}
    assert FAMILIES["composed"].read_config(student, notes) == trunk(NEW)
    assert notes == []
