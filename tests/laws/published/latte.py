"""Latte's heads, whose weights come from latents, and Griffin's recurrence before them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tests.laws.published.layer import (
    WINDOW,
    Layer,
)
from tests.laws.published.mathematics import (
    convolve,
    in_window,
    log_sigmoid,
    root_mean_square_norm,
    sigmoid,
    softmax_attention,
    to_query_heads,
    turn,
)
from tests.laws.published.softmax import window


def latte(layer: Layer) -> Tensor:
    frequency = to_query_heads(layer["value_position.frequency"][None], layer.heads)[0]
    angles = torch.arange(len(layer.hidden), dtype=torch.float64)[:, None, None] * frequency
    value = turn(layer.expanded[2], -angles)
    return turn(_latte(layer, layer.hidden, value), angles)


def latte_bidirectional(layer: Layer) -> Tensor:
    return _latte(layer, layer.hidden, layer.expanded[2], causal=False)


def latte_conv(layer: Layer) -> Tensor:
    return _latte(layer, convolve(layer.hidden, layer["mix_input.weight"]), layer.expanded[2])


def latte_rglru(layer: Layer) -> Tensor:
    return _latte(layer, _rglru(layer), layer.expanded[2])


def latte_macchiato(layer: Layer) -> Tensor:
    mixed, value = _rglru(layer), layer.expanded[2]
    near = softmax_attention(*layer.rotated, value, in_window(WINDOW))
    query_logits = _by_head(mixed @ layer["latents.query"].T, layer.heads)
    shares = torch.softmax(torch.cat(((mixed @ layer["window.weight"].T)[..., None], query_logits), -1), -1)
    answers = _means(layer, mixed, value)
    return shares[..., :1] * near + torch.einsum("thl,thld->thd", shares[..., 1:], answers)


def rglru_window(layer: Layer) -> Tensor:
    mixed = root_mean_square_norm(_rglru(layer), layer["mix_input.norm"], 1e-5)
    return window(replace(layer, query=layer.project("query", mixed), key=layer.project("key", mixed)))


def _latte(layer: Layer, mixed: Tensor, value: Tensor, *, causal: bool = True) -> Tensor:
    shares = torch.softmax(_by_head(mixed @ layer["latents.query"].T, layer.heads), -1)
    return torch.einsum("thl,thld->thd", shares, _means(layer, mixed, value, causal=causal))


def _means(layer: Layer, mixed: Tensor, value: Tensor, *, causal: bool = True) -> Tensor:
    """Return Σ_s p(s|l,t) v_s as T H L D."""
    logits = _by_head(mixed @ layer["latents.key"].T, layer.heads)
    ends = range(1, len(mixed) + 1) if causal else [len(mixed)] * len(mixed)
    return torch.stack([torch.einsum("shl,shd->hld", torch.softmax(logits[:end], 0), value[:end]) for end in ends])


def _by_head(logits: Tensor, heads: int) -> Tensor:
    return logits.unflatten(-1, (heads, -1))


def _rglru(layer: Layer) -> Tensor:
    """Compute Griffin, eq. 1 to 4, with block-diagonal gates and c = 8."""
    blocks = layer["mix_input.input_weight"].shape[0]

    def gate(name: str) -> Tensor:
        rows = layer.hidden.unflatten(-1, (blocks, -1))
        return sigmoid(
            torch.einsum("tbi,boi->tbo", rows, layer[f"mix_input.{name}_weight"]).flatten(1) + layer[f"mix_input.{name}_bias"]
        )

    log_decay = 8 * gate("recurrence") * log_sigmoid(layer["mix_input.decay"])
    inputs = torch.sqrt(1 - torch.exp(2 * log_decay)) * gate("input") * layer.hidden
    state, states = torch.zeros_like(inputs[0]), []
    for token in range(len(inputs)):
        state = torch.exp(log_decay[token]) * state + inputs[token]
        states.append(state)
    return torch.stack(states)
