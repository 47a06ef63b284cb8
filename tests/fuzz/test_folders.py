"""Any contents of a model's folder are accepted or rejected with a message, and an output is complete or absent."""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from peft import LoraConfig
from safetensors.torch import save

import composer
from composer.weights.record import RECORD
from composer.weights.verify import verify
from converters.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from converters.source import GENERATION_CONFIG, INDEX, SINGLE, open_source
from tests.checkpoints import edit_config, llama
from tests.fuzz.mutations import CUTS, EDITS, as_json, cut, edited
from tests.fuzz.outcomes import fuzz, outcome

SHARDED, BUILT, ADAPTED = "sharded", "built", "adapted"
HOW = st.tuples(st.just("tree"), EDITS) | st.tuples(st.just("bytes"), CUTS)


@cache
def sound() -> Path:
    """A source in shards, a source in one file, and a student of it, made once and copied for each example."""
    folder = Path(tempfile.mkdtemp())
    llama(folder / SHARDED, sharded=True)
    llama(folder / "single")
    composer.build_folder("lola", folder / "single", folder / BUILT, copy=True)
    shutil.copytree(folder / BUILT, folder / ADAPTED)
    edit_config(folder / ADAPTED, adapter="adapter")
    (folder / ADAPTED / "adapter").mkdir()
    for name, content in adapter().items():
        (folder / ADAPTED / "adapter" / name).write_bytes(content)
    for name in (BUILT, ADAPTED):
        assert composer.load(folder / name)
    return folder


def adapter() -> dict[str, bytes]:
    """LoRA on a projection of each layer as PEFT writes it."""
    settings = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM").to_dict()
    settings["target_modules"] = sorted(settings["target_modules"])
    names = [f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_" for layer in range(2)]
    weights = {f"{name}{side}.weight": torch.ones(shape) for name in names for side, shape in (("A", (2, 32)), ("B", (32, 2)))}
    return {ADAPTER_CONFIG: json.dumps(settings).encode(), ADAPTER_WEIGHTS: save(weights)}


def damaged(text: bytes, how: tuple[str, Any]) -> bytes:
    kind, changes = how
    return as_json(edited(json.loads(text), changes)) if kind == "tree" else cut(text, changes)


def with_damage(folder: Path, name: str, file: str, change: Callable[[bytes], bytes]) -> Path:
    """Return a copy of a valid folder with one damaged file."""
    shutil.rmtree(folder / name, ignore_errors=True)
    shutil.copytree(sound() / name, folder / name)
    path = folder / name / file
    path.write_bytes(change(path.read_bytes()))
    return folder / name


def built_from(source: Path) -> None:
    """Build completely or not at all. The result can be verified and loaded."""
    out = source.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    before = sorted(path.name for path in out.parent.iterdir())
    report = outcome(lambda: composer.build_folder("lolcats", source, out, copy=True))
    after = sorted(path.name for path in out.parent.iterdir())
    assert after == (before if report is None else sorted([*before, "out"]))
    if report is not None:
        assert outcome(lambda: verify(out)).ok
        assert composer.load(out) is not None


def used(built: Path) -> None:
    """Use a built model. One that verifies loads, and one that loads can be a source."""
    outcome(lambda: open_source(built))
    outcome(lambda: verify(built))
    outcome(lambda: composer.load(built))
    built_from(built)


@fuzz(st.tuples(HOW, st.integers(-40, 40)), examples=25)
def test_sources_with_damaged_headers_are_read_or_refused(example: Any, folder: Path) -> None:
    how, more = example

    def change(content: bytes) -> bytes:
        (length,) = struct.unpack("<Q", content[:8])
        header = damaged(content[8 : 8 + length], how)
        return struct.pack("<Q", max(0, len(header) + (more if abs(more) > 30 else 0))) + header + content[8 + length :]

    source = with_damage(folder, "single", SINGLE, change)
    outcome(lambda: open_source(source))
    built_from(source)


@fuzz(st.tuples(st.sampled_from(["config.json", INDEX, GENERATION_CONFIG]), HOW), examples=25)
def test_damaged_sources_are_read_or_refused(example: Any, folder: Path) -> None:
    file, how = example
    source = with_damage(folder, SHARDED, file, lambda content: damaged(content, how))
    outcome(lambda: open_source(source))
    outcome(lambda: composer.explain("lola", source))
    built_from(source)


@fuzz(st.tuples(st.sampled_from(["config.json", RECORD, INDEX, GENERATION_CONFIG]), HOW), examples=25)
def test_damaged_models_are_used_or_refused(example: Any, folder: Path) -> None:
    file, how = example
    used(with_damage(folder, BUILT, file, lambda content: damaged(content, how)))


@fuzz(st.tuples(st.sampled_from([ADAPTER_CONFIG, ADAPTER_WEIGHTS]), HOW), examples=15)
def test_damaged_adapters_are_loaded_or_refused(example: Any, folder: Path) -> None:
    file, how = example
    how = how if file == ADAPTER_CONFIG or how[0] == "bytes" else ("bytes", [])
    outcome(lambda: composer.load(with_damage(folder, ADAPTED, f"adapter/{file}", lambda content: damaged(content, how))))


@fuzz(EDITS, examples=15)
def test_unresolved_specs_are_loaded_or_refused(example: Any, folder: Path) -> None:
    """Without a hash, a model's config may have any heads."""

    def change(content: bytes) -> bytes:
        config = json.loads(content)
        return as_json(config | {"spec": edited(config["spec"], example), "spec_hash": None})

    outcome(lambda: composer.load(with_damage(folder, BUILT, "config.json", change)))
