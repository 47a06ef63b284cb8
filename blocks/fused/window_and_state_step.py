"""A step of decode of a window above a state and their read, in one launch: the evicted pair is added to the state, the token's
pair overwrites it in the ring, and the token's output is computed. Ring and state are overwritten.

    query B H D    key, value B K D    position, index B    query_features B H F    ring's key, value B W K D, position B W
    evicted features B E N F, value B E K D, there B E    decay B N G, G 1 or F    weight B H, by its strides    state B N F D+1
"""
# pyright: basic, reportArgumentType=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from blocks.fused.tiles import put, tile, tune, width
from blocks.fused.window_and_state import LEAST, LOG2_E
from blocks.legend import Bool, Float, Int


@tune(
    (2, 2),
    (4, 2),
    (8, 2),
    key=["H", "K", "N", "D", "F", "E"],
    numbers=["ring_size", "size", "weight_b", "weight_h"],
    restore=["state"],
)
def step(
    query, key, value, position, index, query_features, evicted_features, evicted_value, evicted_present, decay, weight,
    ring_key, ring_value, ring_position, state, output, ring_size, size, scale, weight_b, weight_h,
    H: tl.constexpr, K: tl.constexpr, N: tl.constexpr, D: tl.constexpr, F: tl.constexpr, G: tl.constexpr, E: tl.constexpr,
    BLOCK: tl.constexpr, EB: tl.constexpr, DB: tl.constexpr, FB: tl.constexpr, ROW_MAX: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute one row and state head: the update of its matrix, and the outputs of its query heads. size: of a chunk of a
    terraced window, else 0."""
    b, n = (tl.program_id(0) // N).to(tl.int64), tl.program_id(0) % N
    k, column, entry = n // (N // K), tl.arange(0, DB), tl.arange(0, EB)
    columns, is_entry = column < D, entry < E
    now = tl.load(position + b)
    slot = (tl.load(index + b) % ring_size).to(tl.int32)
    # The largest number of ring entries that the token sees.
    reach = tl.where(size == 0, ring_size, (now % tl.maximum(size, 1)).to(tl.int32) + size)
    new_key = tl.load(key + (b * K + k) * D + column, mask=columns, other=0.0)
    new_value = tl.load(value + (b * K + k) * D + column, mask=columns, other=0.0)
    present = tl.load(evicted_present + b * E + entry, mask=is_entry, other=0) != 0
    evictions = tl.sum(present.to(tl.int32), 0) > 0
    values = tile(evicted_value, ((b * E + entry) * K + k) * D, column, present, columns).to(tl.float32)
    for member in range(0, H // N):
        h = n * (H // N) + member
        total, mass = tl.zeros((DB,), tl.float32), 0.0
        for at in range(0, F, FB):
            feature = at + tl.arange(0, FB)
            features = feature < F
            row = ((b * N + n) * F + feature) * (D + 1)
            matrix, masses = tile(state, row, column, features, columns), tl.load(state + row + D, mask=features, other=0.0)
            if decay is not None:
                decay_factor = tl.exp(tl.load(decay + (b * N + n) * G + feature % G, mask=features, other=0.0))
                matrix, masses = matrix * decay_factor[:, None], masses * decay_factor
            if evictions:
                keys = tile(evicted_features, ((b * E + entry) * N + n) * F, feature, present, features)
                if E == 1:
                    matrix += tl.sum(keys, 0)[:, None] * tl.sum(values, 0)[None, :]
                else:
                    matrix = tl.dot(tl.trans(keys), values, matrix, input_precision=PRECISION)
                masses += tl.sum(keys, 0)
            # Its other query heads read the state of the previous call.
            if member == H // N - 1:
                tl.debug_barrier()  # Several threads may hold the same number; wait until all have read it.
                put(state, row, column, matrix, features, columns)
                tl.store(state + row + D, masses, mask=features)
            asking = tl.load(query_features + (b * H + h) * F + feature, mask=features, other=0.0)
            total += tl.sum(asking[:, None] * matrix, 0)
            mass += tl.sum(asking * masses, 0)

        scaled_query = tl.load(query + (b * H + h) * D + column, mask=columns, other=0.0).to(tl.float32) * (scale * LOG2_E)
        new_logit = tl.sum(scaled_query * new_key.to(tl.float32), 0)
        shift = 0.0
        if weight is not None:
            shift += tl.load(weight + b * weight_b + h * weight_h) * LOG2_E
        if ROW_MAX:
            peak = new_logit
            for low in range(0, ring_size, BLOCK):
                place = low + tl.arange(0, BLOCK)
                keys = tile(ring_key, ((b * ring_size + place) * K + k) * D, column, place < ring_size, columns).to(tl.float32)
                seen = visible(ring_position + b * ring_size, place, slot, ring_size, reach)
                peak = tl.maximum(peak, tl.max(tl.where(seen, tl.sum(keys * scaled_query[None, :], 1), float("-inf")), 0))
            shift -= peak
        some = mass > LEAST
        top = tl.where(some, tl.log2(tl.where(some, mass, 1.0)), float("-inf"))
        total *= tl.where(some, 1.0 / tl.where(some, mass, 1.0), 0.0)
        # The token's own pair is always present, so the maximum is finite.
        higher = tl.maximum(top, new_logit + shift)
        correction, share = tl.exp2(top - higher), tl.exp2(new_logit + shift - higher)
        sums, total, top = tl.where(some, correction, 0.0) + share, total * correction + share * new_value.to(tl.float32), higher
        for low in range(0, ring_size, BLOCK):
            place = low + tl.arange(0, BLOCK)
            row = ((b * ring_size + place) * K + k) * D
            keys = tile(ring_key, row, column, place < ring_size, columns).to(tl.float32)
            seen = visible(ring_position + b * ring_size, place, slot, ring_size, reach)
            logits = tl.where(seen, tl.sum(keys * scaled_query[None, :], 1) + shift, float("-inf"))
            higher = tl.maximum(top, tl.max(logits, 0))
            weights, correction = tl.exp2(logits - higher), tl.exp2(top - higher)
            entries = tile(ring_value, row, column, place < ring_size, columns).to(tl.float32)
            sums, top = sums * correction + tl.sum(weights, 0), higher
            total = total * correction + tl.sum(weights[:, None] * entries, 0)
        tl.store(output + (b * H + h) * D + column, (total / sums).to(output.dtype.element_ty), mask=columns)

    # The entry that it overwrites is not visible to any token.
    if n % (N // K) == 0:
        row = ((b * ring_size + slot) * K + k) * D
        tl.store(ring_key + row + column, new_key, mask=columns)
        tl.store(ring_value + row + column, new_value, mask=columns)
    if n == 0:
        tl.store(ring_position + b * ring_size + slot, now)


@triton.jit
def visible(ring_position, place, slot, ring_size, reach):
    """Return which entries of the ring the token sees beside its own pair: those of the ``reach`` tokens before it."""
    present = (place < ring_size) & (place != slot)
    present = present & (tl.load(ring_position + place, mask=place < ring_size, other=-1) >= 0)
    return present & ((slot - place + ring_size) % ring_size <= reach)


def step_once(
    query: Float[Tensor, "B 1 H D"],
    key: Float[Tensor, "B 1 K D"],
    value: Float[Tensor, "B 1 K D"],
    position: Int[Tensor, "B 1"],
    index: Int[Tensor, "B 1"],
    query_features: Float[Tensor, "B 1 H F"],
    evicted: tuple[Float[Tensor, "B E N F"], Float[Tensor, "B E K D"], Bool[Tensor, "B E"]],
    log_decay: Tensor | None,
    weight: Float[Tensor, "B 1 H"] | None,
    ring: tuple[Tensor, Tensor, Tensor],
    state: Float[Tensor, "B N F V"],
    *,
    size: int,
    row_max: bool,
) -> Float[Tensor, "B 1 H D"]:
    """Return the head's output. Ring and state are updated in place. ring: keys, values and positions. log_decay: B 1 N, or B 1
    N F."""
    features, values, present = (tensor.contiguous() for tensor in evicted)
    batch, _, heads, dim = query.shape
    _, entries, state_heads, wide = features.shape
    key_heads = key.shape[2]
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    columns = width(dim)
    constants = {"H": heads, "K": key_heads, "N": state_heads, "D": dim, "F": wide, "E": entries}
    constants |= {"BLOCK": 32, "EB": 1 if entries == 1 else width(entries), "DB": columns, "FB": width(wide, 2**12 // columns)}
    constants |= {"G": wide if log_decay is not None and log_decay.dim() == 4 else 1, "ROW_MAX": row_max}
    strides = (0, 0) if weight is None else (weight.stride(0), weight.stride(2))
    decay = None if log_decay is None else log_decay.contiguous()
    inputs = (tensor.contiguous() for tensor in (query, key, value, position, index, query_features))
    step[batch * state_heads,](
        *inputs, features, values, present, decay, weight, *ring, state, output,
        ring[0].shape[1], size, 1 / math.sqrt(dim), *strides, **constants, PRECISION="ieee",
    )  # fmt: skip
    return output
