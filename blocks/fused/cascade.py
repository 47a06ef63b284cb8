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
# pyright: basic, reportArgumentType=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from blocks.fused.given import Cache
from blocks.fused.tiles import configs, products_of, put, tile, width
from blocks.fused.window_and_state import LEAST, LOG2_E
from blocks.legend import Float, Int
from blocks.scores.base import RESOLUTION

RESOLVED = tl.constexpr(RESOLUTION)
NONE = tl.constexpr(-1e38)
"""The score of no pair: two of them differ by 0."""

SOME = 32
"""Pairs that are looked at together."""


@triton.autotune(configs=configs((4, 1), (8, 1)), key=["H", "K", "D", "F", "S"], restore_value=["state", "members"])
@triton.jit
def walk(
    query, key, value, position, query_features, key_features, held_key, held_value, held_features, held_position,
    weight, held_weight, state, rows, members, scored, fell, output,
    T, E, e, size, scale, weight_b, weight_t, weight_h, held_weight_b, held_weight_t, held_weight_h,
    H: tl.constexpr, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr, D: tl.constexpr, F: tl.constexpr, S: tl.constexpr,
    BLOCK: tl.constexpr, SOME: tl.constexpr, EB: tl.constexpr, DB: tl.constexpr, FB: tl.constexpr,
    ROW_MAX: tl.constexpr, RELATIVE: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """BLOCK: room for the tokens of a chunk; SOME: pairs at once; EB: room for all that compete. scored B H 2 EB, fell B H EB: what
    each is worth, and which fall on, as the program writes them down between two looks."""
    b, h = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    k, n, m = h // (H // K), h // (H // N), h // (H // M)
    begin, count = tl.load(rows + b * 2), tl.load(rows + b * 2 + 1)
    column, line, every, here_and_there = tl.arange(0, DB), tl.arange(0, BLOCK), tl.arange(0, EB), tl.arange(0, SOME)
    columns, own = column < D, members + (b * H + h) * S
    state, scored, fell = state + (b * H + h) * F * (D + 1), scored + (b * H + h) * 2 * EB, fell + (b * H + h) * EB
    key, value, position, key_features = key + b * E * K * D, value + b * E * K * D, position + b * E, key_features + b * e * N * F
    held_key, held_value = held_key + b * S * H * D, held_value + b * S * H * D
    held_features, held_position = held_features + b * S * M * F, held_position + b * S * H
    for chunk in range(begin // size, tl.cdiv(begin + count, size)):
        first = chunk * size - begin
        # What falls stands 2·size before the chunk's first token, which is entry 2·size + first.
        if (first >= 0) & (first < count) & (chunk >= 2):
            for low in range(0, S + size, SOME):
                place = low + here_and_there
                entry = standing(own, place, first, S)
                old, new, late, there = known(held_position, position, entry, place < S + size, h, H, E, S)
                numbers = tile(held_value, (entry * H + h) * D, column, old, columns)
                numbers = (numbers + tile(value, (late * K + k) * D, column, new, columns)).to(tl.float32)
                found, mass = tl.zeros((SOME, DB), tl.float32), tl.zeros((SOME,), tl.float32)
                for at in range(0, F, FB):
                    feature = at + tl.arange(0, FB)
                    mapped = tile(held_features, (entry * M + m) * F, feature, old, feature < F)
                    mapped += tile(key_features, (late * N + n) * F, feature, new, feature < F)
                    matrix = tile(state, feature * (D + 1), column, feature < F, columns)
                    found = tl.dot(mapped, matrix, found, input_precision=EXACT)
                    mass += tl.sum(mapped * tl.load(state + feature * (D + 1) + D, mask=feature < F, other=0.0)[None, :], 1)
                found *= tl.where(mass > LEAST, 1.0 / tl.where(mass > LEAST, mass, 1.0), 0.0)[:, None]
                length = tl.sqrt(tl.sum(numbers * numbers, 1))
                score = tl.sqrt(tl.sum((found - numbers) * (found - numbers), 1))
                resolution = (tl.sqrt(tl.sum(found * found, 1)) + length) * RESOLVED
                if RELATIVE:
                    score, resolution = score / tl.maximum(length, 1e-19), resolution / tl.maximum(length, 1e-19)
                tl.store(scored + place, tl.where(there, score, NONE), mask=place < S + size)
                tl.store(scored + EB + place, tl.where(there, resolution, 0.0), mask=place < S + size)
            tl.debug_barrier()
            contends = every < S + size
            score = tl.load(scored + every, mask=contends, other=NONE)
            resolution = tl.load(scored + EB + every, mask=contends, other=0.0)
            stays, slot = chosen(score, resolution, contends, S, EB)
            stood, falls = standing(own, every, first, S), (score > NONE) & (stays == 0)
            tl.debug_barrier()
            tl.store(own + slot, stood.to(tl.int32), mask=stays)
            tl.store(fell + tl.cumsum(falls.to(tl.int32), 0) - 1, stood.to(tl.int32), mask=falls)
            fallen = tl.sum(falls.to(tl.int32), 0)
            tl.debug_barrier()
            for at in range(0, F, FB):
                feature = at + tl.arange(0, FB)
                features = feature < F
                matrix = tile(state, feature * (D + 1), column, features, columns)
                masses = tl.load(state + feature * (D + 1) + D, mask=features, other=0.0)
                for low in range(0, fallen, SOME):
                    place = low + here_and_there
                    entry = tl.load(fell + place, mask=place < fallen, other=0)
                    old, new, late = (place < fallen) & (entry < S), (place < fallen) & (entry >= S), tl.maximum(entry - S, 0)
                    mapped = tile(held_features, (entry * M + m) * F, feature, old, features)
                    mapped += tile(key_features, (late * N + n) * F, feature, new, features)
                    numbers = tile(held_value, (entry * H + h) * D, column, old, columns)
                    numbers = (numbers + tile(value, (late * K + k) * D, column, new, columns)).to(tl.float32)
                    matrix = tl.dot(tl.trans(mapped), numbers, matrix, input_precision=EXACT)
                    masses += tl.sum(mapped, 0)
                tl.debug_barrier()  # several threads may hold one number: all have read it
                put(state, feature * (D + 1), column, matrix, features, columns)
                tl.store(state + feature * (D + 1) + D, masses, mask=features)
            tl.debug_barrier()

        token = first + line
        here = (line < size) & (token >= 0) & (token < count)
        row = (b * T + token) * H + h
        total, mass = tl.zeros((BLOCK, DB), tl.float32), tl.zeros((BLOCK,), tl.float32)
        for at in range(0, F, FB):
            feature = at + tl.arange(0, FB)
            queries = tile(query_features, row * F, feature, here, feature < F)
            matrix = tile(state, feature * (D + 1), column, feature < F, columns)
            mass += tl.sum(queries * tl.load(state + feature * (D + 1) + D, mask=feature < F, other=0.0)[None, :], 1)
            total = tl.dot(queries, matrix, total, input_precision=PRECISION)
        some = mass > LEAST
        top = tl.where(some, tl.log2(tl.where(some, mass, 1.0)), float("-inf"))
        total *= tl.where(some, 1.0 / tl.where(some, mass, 1.0), 0.0)[:, None]
        sums = tl.where(some, 1.0, 0.0)

        # Behind what is held stand the chunk before and the own one, of which a token sees what is not after it.
        asking = tile(query, row * D, column, here, columns)
        peak = tl.full((BLOCK,), float("-inf"), tl.float32)
        if ROW_MAX:
            for low in range(0, S + 2 * size, SOME):
                place = low + here_and_there
                entry = standing(own, place, first + size, S)
                old, new, late, there = known(held_position, position, entry, place < S + 2 * size, h, H, E, S)
                near = tile(held_key, (entry * H + h) * D, column, old, columns)
                near += tile(key, (late * K + k) * D, column, new, columns)
                logits = tl.dot(asking, tl.trans(near), input_precision=PRECISION) * (scale * LOG2_E)
                sees = here[:, None] & there[None, :] & ((place < S)[None, :] | (late[None, :] <= (2 * size + token)[:, None]))
                peak = tl.maximum(peak, tl.max(tl.where(sees, logits, float("-inf")), 1))
        peak = tl.where(peak == float("-inf"), 0.0, peak)
        of_held, of_window = -peak, -peak
        if held_weight is not None:
            offset = b * held_weight_b + token * held_weight_t + h * held_weight_h
            of_held += tl.load(held_weight + offset, mask=here, other=0.0) * LOG2_E
        if weight is not None:
            of_window += tl.load(weight + b * weight_b + token * weight_t + h * weight_h, mask=here, other=0.0) * LOG2_E
        for low in range(0, S + 2 * size, SOME):
            place = low + here_and_there
            entry = standing(own, place, first + size, S)
            old, new, late, there = known(held_position, position, entry, place < S + 2 * size, h, H, E, S)
            near = tile(held_key, (entry * H + h) * D, column, old, columns)
            near += tile(key, (late * K + k) * D, column, new, columns)
            logits = tl.dot(asking, tl.trans(near), input_precision=PRECISION) * (scale * LOG2_E)
            logits += tl.where((place < S)[None, :], of_held[:, None], of_window[:, None])
            sees = here[:, None] & there[None, :] & ((place < S)[None, :] | (late[None, :] <= (2 * size + token)[:, None]))
            logits = tl.where(sees, logits, float("-inf"))
            higher = tl.maximum(top, tl.max(logits, 1))
            finite = tl.where(higher == float("-inf"), 0.0, higher)
            weights, left = tl.exp2(logits - finite[:, None]), tl.exp2(top - finite)
            numbers = tile(held_value, (entry * H + h) * D, column, old, columns)
            numbers += tile(value, (late * K + k) * D, column, new, columns)
            total = tl.dot(weights.to(numbers.dtype), numbers, total * left[:, None], input_precision=PRECISION)
            sums, top = sums * left + tl.sum(weights, 1), higher
        put(output, row * D, column, total / tl.where(sums > 0, sums, 1.0)[:, None], here, columns)


@triton.jit
def standing(own, place, first, S: tl.constexpr):
    """Where the pairs stand that are held, and behind them the entries from the first."""
    return tl.where(place < S, tl.load(own + place, mask=place < S, other=0), S + first + place - S)


@triton.jit
def known(held_position, position, entry, asked, h, H: tl.constexpr, E, S: tl.constexpr):
    """Which stand among those that were held and which among the entries, their places there, and which are pairs at all."""
    late = tl.maximum(entry - S, 0)
    old, new = asked & (entry < S) & (entry >= 0), asked & (entry >= S) & (late < E)
    there = tl.load(held_position + entry * H + h, mask=old, other=-1) >= 0
    return old, new, late, there | (tl.load(position + late, mask=new, other=-1) >= 0)


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
    competing = width(held + size)
    scored, fell = state.new_empty(batch, heads, 2, competing), members.new_empty(batch, heads, competing)
    columns, exact = width(dim), products_of(query.dtype)[1]
    shared, own = key.shape[2], (key_features.shape[2], cache.features.shape[2])
    constants = {"H": heads, "K": shared, "N": own[0], "M": own[1], "D": dim, "F": wide, "S": held}
    constants |= {"BLOCK": width(size), "SOME": SOME, "EB": competing, "DB": columns, "FB": width(wide, 32)}
    constants |= {"ROW_MAX": row_max, "RELATIVE": relative, "PRECISION": exact, "EXACT": "ieee" if exact == "ieee" else "tf32x3"}
    strides = [number for one in weights for number in ((0, 0, 0) if one is None else one.stride())]
    inputs = (one.contiguous() for one in (query, key, value, position, query_features, key_features))
    kept = (one.contiguous() for one in (cache.key, cache.value, cache.features, cache.position))
    walk[batch * heads,](
        *inputs, *kept, *weights, state, rows, members, scored, fell, output,
        length, key.shape[1], key_features.shape[1], size, 1 / math.sqrt(dim), *strides, **constants,
    )  # fmt: skip
    return output, members
