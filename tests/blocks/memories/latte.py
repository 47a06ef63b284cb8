"""Latte as the paper defines it, with every one of the T × T × L terms."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from blocks.flow import Tokens
from blocks.legend import Shape
from blocks.part import Parameters
from tests.blocks.support import owner


def definition(
    parameters: Parameters, shape: Shape, inputs: Tensor, value: Tensor, tokens: Tokens, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """Return Σ_l p(l|t) Σ_s p(s|l,t) v_s with every term written out (eq. 8; eq. 5 and 6 if not causal), and log β_t."""
    length, latents = inputs.shape[1], parameters["query"].shape[0] // shape.heads
    seen = torch.ones(length, length, dtype=torch.bool)
    seen = (seen.tril() if causal else seen).expand(inputs.shape[0], -1, -1)
    if tokens.segment is not None:
        seen = seen & (tokens.segment[:, :, None] == tokens.segment[:, None])
    if tokens.valid is not None:
        seen = seen & tokens.valid[:, None]
    outputs, masses = [], []
    for head in range(shape.heads):
        own = slice(head * latents, (head + 1) * latents)
        query, logits = inputs @ parameters["query"][own].T, inputs @ parameters["key"][own].T
        weights = logits[:, None].expand(-1, length, -1, -1).masked_fill(~seen[..., None], -math.inf)
        terms = query.softmax(-1)[:, :, None] * weights.softmax(2)
        outputs.append(torch.einsum("btsl,bsd->btd", terms, value[:, :, owner(head, shape.heads, shape.key_heads)]))
        masses.append(query.exp().sum(-1).log())
    return torch.stack(outputs, dim=2), torch.stack(masses, dim=2)
