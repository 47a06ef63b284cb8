"""Latents that see all of a document: softmax_L(Q) softmax_T(K) V, document by document (Latte, eq. 5 to 7).

L below is the number of latents of a head. query: p(l|t); logits: those of p(s|l), -inf where there is no token.
"""

from __future__ import annotations

from functools import partial

from blocks.flow import Tokens
from blocks.legend import Float, Tensor
from blocks.tensors import repeat_heads


def by_document(
    query: Float[Tensor, "B T H L"],
    logits: Float[Tensor, "B T H L"],
    value: Float[Tensor, "B T K V"],
    tokens: Tokens,
    *,
    left: bool = False,
) -> Float[Tensor, "B T H V"]:
    """Compute each document separately. left: use T × T weights."""
    states = query, logits, repeat_heads(value.to(query.dtype), query.shape[2])
    return tokens.each_document(partial(_pool, left=left), *states)[0]


def _pool(
    query: Float[Tensor, "B T H L"], logits: Float[Tensor, "B T H L"], value: Float[Tensor, "B T H V"], *, left: bool
) -> tuple[Float[Tensor, "B T H V"]]:
    """softmax_L(Q) softmax_T(K) V, from the left in the reference: T × T weights (eq. 5); from the right otherwise (eq. 7)."""
    query, logits, value = (states.transpose(1, 2) for states in (query, logits, value))
    largest = logits.detach().amax(2, keepdim=True)
    shares = (logits - largest.masked_fill(largest.isneginf(), 0.0)).exp()
    total = shares.sum(2, keepdim=True)
    shares = (shares / total.masked_fill(total == 0, 1.0)).mT
    output = (query @ shares) @ value if left else query @ (shares @ value)
    return (output.transpose(1, 2),)
