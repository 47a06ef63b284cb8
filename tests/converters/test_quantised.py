"""The quantisation of a config decides what is unpacked on a CPU, what this needs, and what is rejected."""

from __future__ import annotations

import pytest

from converters import quantised
from converters.errors import ConfigError
from converters.quantised import PACKAGES, check_unpackable, quantisation_of, without_quantisation


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({}, None),
        ({"quantization_config": None}, None),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"load_in_4bit": True}}, "bitsandbytes"),
        ({"text_config": {"quantization_config": {"quant_method": "awq"}}}, "awq"),
        ({"quantization_config": {"bits": 4}}, "None"),
        ({"quantization_config": {"quant_method": ["fp8"]}}, "['fp8']"),
        ({"quantization_config": {"quant_method": "\x1b[2J"}}, r"\x1b[2J"),
    ],
)
def test_the_quantisation_kind_is_read_from_the_config(config: dict, kind: str | None) -> None:
    assert quantisation_of(config) == kind


def test_quantisation_configs_must_be_mappings() -> None:
    with pytest.raises(ConfigError, match="quantization_config: 'fp8'; expected a mapping or null"):
        quantisation_of({"quantization_config": "fp8"})


@pytest.mark.parametrize("kind", ["gptq", "awq", "aqlm", "hqq", "torchao", "quanto", "nvfp4", "None"])
def test_kinds_that_cannot_be_unpacked_are_refused_by_name(kind: str) -> None:
    with pytest.raises(ConfigError, match=rf"model is quantised \({kind}\).*Build from the checkpoint that was quantised"):
        check_unpackable(kind, "model")


@pytest.mark.parametrize("kind", [kind for kind, package in PACKAGES.items() if package is not None])
def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(quantised.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=rf"Unpacking model \({kind}\) needs the package {kind}: pip install {kind}"):
        check_unpackable(kind, "model")


def test_the_config_of_unpacked_weights_has_no_quantisation() -> None:
    config = {
        "model_type": "llama",
        "torch_dtype": "float16",
        "quantization_config": {"quant_method": "fp8"},
        "text_config": {"hidden_size": 8, "dtype": "float16", "quantization_config": {}},
    }
    assert without_quantisation(config, "bfloat16") == {
        "model_type": "llama",
        "dtype": "bfloat16",
        "text_config": {"hidden_size": 8},
    }
