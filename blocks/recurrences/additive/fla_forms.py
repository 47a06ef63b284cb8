"""The additive recurrence on flash-linear-attention: ``simple_gla`` for one decay per head or none, ``gla`` for one per feature.

Every query head has its own copy of shared tensors, the state included: the kernels do not support groups. Products are computed in
the values' dtype, bfloat16 in a model of bfloat16, and summed in float32.
"""

from __future__ import annotations

from blocks.fla_kernels import (
    in_chunks,
    kernel,
    missing_of,
    pad_state,
    refuse_wrong_gradients,
    remove_padding,
    to_heads,
    width,
)
from blocks.kernels import clamp_log_decay
from blocks.legend import Float, Int, Tensor, torch

CHUNKS = kernel("ops.simple_gla", "chunk_simple_gla"), kernel("ops.gla", "chunk_gla")
STEPS = kernel("ops.simple_gla", "fused_recurrent_simple_gla"), kernel("ops.gla", "fused_recurrent_gla")


def missing() -> str | None:
    """Return a message on the packages that the forms need and that are not installed, or None."""
    return missing_of(*CHUNKS, *STEPS)


def chunked(
    query: Float[Tensor, "B T H F"],
    key: Float[Tensor, "B T N F"],
    value: Float[Tensor, "B T K V"],
    log_decay: Tensor | None,
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B N F V"],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B N F V"]]:
    """Any number of tokens."""
    if log_decay is not None and log_decay.dim() == 3:
        refuse_wrong_gradients(log_decay)
    by_channel = log_decay is not None and log_decay.dim() == 4
    return in_chunks(CHUNKS[by_channel], _inputs(query, key, value, log_decay), segment, state)


def step(
    query: Float[Tensor, "B 1 H F"],
    key: Float[Tensor, "B 1 n F"] | None,
    value: Float[Tensor, "B 1 K V"] | None,
    log_decay: Tensor | None,
    segment: Int[Tensor, "B 1"] | None,
    state: Float[Tensor, "B N F V"],
    *,
    in_place: bool = False,
) -> tuple[Float[Tensor, "B 1 H V"], Float[Tensor, "B N F V"]]:
    """Return the recurrence once."""
    heads = query.shape[2]
    if segment is not None:
        state = state * (segment == 0)[..., None, None]
    if key is None or value is None:
        key, value = torch.zeros_like(query), state.new_zeros(*query.shape[:3], state.shape[-1])
    by_channel = log_decay is not None and log_decay.dim() == 4
    inputs = _inputs(query, key, value, log_decay)
    if by_channel:
        inputs["gk"] = inputs.pop("g")
    entering = pad_state(state, heads)
    output, final_state = STEPS[by_channel](**inputs, initial_state=entering, scale=1.0, output_final_state=True)
    return remove_padding(output, final_state, state)


def _inputs(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None) -> dict[str, Tensor]:
    """Return the inputs by the names of the kernels' arguments."""
    heads, dtype, features = query.shape[2], value.dtype, width(query.shape[-1])
    inputs = {
        "q": to_heads(query, heads, dtype, features),
        "k": to_heads(key, heads, dtype, features),
        "v": to_heads(value, heads, dtype, width(value.shape[-1])),
    }
    if log_decay is not None:
        by_channel = log_decay.dim() == 4
        inputs["g"] = to_heads(clamp_log_decay(log_decay), heads, torch.float32, features if by_channel else None)
    return inputs
