"""For any value of any key of a source's config.json, a build succeeds or is rejected, in bounded time and memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

import composer
from composer.errors import ComposerError
from composer.weights.opened import open_models
from tests.checkpoints import SIZES, edit_config
from tests.fuzz.outcomes import outcome

VALUES: tuple[Any, ...] = (None, "x", [], {}, [1], -1, 0, 1.5, True, 2**31, 10**39, 1e308, "\ud800")
LOADED = ("sliding_window", "layer_types", "rope_scaling", "quantization_config", "auto_map", "_attn_implementation", "num_labels")
"""Keys that a tiny config need not have, and that are read."""


def source(folder: Path, family: str) -> Path:
    """Return a tiny model of a family as transformers writes it."""
    if not folder.exists():
        config = AutoConfig.for_model(family, **SIZES, head_dim=8)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sources")


@pytest.mark.parametrize(("family", "every"), [("llama", 1), ("qwen3", 5), ("gemma", 7)])
def test_any_value_of_any_key_is_read_or_refused(folder: Path, family: str, every: int) -> None:
    """every: for a family that transformers reads, which takes longer, each key has some of the values."""
    model = source(folder / family, family)
    config = json.loads((model / "config.json").read_text())
    keys = sorted({*config, *LOADED})
    for number, key in enumerate(keys):
        for value in VALUES[number % every :: every]:
            (model / "config.json").write_text(json.dumps({**config, key: value}))
            outcome(lambda: composer.build_folder("lolcats", model, folder / "out", dry_run=True))
    (model / "config.json").write_text(json.dumps(config))
    assert outcome(lambda: composer.build_folder("lolcats", model, folder / "out", dry_run=True)) is not None


REFUSED: list[tuple[str, str, Any, str]] = [
    ("llama", "model_type", "\ud800", "lone surrogate"),
    ("llama", "head_dim", 10**39, "head_dim"),
    ("llama", "initializer_range", 1.5, "initializer_range: 1.5; expected a number from 0 to 1"),
    ("llama", "bos_token_id", [1], "bos_token_id: [1]; expected a token's number or null"),
    ("qwen3", "hidden_act", None, "hidden_act"),
    ("qwen3", "rms_norm_eps", None, "rms_norm_eps"),
    ("qwen3", "attention_bias", "\ud800", "lone surrogate"),
    ("qwen3", "intermediate_size", 2**40, "no tensor has as many numbers"),
    ("qwen3", "num_hidden_layers", 9_999, "9,999 layers, and only"),
    ("qwen3", "rope_parameters", "x", "rope_parameters"),
]


@pytest.mark.parametrize(("family", "key", "value", "message"), REFUSED, ids=lambda value: ascii(value)[:20])
def test_messages_name_the_key(folder: Path, tmp_path: Path, family: str, key: str, value: Any, message: str) -> None:
    model = source(folder / family, family)
    before = (model / "config.json").read_text()
    edit_config(model, **{key: value})
    try:
        with pytest.raises(ComposerError) as caught:
            composer.build_folder("lolcats", model, tmp_path / "out", dry_run=True)
        assert message in str(caught.value)
        assert len(str(caught.value)) < 1000
    finally:
        (model / "config.json").write_text(before)


ACTS = {
    "build": lambda model: composer.build("lolcats", model),
    "open": lambda model: open_models([model], ComposerError)[0].load(None, "cpu"),
}


@pytest.mark.parametrize("act", ACTS)
def test_any_value_is_read_or_refused_for_families_of_transformers(folder: Path, act: str) -> None:
    model = source(folder / "llama", "llama")
    before = (model / "config.json").read_text()
    edit_config(model, id2label=5)
    try:
        with pytest.raises(ComposerError, match="transformers cannot open"):
            ACTS[act](model)
    finally:
        (model / "config.json").write_text(before)


@pytest.mark.parametrize("file", ["\ud800", "a/b", "\0", "x" * 300])
def test_invalid_file_names_in_an_index_are_refused(folder: Path, tmp_path: Path, file: str) -> None:
    model = source(folder / "llama", "llama")
    for name, text in (
        ("config.json", (model / "config.json").read_text()),
        ("model.safetensors.index.json", json.dumps({"weight_map": {"a": file}})),
    ):
        (tmp_path / name).write_text(text)
    with pytest.raises(ComposerError):
        composer.build_folder("lolcats", tmp_path, tmp_path / "out")
