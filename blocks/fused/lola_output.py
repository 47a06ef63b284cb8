"""The outputs of one chunk in the LoLA kernel (``blocks.fused.lola``): attention to the chunk itself, the chunk before, the
cache and the state, with one denominator. Letters and layouts are those of that module.

The state is the one before the chunk's first token, and decays are counted from there, so every exponent of a decay is at most
0.
"""
# pyright: basic, reportArgumentType=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from blocks.fused.lola_evict import find_known, load_decay, standing
from blocks.fused.tiles import put, tile
from blocks.fused.window_and_state import LEAST, LOG2_E


@triton.jit
def compute_output(
    query, key, value, position, query_features, held_key, held_value, held_position,
    weight, held_weight, decay, state, maximum, head_members, output,
    b, token, end, first, begin, entered, size, scale, h, k, T, E,
    weight_b, weight_t, weight_h, held_weight_b, held_weight_t, held_weight_h,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, F: tl.constexpr, S: tl.constexpr,
    BLOCK: tl.constexpr, SOME: tl.constexpr, DB: tl.constexpr, FB: tl.constexpr,
    ROW_MAX: tl.constexpr, EXPONENTIAL: tl.constexpr, BY_FEATURE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the outputs of one chunk. token, end: its first token in the call, and the token after its last. entered: whether
    pairs were added to the state at the first token, after that token's decay."""
    column, line, offsets = tl.arange(0, DB), tl.arange(0, BLOCK), tl.arange(0, SOME)
    columns, here = column < D, line < end - token
    row = (b * T + token + line) * H + h
    started = (b * T + token) * H + h
    largest = tl.zeros((BLOCK,), tl.float32)
    if EXPONENTIAL:
        largest += float("-inf")
        for at in range(0, F, FB):
            feature = at + tl.arange(0, FB)
            stands = tl.load(maximum + feature, mask=feature < F, other=float("-inf"))
            exponents = tile(query_features, row * F, feature, here, feature < F)
            if decay is not None:
                stands += tl.where(entered, 0.0, load_decay(decay, started, feature, F, BY_FEATURE))
                exponents += tl.cumsum(later(decay, row, feature, here, line, F, BY_FEATURE), 0)
            largest = tl.maximum(largest, tl.max(exponents + stands[None, :], 1))
        largest = tl.where(largest == float("-inf"), 0.0, largest)
    total, mass = tl.zeros((BLOCK, DB), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for at in range(0, F, FB):
        feature = at + tl.arange(0, FB)
        queries = tile(query_features, row * F, feature, here, feature < F)
        matrix = tile(state, feature * (D + 1), column, feature < F, columns)
        masses = tl.load(state + feature * (D + 1) + D, mask=feature < F, other=0.0)
        if EXPONENTIAL:
            stands = tl.load(maximum + feature, mask=feature < F, other=float("-inf"))
            whole = tl.zeros((FB,), tl.float32)
            if decay is not None:
                passed = later(decay, row, feature, here, line, F, BY_FEATURE)
                whole = tl.sum(passed, 0)
                stands += tl.where(entered, 0.0, load_decay(decay, started, feature, F, BY_FEATURE))
                queries += tl.cumsum(passed, 0)
            queries = tl.exp(queries + stands[None, :] - largest[:, None])
        elif decay is not None:
            passed = later(decay, row, feature, here, line, F, BY_FEATURE)
            left = tl.exp(tl.where(entered, 0.0, load_decay(decay, started, feature, F, BY_FEATURE)))
            matrix, masses = matrix * left[:, None], masses * left
            queries *= tl.exp(tl.cumsum(passed, 0))
        mass += tl.sum(queries * masses[None, :], 1)
        total = tl.dot(queries, matrix, total, input_precision=PRECISION)
        if decay is not None:
            tl.debug_barrier()  # Several threads may hold the same number; wait until all have read it.
            if EXPONENTIAL:
                tl.store(maximum + feature, stands + whole, mask=feature < F)
            else:
                left = tl.exp(tl.sum(passed, 0))
                put(state, feature * (D + 1), column, matrix * left[:, None], feature < F, columns)
                tl.store(state + feature * (D + 1) + D, masses * left, mask=feature < F)
    some = mass > LEAST
    top = tl.where(some, tl.log2(tl.where(some, mass, 1.0)) + largest * LOG2_E, float("-inf"))
    total *= tl.where(some, 1.0 / tl.where(some, mass, 1.0), 0.0)[:, None]
    sums = tl.where(some, 1.0, 0.0)

    # Places after the cache are the chunk before and the own chunk. A token does not see later tokens.
    asking = tile(query, row * D, column, here, columns)
    own_entry = (2 * size + token + line)[:, None]
    peak = tl.full((BLOCK,), float("-inf"), tl.float32)
    if ROW_MAX:
        for low in range(0, S + 2 * size, SOME):
            place = low + offsets
            _, _, _, _, sees, logits = near(
                asking, held_key, key, held_position, position, head_members, place, first, begin, here, own_entry, size, scale,
                h, k, E, H, K, D, S, DB, PRECISION,
            )  # fmt: skip
            peak = tl.maximum(peak, tl.max(tl.where(sees, logits, float("-inf")), 1))
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    of_held, of_window = -peak, -peak
    if held_weight is not None:
        offset = b * held_weight_b + (token + line) * held_weight_t + h * held_weight_h
        of_held += tl.load(held_weight + offset, mask=here, other=0.0) * LOG2_E
    if weight is not None:
        offset = b * weight_b + (token + line) * weight_t + h * weight_h
        of_window += tl.load(weight + offset, mask=here, other=0.0) * LOG2_E
    for low in range(0, S + 2 * size, SOME):
        place = low + offsets
        entry, late, old, new, sees, logits = near(
            asking, held_key, key, held_position, position, head_members, place, first, begin, here, own_entry, size, scale,
            h, k, E, H, K, D, S, DB, PRECISION,
        )  # fmt: skip
        logits += tl.where((place < S)[None, :], of_held[:, None], of_window[:, None])
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
def near(
    asking, held_key, key, held_position, position, head_members, place, first, begin, here, own_entry, size, scale, h, k, E,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, S: tl.constexpr, DB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return the pairs at some places in the cache and in the two chunks after it, as ``known`` describes them, which of them
    each token sees, and its logits to base 2."""
    column = tl.arange(0, DB)
    entry = standing(head_members, place, first + size, S)
    old, new, late, present = find_known(held_position, position, entry, place < S + 2 * size, begin, h, H, E, S)
    keys = tile(held_key, (entry * H + h) * D, column, old, column < D)
    keys += tile(key, (late * K + k) * D, column, new, column < D)
    logits = tl.dot(asking, tl.trans(keys), input_precision=PRECISION) * (scale * LOG2_E)
    sees = here[:, None] & present[None, :] & ((place < S)[None, :] | (late[None, :] <= own_entry))
    return entry, late, old, new, sees, logits


@triton.jit
def later(decay, row, feature, here, line, F: tl.constexpr, BY_FEATURE: tl.constexpr):
    """Return the decay of each token of a chunk, for each of these features. It is 0 at the first token, and after the last."""
    after = here & (line > 0)
    if BY_FEATURE:
        return tile(decay, row * F, feature, after, feature < F).to(tl.float32)
    else:
        clock = tl.load(decay + row, mask=after, other=0.0).to(tl.float32)
        return clock[:, None] + tl.zeros_like(feature).to(tl.float32)[None, :]
