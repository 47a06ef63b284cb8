"""One chunk in the LoLA kernel. Letters and layouts are those of ``blocks.fused.lola``.

``evict``, at the start of a chunk: the candidates are scored, the best ones are kept in the cache, and the others are added to the
state. One number identifies a pair: a number below S is a place in the cache at the beginning of the call; otherwise it is S plus
the place among the entries.

``compute_output``: attention to the chunk itself, the chunk before, the cache and the state, with one denominator. The state is the
one before the chunk's first token, and decays are counted from there, so every exponent of a decay is at most 0.
"""
# pyright: basic, reportArgumentType=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from blocks.fused.tiles import put, tile
from blocks.fused.window_and_state import LEAST, LOG2_E
from blocks.scores.base import ROUNDING

ROUNDED = tl.constexpr(ROUNDING * 2.0**-23)
"""The relative rounding error of scores in float32, as in ``blocks.scores.base.rounding_error``."""
NONE = tl.constexpr(-1e38)
"""The score where there is no pair. The difference of two such scores is 0."""


@triton.jit
def evict(
    value, position, key_features, held_value, held_features, held_position, decay, resolution,
    state, maximum, worth, head_members, scored, evicted_places, row, first, begin, size, h, k, n, m, E,
    H: tl.constexpr, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr, D: tl.constexpr, F: tl.constexpr, S: tl.constexpr,
    SOME: tl.constexpr, EB: tl.constexpr, DB: tl.constexpr, FB: tl.constexpr,
    KEEP: tl.constexpr, EXPONENTIAL: tl.constexpr, BY_FEATURE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Score the candidates of one chunk, update the cache, and add evicted pairs to the state.

    All pointers except ``decay`` are offset to the program's row and head. row: of the chunk's first token, whose decay is
    applied after scoring and before pairs are added. first: that token's place minus the number of tokens before it in its
    chunk. begin: the first entry of the document.
    """
    column, every, offsets = tl.arange(0, DB), tl.arange(0, EB), tl.arange(0, SOME)
    columns = column < D
    # The candidates of the window are 2·size entries before the chunk's first token, which is entry 2·size + first.
    for low in range(0, S + size, SOME):
        place = low + offsets
        entry = standing(head_members, place, first, S)
        valid = place < S + size
        old, new, late, present = find_known(held_position, position, entry, valid, begin, h, H, E, S)
        if KEEP == "self_recall" or KEEP == "relative_recall":  # noqa: PLR1714 - a kernel has no sets
            numbers = tile(held_value, (entry * H + h) * D, column, old, columns)
            numbers = (numbers + tile(value, (late * K + k) * D, column, new, columns)).to(tl.float32)
            largest = tl.zeros((SOME,), tl.float32)
            if EXPONENTIAL:
                largest += float("-inf")
                for at in range(0, F, FB):
                    feature = at + tl.arange(0, FB)
                    mapped = features_of(held_features, key_features, entry, late, old, new, feature, m, n, M, N, F)
                    mapped += tl.load(maximum + feature, mask=feature < F, other=float("-inf"))[None, :]
                    largest = tl.maximum(largest, tl.max(mapped, 1))
                largest = tl.where(largest == float("-inf"), 0.0, largest)
            recalled, mass = tl.zeros((SOME, DB), tl.float32), tl.zeros((SOME,), tl.float32)
            for at in range(0, F, FB):
                feature = at + tl.arange(0, FB)
                mapped = features_of(held_features, key_features, entry, late, old, new, feature, m, n, M, N, F)
                if EXPONENTIAL:
                    mapped += tl.load(maximum + feature, mask=feature < F, other=float("-inf"))[None, :]
                    mapped = tl.exp(mapped - largest[:, None])
                matrix = tile(state, feature * (D + 1), column, feature < F, columns)
                recalled = tl.dot(mapped, matrix, recalled, input_precision=EXACT)
                mass += tl.sum(mapped * tl.load(state + feature * (D + 1) + D, mask=feature < F, other=0.0)[None, :], 1)
            recalled *= tl.where(mass > LEAST, 1.0 / tl.where(mass > LEAST, mass, 1.0), 0.0)[:, None]
            length = tl.sqrt(tl.sum(numbers * numbers, 1))
            score = tl.sqrt(tl.sum((recalled - numbers) * (recalled - numbers), 1))
            within = (score + length) * ROUNDED
            if KEEP == "relative_recall":
                score, within = score / tl.maximum(length, 1e-19), within / tl.maximum(length, 1e-19)
        else:
            score = tl.load(worth + entry, mask=present, other=0.0)
            if KEEP == "place":
                within = tl.zeros((SOME,), tl.float32)
            elif KEEP == "pair":
                within = tl.load(resolution + entry, mask=present, other=0.0)
            else:
                within = tl.abs(score) * ROUNDED
        tl.store(scored + place, tl.where(present, score, NONE), mask=valid)
        tl.store(scored + EB + place, tl.where(present, within, 0.0), mask=valid)
    tl.debug_barrier()
    contends = every < S + size
    score = tl.load(scored + every, mask=contends, other=NONE)
    within = tl.load(scored + EB + every, mask=contends, other=0.0)
    stays, slot = choose_kept(score, within, contends, S, EB)
    stood, evictions = standing(head_members, every, first, S), (score > NONE) & (stays == 0)
    tl.debug_barrier()
    tl.store(head_members + slot, stood.to(tl.int32), mask=stays)
    tl.store(evicted_places + tl.cumsum(evictions.to(tl.int32), 0) - 1, stood.to(tl.int32), mask=evictions)
    evicted = tl.sum(evictions.to(tl.int32), 0)
    tl.debug_barrier()
    for at in range(0, F, FB):
        feature = at + tl.arange(0, FB)
        features = feature < F
        matrix = tile(state, feature * (D + 1), column, features, columns)
        masses = tl.load(state + feature * (D + 1) + D, mask=features, other=0.0)
        peak = tl.zeros((FB,), tl.float32)
        if EXPONENTIAL:
            before = tl.load(maximum + feature, mask=features, other=float("-inf"))
            if decay is not None:
                before += load_decay(decay, row, feature, F, BY_FEATURE)
            peak = before
            for low in range(0, evicted, SOME):
                place = low + offsets
                entry, old, new, late = of_evicted(evicted_places, place, evicted, S)
                mapped = features_of(held_features, key_features, entry, late, old, new, feature, m, n, M, N, F)
                peak = tl.maximum(peak, tl.max(tl.where((place < evicted)[:, None], mapped, float("-inf")), 0))
            finite = tl.where(peak == float("-inf"), 0.0, peak)
            state_factor = tl.exp(before - finite)
            matrix, masses = matrix * state_factor[:, None], masses * state_factor
        elif decay is not None:
            state_factor = tl.exp(load_decay(decay, row, feature, F, BY_FEATURE))
            matrix, masses = matrix * state_factor[:, None], masses * state_factor
        for low in range(0, evicted, SOME):
            place = low + offsets
            entry, old, new, late = of_evicted(evicted_places, place, evicted, S)
            mapped = features_of(held_features, key_features, entry, late, old, new, feature, m, n, M, N, F)
            if EXPONENTIAL:
                mapped = tl.where((place < evicted)[:, None] & features[None, :], tl.exp(mapped - finite[None, :]), 0.0)
            numbers = tile(held_value, (entry * H + h) * D, column, old, columns)
            numbers = (numbers + tile(value, (late * K + k) * D, column, new, columns)).to(tl.float32)
            matrix = tl.dot(tl.trans(mapped), numbers, matrix, input_precision=EXACT)
            masses += tl.sum(mapped, 0)
        tl.debug_barrier()  # Several threads may hold the same number; wait until all have read it.
        put(state, feature * (D + 1), column, matrix, features, columns)
        tl.store(state + feature * (D + 1) + D, masses, mask=features)
        if EXPONENTIAL:
            tl.store(maximum + feature, peak, mask=features)
    tl.debug_barrier()


@triton.jit
def standing(head_members, place, first, S: tl.constexpr):
    """Return the numbers of the pairs in the cache, followed by the entries from ``first``."""
    return tl.where(place < S, tl.load(head_members + place, mask=place < S, other=0), S + first + place - S)


@triton.jit
def find_known(held_position, position, entry, valid, begin, h, H: tl.constexpr, E, S: tl.constexpr):
    """Return which pairs were in the cache and which are entries, the places of the entries, and which are pairs of the
    document that starts at entry ``begin`` (0: it continues from an earlier call)."""
    late = tl.maximum(entry - S, 0).to(tl.int64)  # of a long text, offsets of its numbers leave 32 bits
    old, new = valid & (entry < S) & (entry >= 0), valid & (entry >= S) & (late < E)
    present = (tl.load(held_position + entry * H + h, mask=old, other=-1) >= 0) & (begin == 0)
    return old, new, late, present | ((tl.load(position + late, mask=new, other=-1) >= 0) & (late >= begin))


@triton.jit
def features_of(
    held_features, key_features, entry, late, old, new, feature, m, n, M: tl.constexpr, N: tl.constexpr, F: tl.constexpr
):
    """Return the features of some pairs, which are in the cache or among the entries."""
    mapped = tile(held_features, (entry * M + m) * F, feature, old, feature < F)
    return mapped + tile(key_features, (late * N + n) * F, feature, new, feature < F)


@triton.jit
def of_evicted(evicted_places, place, evicted, S: tl.constexpr):
    """Return the evicted pairs: their numbers, which of them were in the cache, which are entries, and the places of the
    entries."""
    entry = tl.load(evicted_places + place, mask=place < evicted, other=0)
    return entry, (place < evicted) & (entry < S), (place < evicted) & (entry >= S), tl.maximum(entry - S, 0).to(tl.int64)


@triton.jit
def load_decay(decay, row, feature, F: tl.constexpr, BY_FEATURE: tl.constexpr):
    """Return the decay of one token, for each of these features."""
    if BY_FEATURE:
        return tl.load(decay + row * F + feature, mask=feature < F, other=0.0).to(tl.float32)
    else:
        return tl.load(decay + row).to(tl.float32) + tl.zeros_like(feature).to(tl.float32)


@triton.jit
def choose_kept(score, resolution, contends, S: tl.constexpr, EB: tl.constexpr):
    """Return which candidates are kept in the cache, and their new places, in the order of age. The threshold is the S-th largest
    score. Candidates above it by more than the rounding errors are kept, then those equal to it, the older ones first."""
    score = tl.where(contends, score, NONE)
    bar = tl.sum(tl.where(tl.arange(0, EB) == S - 1, tl.sort(score, descending=True), 0.0), 0)
    within = resolution + tl.max(tl.where(score == bar, resolution, 0.0), 0)
    greater = contends & (score - bar > within)
    equal = contends & (greater == 0) & (bar - score <= within)
    stays = greater | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= S - tl.sum(greater.to(tl.int32), 0)))
    return stays, tl.cumsum(stays.to(tl.int32), 0) - 1


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
            decay_sum = tl.zeros((FB,), tl.float32)
            if decay is not None:
                passed = later(decay, row, feature, here, line, F, BY_FEATURE)
                decay_sum = tl.sum(passed, 0)
                stands += tl.where(entered, 0.0, load_decay(decay, started, feature, F, BY_FEATURE))
                queries += tl.cumsum(passed, 0)
            queries = tl.exp(queries + stands[None, :] - largest[:, None])
        elif decay is not None:
            passed = later(decay, row, feature, here, line, F, BY_FEATURE)
            decay_factor = tl.exp(tl.where(entered, 0.0, load_decay(decay, started, feature, F, BY_FEATURE)))
            matrix, masses = matrix * decay_factor[:, None], masses * decay_factor
            queries *= tl.exp(tl.cumsum(passed, 0))
        mass += tl.sum(queries * masses[None, :], 1)
        total = tl.dot(queries, matrix, total, input_precision=PRECISION)
        if decay is not None:
            tl.debug_barrier()  # Several threads may hold the same number; wait until all have read it.
            if EXPONENTIAL:
                tl.store(maximum + feature, stands + decay_sum, mask=feature < F)
            else:
                decay_factor = tl.exp(tl.sum(passed, 0))
                put(state, feature * (D + 1), column, matrix * decay_factor[:, None], feature < F, columns)
                tl.store(state + feature * (D + 1) + D, masses * decay_factor, mask=feature < F)
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
        weights, correction = tl.exp2(logits - finite[:, None]), tl.exp2(top - finite)
        numbers = tile(held_value, (entry * H + h) * D, column, old, columns)
        numbers += tile(value, (late * K + k) * D, column, new, columns)
        total = tl.dot(weights.to(numbers.dtype), numbers, total * correction[:, None], input_precision=PRECISION)
        sums, top = sums * correction + tl.sum(weights, 1), higher
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
