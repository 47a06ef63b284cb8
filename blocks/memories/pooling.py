"""Latents that see all of a document: softmax_L(Q) softmax_T(K) V, document by document (Latte, eq. 5 to 7).

L below is the number of latents of a head. query: p(l|t); logits: those of p(s|l), -inf where there is no token.
"""

from __future__ import annotations

from functools import partial

from blocks import fla_kernels
from blocks.flow import Tokens
from blocks.kernels import TRITON_PACKAGE, Kernel, gpu_obstacle
from blocks.legend import Float, Tensor, torch
from blocks.operation import Setting
from blocks.stretches import Stretches
from blocks.tensors import repeat_heads

POOL = Kernel("blocks.fused.pooled_latents", "pool", TRITON_PACKAGE)
WIDEST = 256
"""Numbers of a value: a tile of more does not fit a processor of the GPU."""


def by_kernel(
    query: Float[Tensor, "B T H L"], logits: Float[Tensor, "B T H L"], value: Float[Tensor, "B T K V"], tokens: Tokens
) -> Float[Tensor, "B T H V"]:
    """All documents at once."""
    return POOL(query, logits, value, tokens.once(("stretches",), lambda: _stretches(tokens)))


def _stretches(tokens: Tokens) -> Stretches:
    batch, length = tokens.position.shape
    if tokens.segment is not None:
        return Stretches.of(fla_kernels.rows(tokens.segment).bounds)
    return Stretches.of(torch.arange(0, batch * length + 1, length, device=tokens.position.device))


def obstacle(setting: Setting) -> str | None:
    """Return why a form that calls the kernel cannot run, or None."""
    if setting.dtype == "float16":
        return "what arrives at a mean of many tokens leaves the range of float16"
    if setting.shape is not None and setting.shape.value_dim > WIDEST:
        return f"it supports at most {WIDEST} numbers a value"
    return gpu_obstacle(setting)


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
