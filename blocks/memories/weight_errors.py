"""The errors of feature products: their difference from a pair's exact weights, summed over the queries that saw the pair in
the window.

LoLA, appendix D: each score of ``blocks.scores`` compares e = exp(q_t·k_i / √D) and f = φ(q_t)·φ(k_i). The sums only choose
which pairs to keep, so they have no gradient. Exponents are limited to ``LARGEST``, whose squares fit in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from blocks.flow import Tokens
from blocks.legend import Bool, Float, Tensor, torch
from blocks.scores.base import LARGEST
from blocks.tensors import accumulating, repeat_heads

Error = Callable[[Tensor, Tensor], Tensor]
"""A function of the exact weights and of the products in their place, both B H t e."""
ROWS = 64


def error_sums(
    error_of: Error,
    features: tuple[Float[Tensor, "B T H F"], Float[Tensor, "B E N F"]],
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B E K D"],
    tokens: Tokens,
    visible: Callable[[slice, slice], Bool[Tensor, "B t e"]],
    *,
    logarithm: bool,
) -> Float[Tensor, "B E H"]:
    """Return each entry's sum over the tokens of the call that see it. Token t is entry E - T + t and sees at most E - T
    entries before its own. query and key are rotated. features: of queries and keys; logarithm: as logarithms."""
    with torch.no_grad():
        dtype, heads, length = accumulating(query.dtype), query.shape[2], query.shape[1]
        held = key.shape[1] - length
        keys = repeat_heads(key, heads).to(dtype)
        query_features, key_features = features[0].to(dtype), repeat_heads(features[1], heads).to(dtype)
        sums = key.new_zeros(*key.shape[:2], heads, dtype=dtype)
        for start in range(0, length, ROWS):
            rows, entries = slice(start, min(start + ROWS, length)), slice(start, min(start + ROWS, length) + held)
            logits = torch.einsum("bthd,behd->bhte", query[:, rows].to(dtype), keys[:, entries]) / math.sqrt(query.shape[-1])
            product = _product(query_features[:, rows], key_features[:, entries], logarithm)
            error = error_of(_weight(logits), product)
            seen = visible(rows, entries)
            if tokens.valid is not None:
                seen = seen & tokens.valid[:, rows, None]
            sums[:, entries] += error.masked_fill(~seen[:, None], 0.0).sum(2).transpose(1, 2)
        return sums


def _product(query: Float[Tensor, "B t H F"], key: Float[Tensor, "B e H F"], logarithm: bool) -> Float[Tensor, "B H t e"]:
    if not logarithm:
        return torch.einsum("bthf,behf->bhte", query, key).clamp(max=math.exp(LARGEST))
    most, largest = query.amax(-1, keepdim=True), key.amax(-1, keepdim=True)
    product = torch.einsum("bthf,behf->bhte", (query - most).exp(), (key - largest).exp())
    return _weight(product.log() + most.permute(0, 2, 1, 3) + largest.permute(0, 2, 3, 1))


def _weight(logarithm: Tensor) -> Tensor:
    """Return exp of the logits. All limited logits have one result, whatever the machine's exp returns for ``LARGEST``."""
    return logarithm.exp().clamp(max=math.exp(LARGEST))
