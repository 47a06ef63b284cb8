"""LoLA in chunks: a terraced window, a sparse cache of each query head, the state below them and their read, in one launch.

One program a row and query head walks the chunks from the first to the last. As one begins, the one before the last falls: its
pairs and those in the cache are scored against the state as it stands, the best stay, and the others are added to the state. Then
the chunk's queries are answered by their own chunk and the one before, the cache, and the state, over one denominator.

    query B T H D    key, value B E K D and position B E, of the entries: 2·size before the call, the oldest first, and T
    query_features B T H F    key_features B e N F, e ≤ E
    held_key, held_value B S H D, held_features B S M F, held_position B S H: the cache as it is handed in
    weight, held_weight B T H, by their strides    state B H F D+1, written over
    rows B 2: the position of the first token, and how many are real
    members B H S: of the pairs that are kept, where they stand among the S that were held and, behind these, the entries

Scores and sums are of 32 bits; of equals the older stay, as ``blocks.scores.base.order`` has it.
"""
# pyright: basic, reportArgumentType=false, reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from blocks.fused.tiles import configs, products_of, put, tile, width
from blocks.fused.window_and_state import LEAST, LOG2_E
from blocks.legend import Float, Int
from blocks.scores.base import RESOLUTION

RESOLVED = tl.constexpr(RESOLUTION)
NONE = tl.constexpr(-1e38)
"""The score of no pair: two of them differ by 0."""


@triton.autotune(configs=configs((4, 1), (8, 1)), key=["H", "K", "D", "F", "SB"], restore_value=["state", "members"])
@triton.jit
def walk(
    query, key, value, position, query_features, key_features, held_key, held_value, held_features, held_position,
    weight, held_weight, state, rows, members, output,
    T, E, e, size, scale, weight_b, weight_t, weight_h, held_weight_b, held_weight_t, held_weight_h,
    H: tl.constexpr, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr, D: tl.constexpr, F: tl.constexpr, S: tl.constexpr,
    BLOCK: tl.constexpr, SB: tl.constexpr, EB: tl.constexpr, DB: tl.constexpr, FB: tl.constexpr,
    ROW_MAX: tl.constexpr, RELATIVE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """BLOCK: room for the tokens of a chunk, SB for what is held, EB for both."""
    b, h = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    k, n, m = h // (H // K), h // (H // N), h // (H // M)
    begin, count = tl.load(rows + b * 2), tl.load(rows + b * 2 + 1)
    column, line, stands = tl.arange(0, DB), tl.arange(0, BLOCK), tl.arange(0, SB)
    columns, own = column < D, members + (b * H + h) * S
    state += (b * H + h) * F * (D + 1)
    key, value, position, key_features = key + b * E * K * D, value + b * E * K * D, position + b * E, key_features + b * e * N * F
    held_key, held_value = held_key + b * S * H * D, held_value + b * S * H * D
    held_features, held_position = held_features + b * S * M * F, held_position + b * S * H
    for chunk in range(begin // size, tl.cdiv(begin + count, size)):
        first = chunk * size - begin
        # What falls stands 2·size before the chunk's first token, at entry 2·size + first.
        if (first >= 0) & (first < count) & (chunk >= 2):
            place = tl.arange(0, EB)
            contends = place < S + size
            entry = tl.load(own + place, mask=place < S, other=0)
            entry = tl.where(place < S, entry, S + first + place - S)
            old, new = contends & (entry < S), contends & (entry >= S)
            late = tl.maximum(entry - S, 0)
            there = tl.load(held_position + entry * H + h, mask=old, other=-1) >= 0
            there = there | (tl.load(position + late, mask=new, other=-1) >= 0)
            numbers = tile(held_value, (entry * H + h) * D, column, old, columns) + tile(
                value, (late * K + k) * D, column, new, columns
            )
            numbers = numbers.to(tl.float32)
            found, mass = tl.zeros((EB, DB), tl.float32), tl.zeros((EB,), tl.float32)
            for at in range(0, F, FB):
                feature = at + tl.arange(0, FB)
                features = feature < F
                keys = tile(held_features, (entry * M + m) * F, feature, old, features)
                keys += tile(key_features, (late * N + n) * F, feature, new, features)
                matrix = tile(state, feature * (D + 1), column, features, columns)
                found = tl.dot(keys, matrix, found, input_precision=EXACT)
                mass += tl.sum(keys * tl.load(state + feature * (D + 1) + D, mask=features, other=0.0)[None, :], 1)
            found *= tl.where(mass > LEAST, 1.0 / tl.where(mass > LEAST, mass, 1.0), 0.0)[:, None]
            length = tl.sqrt(tl.sum(numbers * numbers, 1))
            score, resolution = (
                tl.sqrt(tl.sum((found - numbers) * (found - numbers), 1)),
                tl.sqrt(tl.sum(found * found, 1)) + length,
            )
            if RELATIVE:
                score, resolution = score / tl.maximum(length, 1e-19), resolution / tl.maximum(length, 1e-19)
            score = tl.where(there, score, NONE)
            resolution = tl.where(there, resolution * RESOLVED, 0.0)
            stays, slot = chosen(score, resolution, contends, S, EB)
            tl.debug_barrier()  # all have read where the members stand
            tl.store(own + slot, entry.to(tl.int32), mask=stays)
            falls = there & (stays == 0)
            for at in range(0, F, FB):
                feature = at + tl.arange(0, FB)
                features = feature < F
                keys = tile(held_features, (entry * M + m) * F, feature, old & falls, features)
                keys += tile(key_features, (late * N + n) * F, feature, new & falls, features)
                matrix = tile(state, feature * (D + 1), column, features, columns)
                matrix = tl.dot(tl.trans(keys), numbers, matrix, input_precision=EXACT)
                masses = tl.load(state + feature * (D + 1) + D, mask=features, other=0.0) + tl.sum(keys, 0)
                put(state, feature * (D + 1), column, matrix, features, columns)
                tl.store(state + feature * (D + 1) + D, masses, mask=features)
            tl.debug_barrier()  # all is written

        token = first + line
        here = (line < size) & (token >= 0) & (token < count)
        row = (b * T + token) * H + h
        total, mass = tl.zeros((BLOCK, DB), tl.float32), tl.zeros((BLOCK,), tl.float32)
        for at in range(0, F, FB):
            feature = at + tl.arange(0, FB)
            features = feature < F
            queries = tile(query_features, row * F, feature, here, features)
            matrix = tile(state, feature * (D + 1), column, features, columns)
            mass += tl.sum(queries * tl.load(state + feature * (D + 1) + D, mask=features, other=0.0)[None, :], 1)
            total = tl.dot(queries, matrix, total, input_precision=PRECISION)
        there = mass > LEAST
        top = tl.where(there, tl.log2(tl.where(there, mass, 1.0)), float("-inf"))
        total *= tl.where(there, 1.0 / tl.where(there, mass, 1.0), 0.0)[:, None]
        sums = tl.where(there, 1.0, 0.0)

        asking = tile(query, row * D, column, here, columns)
        kept = tl.load(own + stands, mask=stands < S, other=0)
        old, new, late = (stands < S) & (kept < S), (stands < S) & (kept >= S), tl.maximum(kept - S, 0)
        known = tl.load(held_position + kept * H + h, mask=old, other=-1) >= 0
        known = known | (tl.load(position + late, mask=new, other=-1) >= 0)
        keys = tile(held_key, (kept * H + h) * D, column, old, columns) + tile(key, (late * K + k) * D, column, new, columns)
        logits = tl.dot(asking, tl.trans(keys), input_precision=PRECISION) * (scale * LOG2_E)
        kept_logits = tl.where(here[:, None] & known[None, :], logits, float("-inf"))
        peak = tl.zeros((BLOCK,), tl.float32)
        if ROW_MAX:
            peak = tl.max(kept_logits, 1)
            for back in range(0, 2):
                low = 2 * size + first - back * size
                near = tile(key, ((low + line) * K + k) * D, column, (line < size) & (low + line >= 0) & (low + line < E), columns)
                logits = tl.dot(asking, tl.trans(near), input_precision=PRECISION) * (scale * LOG2_E)
                peak = tl.maximum(peak, tl.max(tl.where(seen(position, here, line, low, size, back, E), logits, float("-inf")), 1))
            peak = tl.where(peak == float("-inf"), 0.0, peak)
        shift = -peak
        if held_weight is not None:
            offset = b * held_weight_b + token * held_weight_t + h * held_weight_h
            shift += tl.load(held_weight + offset, mask=here, other=0.0) * LOG2_E
        numbers = tile(held_value, (kept * H + h) * D, column, old, columns) + tile(value, (late * K + k) * D, column, new, columns)
        total, sums, top = joined(total, sums, top, kept_logits + shift[:, None], numbers, PRECISION)
        shift = -peak
        if weight is not None:
            shift += tl.load(weight + b * weight_b + token * weight_t + h * weight_h, mask=here, other=0.0) * LOG2_E
        for back in range(0, 2):
            low = 2 * size + first - back * size
            there = (line < size) & (low + line >= 0) & (low + line < E)
            near = tile(key, ((low + line) * K + k) * D, column, there, columns)
            logits = tl.dot(asking, tl.trans(near), input_precision=PRECISION) * (scale * LOG2_E) + shift[:, None]
            logits = tl.where(seen(position, here, line, low, size, back, E), logits, float("-inf"))
            numbers = tile(value, ((low + line) * K + k) * D, column, there, columns)
            total, sums, top = joined(total, sums, top, logits, numbers, PRECISION)
        put(output, row * D, column, total / tl.where(sums > 0, sums, 1.0)[:, None], here, columns)


@triton.jit
def chosen(score, resolution, contends, S: tl.constexpr, EB: tl.constexpr):
    """Which of those that contend stay, and at which place each: by age, as they stand. The score in place S from the top is the
    bar; what is above it by more than their resolutions stays, and then its equals, the older first."""
    score = tl.where(contends, score, NONE)
    bar = tl.sum(tl.where(tl.arange(0, EB) == S - 1, tl.sort(score, descending=True), 0.0), 0)
    within = resolution + tl.max(tl.where(score == bar, resolution, 0.0), 0)
    above = contends & (score - bar > within)
    equal = contends & (above == 0) & (bar - score <= within)
    stays = above | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= S - tl.sum(above.to(tl.int32), 0)))
    return stays, tl.cumsum(stays.to(tl.int32), 0) - 1


@triton.jit
def seen(position, here, line, low, size, back, E):
    """Which entries of a chunk each token sees: of its own those up to itself (back 0), of the one before all."""
    there = (line < size) & (low + line >= 0) & (low + line < E)
    there = there & (tl.load(position + low + line, mask=there, other=-1) >= 0)
    return here[:, None] & there[None, :] & ((back > 0) | (line[None, :] <= line[:, None]))


@triton.jit
def joined(total, sums, top, logits, numbers, PRECISION: tl.constexpr):
    """A softmax over some entries, and over those of these logits to base 2."""
    higher = tl.maximum(top, tl.max(logits, 1))
    finite = tl.where(higher == float("-inf"), 0.0, higher)
    weights, left = tl.exp2(logits - finite[:, None]), tl.exp2(top - finite)
    total = tl.dot(weights.to(numbers.dtype), numbers, total * left[:, None], input_precision=PRECISION)
    return total, sums * left + tl.sum(weights, 1), higher


@dataclass(frozen=True)
class Cache:
    """What is held as it is handed in: keys, values, features of the keys, and positions."""

    key: Float[Tensor, "B S H D"]
    value: Float[Tensor, "B S H D"]
    features: Float[Tensor, "B S M F"]
    position: Int[Tensor, "B S H"]


def walked(
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B E K D"],
    value: Float[Tensor, "B E K D"],
    position: Int[Tensor, "B E"],
    query_features: Float[Tensor, "B T H F"],
    key_features: Float[Tensor, "B e N F"],
    cache: Cache,
    weights: tuple[Tensor | None, Tensor | None],
    state: Float[Tensor, "B H F V"],
    rows: Int[Tensor, "B 2"],
    size: int,
    *,
    row_max: bool,
    relative: bool,
) -> tuple[Float[Tensor, "B T H D"], Int[Tensor, "B H S"]]:
    """The head's output, and where the pairs that are kept at the end stand. weights: of the window and the cache, B T H."""
    batch, length, heads, dim = query.shape
    held, wide = cache.key.shape[1], query_features.shape[-1]
    output = torch.zeros_like(query, memory_format=torch.contiguous_format)
    members = torch.arange(held, dtype=torch.int32, device=query.device).expand(batch, heads, -1).contiguous()
    columns, exact = width(dim), products_of(query.dtype)[1]
    constants = {
        "H": heads,
        "K": key.shape[2],
        "N": key_features.shape[2],
        "M": cache.features.shape[2],
        "D": dim,
        "F": wide,
        "S": held,
    }
    constants |= {
        "BLOCK": width(size),
        "SB": width(held),
        "EB": width(held + size),
        "DB": columns,
        "FB": width(wide, 2**12 // columns),
    }
    constants |= {"ROW_MAX": row_max, "RELATIVE": relative, "PRECISION": exact, "EXACT": "ieee" if exact == "ieee" else "tf32x3"}
    strides = [number for one in weights for number in ((0, 0, 0) if one is None else one.stride())]
    inputs = (one.contiguous() for one in (query, key, value, position, query_features, key_features))
    kept = (one.contiguous() for one in (cache.key, cache.value, cache.features, cache.position))
    walk[batch * heads,](
        *inputs, *kept, *weights, state, rows, members, output,
        length, key.shape[1], key_features.shape[1], size, 1 / math.sqrt(dim), *strides, **constants,
    )  # fmt: skip
    return output, members
