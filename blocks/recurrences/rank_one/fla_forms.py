"""The generalised delta rule on flash-linear-attention: ``dplr_delta_rule``. Query heads that share a state have a copy of it each.

Its ``a`` is -r and its ``b`` is w. It wants a decay for each feature.
"""

from __future__ import annotations

from blocks import fla_kernels
from blocks.fla_kernels import in_chunks, kernel, missing_of, pad_state, remove_padding, to_heads, width
from blocks.kernels import clamp_log_decay
from blocks.legend import Float, Int, Tensor, torch
from blocks.operation import Setting
from blocks.recurrences.rank_one.chunked import of_features

CHUNKS = kernel("ops.generalized_delta_rule", "chunk_dplr_delta_rule")
STEP = kernel("ops.generalized_delta_rule", "fused_recurrent_dplr_delta_rule")
MOST_FEATURES = 256


def missing() -> str | None:
    """Return a message on the packages that the forms need and that are not installed, or None."""
    return missing_of(CHUNKS, STEP)


def obstacle(setting: Setting) -> str | None:
    """Return why the chunked form cannot run, or None."""
    if setting.device == "cuda" and setting.dtype == "float32":
        return "its kernel does not support float32 on every GPU"
    if setting.shape is not None and setting.shape.features > MOST_FEATURES:
        return f"its kernel supports {MOST_FEATURES} features at most"
    return fla_kernels.obstacle(setting)


def chunked(
    query: Float[Tensor, "B T H F"],
    key: Float[Tensor, "B T N F"],
    value: Float[Tensor, "B T K V"],
    read: Float[Tensor, "B T N F"],
    removed: Float[Tensor, "B T N F"] | None,
    log_decay: Tensor | None,
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B N F V"],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B N F V"]]:
    """Any number of tokens."""
    return in_chunks(CHUNKS, _inputs(query, key, value, read, removed, log_decay), segment, state)


def step(
    query: Float[Tensor, "B 1 H F"],
    key: Float[Tensor, "B 1 N F"],
    value: Float[Tensor, "B 1 K V"],
    read: Float[Tensor, "B 1 N F"],
    removed: Float[Tensor, "B 1 N F"] | None,
    log_decay: Tensor | None,
    segment: Int[Tensor, "B 1"] | None,
    state: Float[Tensor, "B N F V"],
    *,
    in_place: bool = False,
) -> tuple[Float[Tensor, "B 1 H V"], Float[Tensor, "B N F V"]]:
    """Return the recurrence once."""
    if segment is not None:
        state = state * (segment == 0)[..., None, None]
    inputs = _inputs(query, key, value, read, removed, log_decay)
    output, final_state = STEP(**inputs, initial_state=pad_state(state, query.shape[2]), scale=1.0, output_final_state=True)
    return remove_padding(output, final_state, state)


def _inputs(
    query: Tensor, key: Tensor, value: Tensor, read: Tensor, removed: Tensor | None, log_decay: Tensor | None
) -> dict[str, Tensor]:
    """Return the inputs by the names of the kernels' arguments."""
    heads, dtype, features = query.shape[2], value.dtype, width(query.shape[-1])
    return {
        "q": to_heads(query, heads, dtype, features),
        "k": to_heads(key, heads, dtype, features),
        "v": to_heads(value, heads, dtype, width(value.shape[-1])),
        "a": to_heads(-read, heads, dtype, features),
        "b": to_heads(key if removed is None else removed, heads, dtype, features),
        "gk": to_heads(clamp_log_decay(of_features(log_decay, key)), heads, torch.float32, features),
    }
