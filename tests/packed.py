"""Tiny folders with quantised weights in the published layouts, each beside a folder with the same weights in float32."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]

BLOCK = 8
"""Rows and columns that share a scale in FP8; published checkpoints have 128."""
VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
"""The values of FP4 with two bits of exponent and one of mantissa, by their codes."""
PROJECTION = re.compile(r"\.(?:[qkvo]|gate|up|down)_proj\.weight$")
EXPERTS = re.compile(r"\.experts\.(?:gate_up|down)_proj$")


def fp8(folder: Path) -> Path:
    """Quantise a saved model's projections to FP8 with a scale for each block, as DeepSeek and Qwen publish them. Returns a folder
    with the same values in float32."""

    def packed(name: str, tensor: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rows, columns = (size // BLOCK for size in tensor.shape)
        blocks = tensor.reshape(rows, BLOCK, columns, BLOCK)
        scale = blocks.abs().amax((1, 3)) / 448
        stored = (blocks / scale[:, None, :, None]).reshape(tensor.shape).to(torch.float8_e4m3fn)
        plain = stored.float().reshape(blocks.shape) * scale[:, None, :, None]
        return {name: stored, f"{name}_scale_inv": scale}, plain.reshape(tensor.shape)

    settings = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": ["lm_head"],
    }
    return _quantised(folder, PROJECTION, packed, settings)


def mxfp8(folder: Path) -> Path:
    """The same with a scale for 32 values of a row: a power of 2, of which a byte holds the exponent."""

    def packed(name: str, tensor: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        groups = tensor.reshape(tensor.shape[0], -1, 32)
        exponent = (groups.abs().amax(-1, keepdim=True) / 448).log2().ceil()
        stored = (groups / exponent.exp2()).to(torch.float8_e4m3fn)
        plain = (stored.float() * exponent.exp2()).reshape(tensor.shape)
        scale = (exponent + 127).squeeze(-1).to(torch.uint8)
        return {name: stored.reshape(tensor.shape), f"{name}_scale_inv": scale}, plain

    settings = {"quant_method": "mxfp8", "weight_block_size": [1, 32], "scale_fmt": "ue8m0", "modules_to_not_convert": ["lm_head"]}
    return _quantised(folder, PROJECTION, packed, settings)


def mxfp4(folder: Path) -> Path:
    """The same for the experts of a saved gpt-oss: 32 values of FP4 share a scale, a power of 2."""

    def packed(name: str, tensor: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        groups = tensor.transpose(1, 2).reshape(tensor.shape[0], tensor.shape[2], -1, 32)
        exponent = (groups.abs().amax(-1, keepdim=True) / 6).log2().ceil()
        codes = (groups / exponent.exp2()).unsqueeze(-1).sub(VALUES).abs().argmin(-1)
        stored = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
        plain = (VALUES[codes] * exponent.exp2()).flatten(2).transpose(1, 2).contiguous()
        return {f"{name}_blocks": stored, f"{name}_scales": (exponent + 127).squeeze(-1).to(torch.uint8)}, plain

    return _quantised(folder, EXPERTS, packed, {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]})


def compressed(folder: Path) -> Path:
    """The same for the projections, as compressed-tensors stores FP8 with a scale for each row."""

    def packed(name: str, tensor: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        scale = tensor.abs().amax(1, keepdim=True) / 448
        stored = (tensor / scale).to(torch.float8_e4m3fn)
        return {name: stored, f"{name}_scale": scale}, stored.float() * scale

    weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
    settings = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }
    return _quantised(folder, PROJECTION, packed, settings)


def _quantised(
    folder: Path, names: re.Pattern[str], packed: Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]], settings: Any
) -> Path:
    """Replace the tensors of these names in a folder by packed ones. Returns a folder with the unpacked ones."""
    plain_folder = folder.with_name(f"{folder.name}-plain")
    plain_folder.mkdir()
    stored: Tensors = {}
    plain: Tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if names.search(name):
            new, plain[name] = packed(name, tensor)
            stored |= new
        else:
            stored[name] = plain[name] = tensor
    assert len(stored) > len(plain), "no tensor has been quantised"
    config = json.loads((folder / "config.json").read_text())
    (plain_folder / "config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    save_file(plain, plain_folder / "model.safetensors", {"format": "pt"})
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    return plain_folder
