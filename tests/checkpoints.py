"""Tiny random Llama checkpoints, as transformers writes them, for tests to read and to damage."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

IDS = torch.arange(40)[None]


def llama_model(*, seed: int = 0, dtype: str = "float32", **config: Any) -> LlamaForCausalLM:
    """A tiny Llama with random weights, biases and norms, so that a missing tensor changes the output."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**SIZES, **config}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.copy_(torch.randn_like(parameter) * 0.1 + ("norm" in name))
    return model.to(getattr(torch, dtype)).eval()


def logits(model: Any, ids: torch.Tensor = IDS, **options: Any) -> torch.Tensor:
    """Return the logits of a model of any kind, without gradients. ids: 40 different tokens by default."""
    with torch.no_grad():
        return model(ids, **options).logits


_WRITTEN = tempfile.TemporaryDirectory(prefix="checkpoints-")
_STATES: dict[str, torch.Tensor] = {}
"""Of the random numbers behind each checkpoint that was written, by its name there."""


def llama(folder: Path, *, sharded: bool = False, seed: int = 0, dtype: str = "float32", **config: Any) -> Path:
    """Return a tiny checkpoint with the small files of a tokenizer. ``sharded`` splits it into several files. It is built once
    and copied. The random state afterwards is the same as after a build.
    """
    name = hashlib.sha256(repr((sharded, seed, dtype, sorted(config.items()))).encode()).hexdigest()
    written = Path(_WRITTEN.name, name)
    if name not in _STATES:
        _write(written, sharded, llama_model(seed=seed, dtype=dtype, **config))
        _STATES[name] = torch.get_rng_state()
    torch.set_rng_state(_STATES[name])
    shutil.copytree(written, folder, copy_function=shutil.copyfile, dirs_exist_ok=True)
    return folder


def _write(folder: Path, sharded: bool, model: LlamaForCausalLM) -> None:
    model.save_pretrained(folder, max_shard_size="20KB" if sharded else "1GB")
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    (folder / "tokenizer_config.json").write_text("{}")


def edit_config(folder: Path, **changes: Any) -> None:
    """Set keys of config.json. The value ``...`` removes a key."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def edit_header(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Replace the header of a safetensors file in place, even by an invalid one."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def edit_tensors(file: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Load the tensors of a file, change them, and write it again."""
    from safetensors.torch import load_file, save_file

    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    file.unlink()
    save_file(tensors, file, metadata={"format": "pt"})


def fingerprint(folder: Path) -> dict[str, tuple[str, int]]:
    """Return the contents and the time stamp of every file in a folder."""
    return {
        path.relative_to(folder).as_posix(): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
