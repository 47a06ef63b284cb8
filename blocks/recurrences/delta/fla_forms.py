"""The delta rule on flash-linear-attention: ``gated_delta_rule`` for one decay per head, and without decay with a decay of 1;
``kda`` for one decay per feature. Its ``delta_rule`` does not support float32, and is used in bfloat16 only. Each query head has
its own copy of a shared state.
"""

from __future__ import annotations

from blocks import fla_kernels
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
from blocks.operation import Setting

GATED, PLAIN = kernel("ops.gated_delta_rule", "chunk_gated_delta_rule"), kernel("ops.delta_rule", "chunk_delta_rule")
STEP = kernel("ops.gated_delta_rule", "fused_recurrent_gated_delta_rule")
BY_FEATURE, STEP_BY_FEATURE = kernel("ops.kda", "chunk_kda"), kernel("ops.kda", "fused_recurrent_kda")
MOST_FEATURES = 256


def missing() -> str | None:
    """Return a message on the packages that the forms need and that are not installed, or None."""
    return missing_of(GATED, PLAIN, STEP, BY_FEATURE, STEP_BY_FEATURE)


def obstacle(setting: Setting) -> str | None:
    """Return why the chunked form cannot run, or None."""
    if setting.shape is not None and setting.shape.features > MOST_FEATURES:
        return f"its kernel supports {MOST_FEATURES} features at most"
    return fla_kernels.obstacle(setting)


def chunked(
    query: Float[Tensor, "B T H F"],
    key: Float[Tensor, "B T N F"],
    value: Float[Tensor, "B T K V"],
    rate: Float[Tensor, "B T N"],
    log_decay: Tensor | None,
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B N F V"],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B N F V"]]:
    """Any number of tokens."""
    plain = log_decay is None and value.dtype == torch.bfloat16
    inputs = _inputs(query, key, value, rate, log_decay, gated=not plain)
    if plain:
        return in_chunks(PLAIN, inputs, segment, state)
    if log_decay is not None and log_decay.dim() == 4:
        return in_chunks(BY_FEATURE, inputs, segment, state)
    refuse_wrong_gradients(inputs["g"])
    return in_chunks(GATED, inputs, segment, state)


def step(
    query: Float[Tensor, "B 1 H F"],
    key: Float[Tensor, "B 1 N F"] | None,
    value: Float[Tensor, "B 1 K V"] | None,
    rate: Float[Tensor, "B 1 N"] | None,
    log_decay: Tensor | None,
    segment: Int[Tensor, "B 1"] | None,
    state: Float[Tensor, "B N F V"],
    *,
    in_place: bool = False,
) -> tuple[Float[Tensor, "B 1 H V"], Float[Tensor, "B N F V"]]:
    """Return the recurrence once."""
    if segment is not None:
        state = state * (segment == 0)[..., None, None]
    if key is None or value is None or rate is None:
        key, value = torch.zeros_like(query), state.new_zeros(*query.shape[:3], state.shape[-1])
        rate = query.new_zeros(query.shape[:3])
    inputs = _inputs(query, key, value, rate, log_decay, gated=True)
    run = STEP if inputs["g"].dim() == 3 else STEP_BY_FEATURE
    output, final_state = run(**inputs, initial_state=pad_state(state, query.shape[2]), scale=1.0, output_final_state=True)
    return remove_padding(output, final_state, state)


def _inputs(query: Tensor, key: Tensor, value: Tensor, rate: Tensor, log_decay: Tensor | None, *, gated: bool) -> dict[str, Tensor]:
    """Return the inputs by the names of the kernels' arguments."""
    heads, dtype, features = query.shape[2], value.dtype, width(query.shape[-1])
    inputs = {
        "q": to_heads(query, heads, dtype, features),
        "k": to_heads(key, heads, dtype, features),
        "v": to_heads(value, heads, dtype, width(value.shape[-1])),
        "beta": to_heads(rate, heads, dtype),
    }
    if gated:
        open_gate = inputs["beta"].new_zeros(query.shape[:3], dtype=torch.float32)
        size = features if log_decay is not None and log_decay.dim() == 4 else None
        inputs["g"] = open_gate if log_decay is None else to_heads(clamp_log_decay(log_decay), heads, torch.float32, size)
    return inputs
