"""Folders with quantised weights: which kinds transformers unpacks on a CPU, and what to do about the others."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from converters.bounded import brief, shorten
from converters.errors import ConfigError

KEY = "quantization_config"
PACKAGES: Mapping[str, str | None] = {
    "fp8": None,
    "mxfp8": None,
    "mxfp4": None,
    "compressed-tensors": "compressed-tensors",
    "bitsandbytes": "bitsandbytes",
}
"""The kinds of quantisation that transformers unpacks on a CPU, and the package that each needs beside torch."""
TEXT = "text_config"


def check_unpackable(kind: str, model: object) -> None:
    """Raise ConfigError if transformers cannot unpack this kind of quantisation here. model: its name, for messages."""
    if kind not in PACKAGES:
        raise ConfigError(
            f"{model} is quantised ({kind}), and transformers does not unpack such weights on a CPU. Build from the checkpoint "
            f"that was quantised, or from another one of the same model: {', '.join(PACKAGES)} and GGUF files are unpacked."
        )
    package = PACKAGES[kind]
    if package is not None and importlib.util.find_spec(package.replace("-", "_")) is None:
        raise ConfigError(f"Unpacking {model} ({kind}) needs the package {package}: pip install {package}")


def quantisation_of(config: Mapping[str, Any]) -> str | None:
    """Return the kind of quantisation that a model's config names; None for a model that is not quantised. Raises ConfigError."""
    settings = config.get(KEY)
    inner = config.get(TEXT)
    if settings is None and isinstance(inner, Mapping):
        settings = inner.get(KEY)
    if settings is None:
        return None
    if not isinstance(settings, Mapping):
        raise ConfigError(f"config.json has {KEY}: {brief(settings)}; expected a mapping or null.")
    kind = settings.get("quant_method")
    if kind is None and (settings.get("load_in_8bit") or settings.get("load_in_4bit")):
        kind = "bitsandbytes"
    return shorten(kind) if isinstance(kind, str) else brief(kind)


def without_quantisation(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Return the config of the same model with weights of a floating type."""
    plain = {key: value for key, value in config.items() if key not in (KEY, "torch_dtype")}
    inner = plain.get(TEXT)
    if isinstance(inner, Mapping):
        plain[TEXT] = {key: value for key, value in inner.items() if key not in (KEY, "torch_dtype", "dtype")}
    return plain | {"dtype": dtype}
