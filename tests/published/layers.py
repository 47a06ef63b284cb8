"""Inputs and outputs of a layer's attention, whole and token by token, and Llama's projections from the weights on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

LENGTH, HEADS, KEY_HEADS, SIZE = 150, 4, 2, 8
CONFIG = {"max_position_embeddings": 256, "initializer_range": 0.4}
"""Of sources whose queries and keys say something, on texts as long as these."""
IDS = torch.randint(3, 64, (2, LENGTH), generator=torch.Generator().manual_seed(0))


@dataclass
class Seen:
    """The input and output hidden states of a layer's attention, call by call."""

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    def join(self) -> tuple[Tensor, Tensor]:
        return torch.cat(self.inputs, 1), torch.cat(self.outputs, 1)


@contextmanager
def watched(model: PreTrainedModel) -> Iterator[list[Seen]]:
    """Record the inputs and outputs of each layer's attention."""
    seen: list[Seen] = []
    hooks = []
    for layer in model.model.layers:
        seen.append(note := Seen())

        def listen(_: Any, inputs: tuple[Any, ...], named: Mapping[str, Any], output: Any, note: Seen = note) -> None:
            note.inputs.append(inputs[0] if inputs else named["hidden_states"])
            note.outputs.append(output[0] if isinstance(output, tuple) else output)

        hooks.append(layer.self_attn.register_forward_hook(listen, with_kwargs=True))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def whole(model: PreTrainedModel) -> list[Seen]:
    """Run both texts in one call."""
    with watched(model) as seen, torch.no_grad():
        model(IDS)
    return seen


def decoded(model: PreTrainedModel, prefill: int) -> list[Seen]:
    """Run a prefill of some tokens, and the others one by one."""
    cache = None
    with watched(model) as seen, torch.no_grad():
        for start, end in [(0, prefill), *((at, at + 1) for at in range(prefill, LENGTH))]:
            answer = model(IDS[:, start:end], past_key_values=cache, use_cache=True)
            cache = answer.past_key_values
    return seen


def projected(weights: Mapping[str, Tensor], layer: int, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values B H T D without rotation, with keys and values repeated for their query heads."""

    def heads(name: str, count: int) -> Tensor:
        made = hidden @ weights[f"model.layers.{layer}.self_attn.{name}.weight"].double().T
        return made.unflatten(2, (count, SIZE)).transpose(1, 2).repeat_interleave(HEADS // count, 1)

    return heads("q_proj", HEADS), heads("k_proj", KEY_HEADS), heads("v_proj", KEY_HEADS)


def rotated(states: Tensor, theta: float = 10000.0) -> Tensor:
    """Apply Llama's rotation: coordinate i with i + D/2 by the angle t / θ^(2i/D), with angles in float32."""
    half = SIZE // 2
    frequency = 1.0 / theta ** (torch.arange(half, dtype=torch.float32) / half)
    angles = torch.arange(LENGTH, dtype=torch.float32)[:, None] * frequency
    cos, sin = angles.cos().double(), angles.sin().double()
    first, other = states[..., :half], states[..., half:]
    return torch.cat((first * cos - other * sin, other * cos + first * sin), -1)


def put_out(weights: Mapping[str, Tensor], layer: int, answer: Tensor) -> Tensor:
    """Apply the output projection to heads B H T D."""
    return answer.transpose(1, 2).flatten(2) @ weights[f"model.layers.{layer}.self_attn.o_proj.weight"].double().T
