"""Checkpoints in LoLCATs' layout, as its trainer would save them for a tiny Llama, and the formula of its code."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.published.layers import HEADS, KEY_HEADS, LENGTH, SIZE, projected, put_out, rotated

LAYERS, WIDTH, FEATURES, WINDOW, RANK, ALPHA = 2, 32, 4, 25, 2, 6
SETTINGS = [
    "--set=head.feature_map.dim=4",
    "--set=head.memory.0.size=25",
    "--set=recipe.finetune.lora.rank=2",
    "--set=recipe.finetune.lora.alpha=6",
]
SPEC = "published/lolcats-llama"
PEFT, QUERY = "base_model.model.", "feature_map_q.mlp.layer"
State = dict[str, Any]


def attention(layer: int, name: str) -> str:
    return f"model.layers.{layer}.self_attn.{name}"


def maps() -> State:
    """Return the parameters of attention transfer: W of queries and keys per query head, and the window's factor before its
    sigmoid.
    """
    generator = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).bfloat16()

    state: State = OrderedDict()
    for layer in range(LAYERS):
        state[attention(layer, "window_factors")] = normal(1, HEADS, 1, 1) - 2.1972
        for side in "qk":
            state[attention(layer, f"feature_map_{side}.mlp.layer")] = normal(HEADS, SIZE, FEATURES)
    return state


def adapters(targets: str = "qkvo") -> State:
    """Return the parameters of fine-tuning under PEFT's names."""
    generator = torch.Generator().manual_seed(6)
    outs = {"q": HEADS * SIZE, "k": KEY_HEADS * SIZE, "v": KEY_HEADS * SIZE, "o": WIDTH}
    state: State = OrderedDict()
    for layer in range(LAYERS):
        for target in targets:
            for letter, shape in (("A", (RANK, WIDTH)), ("B", (outs[target], RANK))):
                name = PEFT + attention(layer, f"{target}_proj.lora_{letter}.default.weight")
                state[name] = (0.2 * torch.randn(*shape, generator=generator)).bfloat16()
    return state


def saved(path: Path, state: Any) -> Path:
    torch.save(state, path)
    return path


def two_files(folder: Path) -> list[Path]:
    """Write two files as for 8B: maps under the model's names, adapters under PEFT's."""
    return [saved(folder / "maps.pt", maps()), saved(folder / "adapters.pt", adapters())]


def options(files: list[Path]) -> list[str]:
    return [f"--lolcats={file}" for file in files]


def merged(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return W + α/r · B A in float64."""
    merged_weights, low = dict(weights), adapters()
    for name in [name for name in low if ".lora_A." in name]:
        matrix = name.removeprefix(PEFT).replace(".lora_A.default", "")
        product = low[name.replace("lora_A", "lora_B")].double() @ low[name].double()
        merged_weights[matrix] = merged_weights[matrix].double() + ALPHA / RANK * product
    return merged_weights


def masks() -> tuple[Tensor, Tensor]:
    """Return the pairs of the window and of the linear part: blocks of ones along the diagonal, and the same shifted left by a
    chunk, so that a chunk sees itself and the chunk before it.
    """
    mask = torch.block_diag(*[torch.ones(WINDOW, WINDOW)] * (LENGTH // WINDOW))
    mask = mask + torch.roll(mask, -WINDOW, -1)
    return mask.tril().bool(), (1 - mask).tril().bool()


def formula(weights: Mapping[str, Tensor], learned: State, layer: int, hidden: Tensor) -> Tensor:
    """Compute σ(w) times the exponentials of a row's window logits minus their maximum, and the linear term, over one sum."""
    query, key, value = projected(weights, layer, hidden)
    query, key = rotated(query), rotated(key)
    near, far = masks()
    logits = (query @ key.mT / math.sqrt(SIZE)).masked_fill(~near, -1e8)
    factor = 1 / (1 + torch.exp(-learned[attention(layer, "window_factors")].double()))
    exponentials = factor * torch.exp(logits - logits.amax(-1, keepdim=True))
    mapped = []
    for side, states in (("q", query), ("k", key)):
        u = torch.einsum("hdf,bhld->bhlf", learned[attention(layer, f"feature_map_{side}.mlp.layer")].double(), states)
        mapped.append(torch.cat((u.softmax(-1), (-u).softmax(-1)), -1).clamp(min=1e-12))
    linear = (mapped[0] @ mapped[1].mT).masked_fill(~far, 0)
    total = exponentials.sum(-1, keepdim=True) + linear.sum(-1, keepdim=True)
    return put_out(weights, layer, (exponentials + linear) @ value / total)
