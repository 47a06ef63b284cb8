"""The mathematics of published layers, one token after the other, in float64: independent of the product's code.

Tensors have no batch: T tokens, H query heads, D coordinates, F features. Keys and values come with one row for each query head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

THETA = 100.0
"""Base of the rotation of the small dimensions that the laws use."""


def to_query_heads(states: Tensor, heads: int) -> Tensor:
    """Return for query head h the row of key head h // (heads // key heads), in dimension 1."""
    return states[:, [head * states.shape[1] // heads for head in range(heads)]]


def silu(states: Tensor) -> Tensor:
    return states / (1 + torch.exp(-states))


def sigmoid(states: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-states))


def softplus(states: Tensor) -> Tensor:
    return torch.logaddexp(states, torch.zeros_like(states))


def log_sigmoid(states: Tensor) -> Tensor:
    return -softplus(-states)


def root_mean_square_norm(states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return states / torch.sqrt((states**2).mean(-1, keepdim=True) + epsilon) * weight


def unit(states: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Divide by the length, as flash-linear-attention's l2norm does."""
    return states / torch.sqrt((states**2).sum(-1, keepdim=True) + epsilon)


def convolve(states: Tensor, taps: Tensor) -> Tensor:
    """states T … , taps … R, the last of which is for the current token."""
    kernel = taps.shape[-1]
    outputs = torch.zeros(len(states), *torch.broadcast_shapes(states.shape[1:], taps.shape[:-1]), dtype=states.dtype)
    for token in range(len(states)):
        for back in range(min(kernel, token + 1)):
            outputs[token] += taps[..., kernel - 1 - back] * states[token - back]
    return outputs


def rotate(states: Tensor, theta: float = THETA) -> Tensor:
    """Llama's rotation of T … D, with float32 angles as transformers computes them."""
    half = states.shape[-1] // 2
    frequency = 1.0 / theta ** (torch.arange(0, 2 * half, 2, dtype=torch.int64).float() / (2 * half))
    angles = torch.arange(len(states)).float()[:, None] * frequency
    return turn(states, angles)


def turn(states: Tensor, angles: Tensor) -> Tensor:
    """Turn coordinates i and i + D/2 of T H D by angles T D/2 or T H D/2."""
    angles = angles if angles.dim() == states.dim() else angles[:, None]
    first, second = states.chunk(2, dim=-1)
    cosine, sine = angles.cos().double(), angles.sin().double()
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def hedgehog(states: Tensor, matrix: Tensor, floor: float = 1e-12) -> Tensor:
    """softmax(xW) ‖ softmax(-xW): T H D and H D C to T H 2C."""
    mapped = torch.einsum("thd,hdc->thc", states, matrix)
    return torch.cat((torch.softmax(mapped, -1), torch.softmax(-mapped, -1)), dim=-1).clamp(min=floor)


def delta_rule(query: Tensor, steps: Iterable[tuple[Tensor, Tensor, Tensor]], decay: Tensor | None) -> Tensor:
    """Compute the delta rule without a scale: S = Diag(α) S, then S += β k (v - Sᵀk)ᵀ for each step of a token; o = Sᵀ q. steps:
    key T H F, value T H V and rate T H. decay: α, T H F or T H 1.
    """
    every = list(steps)
    (length, heads, features), width = query.shape, every[0][1].shape[-1]
    state, outputs = torch.zeros(heads, features, width, dtype=query.dtype), []
    for token in range(length):
        if decay is not None:
            state = state * decay[token][..., None]
        for key, value, rate in every:
            error = value[token] - torch.einsum("hf,hfv->hv", key[token], state)
            state = state + rate[token][:, None, None] * key[token][..., None] * error[:, None, :]
        outputs.append(torch.einsum("hf,hfv->hv", query[token], state))
    return torch.stack(outputs)


def edited_state(query: Tensor, tokens: Iterable[tuple[Tensor, ...]]) -> Tensor:
    """Compute the generalised delta rule without a scale: S = (Diag(α) - w rᵀ) S + k vᵀ and o = Sᵀ q. tokens: α, w, r and k (H
    F) and v (H V) of each token.
    """
    outputs: list[Tensor] = []
    state: Tensor | None = None
    for asks, (decay, removed, read, key, value) in zip(query, tokens, strict=True):
        if state is None:
            state = torch.zeros(*key.shape, value.shape[-1], dtype=key.dtype)
        transition = torch.diag_embed(decay) - removed[:, :, None] * read[:, None, :]
        state = transition @ state + key[:, :, None] * value[:, None, :]
        outputs.append(torch.einsum("hf,hfv->hv", asks, state))
    return torch.stack(outputs)


def regression(query: Tensor, key: Tensor, value: Tensor, rate: Tensor, decay: Tensor, penalty: Tensor) -> Tensor:
    """Compute o = Hᵀ (G + Λ)⁻¹ q with G = γ G + β k kᵀ and H = γ H + β k vᵀ. rate and decay: β and γ, T H. penalty: Λ, H F."""
    (length, heads, features), width = query.shape, value.shape[-1]
    outer, cross = torch.zeros(heads, features, features).double(), torch.zeros(heads, features, width).double()
    outputs = []
    for token in range(length):
        left, weight = decay[token][:, None, None], rate[token][:, None, None]
        outer = left * outer + weight * key[token][:, :, None] * key[token][:, None, :]
        cross = left * cross + weight * key[token][:, :, None] * value[token][:, None, :]
        solution = torch.linalg.solve(outer + torch.diag_embed(penalty), query[token])
        outputs.append(torch.einsum("hf,hfv->hv", solution, cross))
    return torch.stack(outputs)


def linear_attention(query: Tensor, key: Tensor, value: Tensor, decay: Tensor | None = None) -> Tensor:
    """Compute S = Diag(α) S + k vᵀ, o = Sᵀ q without a scale. decay: α, T H F or T H 1."""
    state, outputs = torch.zeros(query.shape[1], query.shape[2], value.shape[2], dtype=query.dtype), []
    for token in range(len(query)):
        if decay is not None:
            state = state * decay[token][..., None]
        state = state + key[token][..., None] * value[token][:, None, :]
        outputs.append(torch.einsum("hf,hfv->hv", query[token], state))
    return torch.stack(outputs)


def normalised(query: Tensor, key: Tensor, value: Tensor, decay: Tensor | None = None) -> Tensor:
    """Compute linear attention divided by its sum of weights."""
    ones = torch.ones_like(value[..., :1])
    return linear_attention(query, key, value, decay) / linear_attention(query, key, ones, decay)


def softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sees: Callable[[int, int], bool] = lambda token, pair: True,
    bias: Tensor | None = None,
) -> Tensor:
    """Compute causal attention of T H D over the pairs in ``sees``, with logits q·k / √D + bias (T T H)."""
    outputs = []
    for token in range(len(query)):
        pairs = [pair for pair in range(token + 1) if sees(token, pair)]
        logits = torch.einsum("hd,shd->sh", query[token], key[pairs]) / math.sqrt(query.shape[-1])
        if bias is not None:
            logits = logits + bias[token, pairs]
        outputs.append(torch.einsum("sh,shd->hd", torch.softmax(logits, 0), value[pairs]))
    return torch.stack(outputs)


def in_window(size: int) -> Callable[[int, int], bool]:
    """Return the mask of the last ``size`` tokens, the current one included."""
    return lambda token, pair: token - pair < size


def in_chunks(size: int) -> Callable[[int, int], bool]:
    """Return the mask of the token's own chunk of ``size`` tokens and the chunk before it."""
    return lambda token, pair: token // size - pair // size < 2


def window_and_linear(
    rotated: tuple[Tensor, Tensor],
    features: tuple[Tensor, Tensor],
    value: Tensor,
    factor: Tensor,
    sees: Callable[[int, int], bool],
    *,
    row_max: bool = False,
) -> Tensor:
    """Compute LoLCATs: one denominator over σ(w) exp(q·k / √D) of the visible pairs and φ(q)·φ(k) of the older ones. row_max:
    subtract a row's largest logit before the exponentials, as LoLCATs' code does.
    """
    (query, key), (query_features, key_features) = rotated, features
    outputs = []
    for token in range(len(query)):
        near = [pair for pair in range(token + 1) if sees(token, pair)]
        logits = torch.einsum("hd,shd->sh", query[token], key[near]) / math.sqrt(query.shape[-1])
        weights = torch.zeros(token + 1, query.shape[1], dtype=query.dtype)
        weights[near] = sigmoid(factor) * torch.exp(logits - (logits.max(0).values if row_max else 0.0))
        far = [pair for pair in range(token + 1) if pair not in near]
        weights[far] = torch.einsum("hf,shf->sh", query_features[token], key_features[far])
        outputs.append(torch.einsum("sh,shd->hd", weights / weights.sum(0), value[: token + 1]))
    return torch.stack(outputs)


def alibi_slopes(heads: int) -> list[float]:
    """Return -log α of each head: 2^(-8h/N) for h = 1 … N, with N a power of two."""
    assert heads & (heads - 1) == 0
    return [2.0 ** (-8.0 * head / heads) for head in range(1, heads + 1)]
