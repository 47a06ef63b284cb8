"""A window and the state below it in one pass: the kernels of the forward.

Entries are the pairs that the window held before the call, the oldest first, followed by those of the call: the token t is entry
``past_length + t``. Two numbers per token suffice: entries before ``evicted`` are in the state, and those from there up to its own
are in the window; both only from the first entry of its document on (``start``). So both memories are one softmax, over logits
q·k / √D + w of near entries and log φ(q)·φ(k) of far ones, w the logarithm of the window's weight.

    query B T H D    key, value B E K D    query_features B T H F    key_features B e N F, e ≤ E    state B N F D+1
    decay B steps N: of each entry, log α summed up to the token that evicts it, from after the one at which all before its block
              are evicted; clocks B steps N F, the same of a decay per feature
    decay_now, clocks_now: the same of each token, from after the one at which all before the block ``base`` are evicted, the
              last block evicted at the first of its block of tokens. The same tensors if each token evicts one
    weight B T H, by its strides
    evicted B T: None if each token evicts one    start B E: None if a row is one document
    rows B 4: the first entry that is a pair and in no state yet, the number of evicted ones, the first entry of the last token's
              document, the number of real tokens

``sum_up`` processes the entries block by block, and stores the state before each block. ``compute_output`` processes a block of
queries: the state stored before the first of them, the entries evicted since, and the window. Sums are float32. With a decay per
feature, products are computed pair by pair inside a block, so that no exponent is above 0.
"""
# pyright: basic, reportArgumentType=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from blocks.fused.tiles import put, tile, tune

LOG2_E = tl.constexpr(1.4426950408889634)
LEAST = tl.constexpr(1.1754943508222875e-30)
"""Masses up to this count as 0, as in ``StateMemory``."""


@tune((4, 2), (8, 2), (4, 3), key=["K", "N", "D", "F", "BLOCK"], numbers=["e", "E", "count", "steps"])
def sum_up(
    key_features, value, decay, clocks, start, rows, state, laid, laid_mass, last, e, E, count, steps,
    K: tl.constexpr, N: tl.constexpr, D: tl.constexpr, F: tl.constexpr,
    BLOCK: tl.constexpr, FB: tl.constexpr, VB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute one tile of a state head's matrix, from the first entry to the last. laid: B N count F D, laid_mass: B N count
    F."""
    tiles = (D + VB - 1) // VB
    feature, column = tl.program_id(0) // tiles * FB + tl.arange(0, FB), tl.program_id(0) % tiles * VB + tl.arange(0, VB)
    b, n = (tl.program_id(1) // N).to(tl.int64), tl.program_id(1) % N
    features, columns = feature < F, column < D
    matrix = ((b * N + n) * F + feature) * (D + 1)
    summed = tile(state, matrix, column, features, columns)
    mass = tl.load(state + matrix + D, mask=features, other=0.0)
    first, end = tl.load(rows + b * 4), tl.load(rows + b * 4 + 1)
    place = (b * N + n) * count * F + feature
    for block in range(0, count):
        put(laid, place * D, column, summed, features, columns)
        if tl.program_id(0) % tiles == 0:
            tl.store(laid_mass + place, mass, mask=features)
        place += F
        low = block * BLOCK
        entry = low + tl.arange(0, BLOCK)
        present = (entry >= first) & (entry < end)
        if start is not None:
            until = tl.minimum(low + BLOCK, end) - 1
            begin = tl.load(start + b * E + tl.maximum(until, 0))
            present = present & (entry >= begin)
            goes_on = (until < low) | (begin <= tl.maximum(low - 1, 0))
            summed, mass = tl.where(goes_on, summed, 0.0), tl.where(goes_on, mass, 0.0)
        keys = tile(key_features, ((b * e + entry) * N + n) * F, feature, present, features)
        if decay is not None:
            clock = decay + (b * steps + low) * N + n
            block_decay = tl.load(clock + (BLOCK - 1) * N)
            keys *= tl.exp(block_decay - tl.load(clock + tl.arange(0, BLOCK) * N))[:, None]
            summed *= tl.exp(block_decay)
            mass *= tl.exp(block_decay)
        if clocks is not None:
            clock = clocks + (b * steps * N + n) * F
            block_decay = tl.load(clock + (low + BLOCK - 1) * N * F + feature, mask=features, other=0.0)
            keys *= tl.exp(block_decay[None, :] - tile(clock, entry * N * F, feature, entry < steps, features))
            summed *= tl.exp(block_decay)[:, None]
            mass *= tl.exp(block_decay)
        keys = keys.to(laid.dtype.element_ty)
        values = tile(value, ((b * E + entry) * K + n // (N // K)) * D, column, present, columns)
        summed = tl.dot(tl.trans(keys), values.to(keys.dtype), summed, input_precision=PRECISION)
        mass += tl.sum(keys.to(tl.float32), 0)
    if start is not None:
        goes_on = tl.load(rows + b * 4 + 2) <= tl.maximum(end - 1, 0)
        summed, mass = tl.where(goes_on, summed, 0.0), tl.where(goes_on, mass, 0.0)
    put(last, matrix, column, summed, features, columns)
    if tl.program_id(0) % tiles == 0:
        tl.store(last + matrix + D, mass, mask=features)


@tune(
    (4, 2),
    (8, 2),
    (4, 3),
    (8, 3),
    key=["H", "K", "N", "D", "F", "BLOCK", "ROW_MAX"],
    numbers=["T", "E", "e", "count", "steps", "past_length", "weight_b", "weight_t", "weight_h"],
)
def compute_output(
    query, key, value, query_features, key_features, decay, clocks, decay_now, clocks_now, weight,
    evicted, start, rows, laid, laid_mass,
    output, mass_of_all, share, largest, place_of_largest,
    T, E, e, count, steps, past_length, scale, weight_b, weight_t, weight_h,
    H: tl.constexpr, K: tl.constexpr, N: tl.constexpr, D: tl.constexpr, F: tl.constexpr,
    BLOCK: tl.constexpr, DB: tl.constexpr, FB: tl.constexpr, ROW_MAX: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the outputs of a block of queries of one head, and the tensors that the backward needs: the logarithm to base 2
    of the common mass, the factor of the state's products, and, with ``row_max``, the window's largest logit and its place."""
    first_token = tl.program_id(0) * BLOCK
    token, column = first_token + tl.arange(0, BLOCK), tl.arange(0, DB)
    b, h = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    k, n = h // (H // K), h // (H // N)
    here, columns = token < tl.minimum(T, tl.load(rows + b * 4 + 3)), column < D
    until, base, stop = bounds(evicted, b, token, first_token, T, BLOCK)
    begin, first = begins(start, rows, b, E, past_length + token, token < T)
    row = (b * T + token) * H + h

    total, mass = tl.zeros((BLOCK, DB), tl.float32), tl.zeros((BLOCK,), tl.float32)
    place = ((b * N + n) * count + base) * F
    for at in range(0, F, FB):
        feature = at + tl.arange(0, FB)
        queries = tile(query_features, row * F, feature, here, feature < F)
        if clocks is not None:
            queries *= tl.exp(tile(clocks_now, ((b * steps + token) * N + n) * F, feature, token < steps, feature < F))
        matrix = tile(laid, (place + feature) * D, column, feature < F, columns)
        mass += tl.sum(queries * tl.load(laid_mass + place + feature, mask=feature < F, other=0.0)[None, :], 1)
        total = tl.dot(queries.to(matrix.dtype), matrix, total, input_precision=PRECISION)
    since = tl.zeros((BLOCK,), tl.float32)
    if decay is not None:
        since += tl.load(decay_now + (b * steps + token) * N + n)
        total, mass = total * tl.exp(since)[:, None], mass * tl.exp(since)
    if start is not None:
        uses = begin <= tl.maximum(base * BLOCK - 1, 0)
        total, mass = tl.where(uses[:, None], total, 0.0), tl.where(uses, mass, 0.0)
    for low in range(base * BLOCK, stop, BLOCK):
        entry = low + tl.arange(0, BLOCK)
        products = tl.zeros((BLOCK, BLOCK), tl.float32)
        for at in range(0, F, FB):
            feature = at + tl.arange(0, FB)
            queries = tile(query_features, row * F, feature, here, feature < F).to(laid.dtype.element_ty)
            if clocks is not None:
                now = tile(clocks_now, ((b * steps + token) * N + n) * F, feature, token < steps, feature < F)
                if evicted is not None:
                    now -= over_blocks(clocks, b * steps, n, base, low // BLOCK, feature, N, F, BLOCK)[None, :]
                for offset in range(0, BLOCK):
                    keys = decayed_features(key_features, clocks, (b * e + low + offset) * N + n,
                                            (b * steps + low + offset) * N + n, low + offset < e, now, feature, F)  # fmt: skip
                    product = tl.sum(queries.to(tl.float32) * keys, 1)
                    products += tl.where((entry == low + offset)[None, :], product[:, None], 0.0)
            else:
                keys = tile(key_features, ((b * e + entry) * N + n) * F, feature, entry < e, feature < F).to(queries.dtype)
                products = tl.dot(queries, tl.trans(keys), products, input_precision=PRECISION)
        if decay is not None:
            passed = since[:, None] - tl.load(decay + (b * steps + entry) * N + n)[None, :]
            products *= tl.exp(tl.minimum(passed, 0.0))
            if evicted is not None:
                since -= tl.load(decay + (b * steps + low + BLOCK - 1) * N + n)
        far = (entry[None, :] < until[:, None]) & (entry[None, :] >= first[:, None])
        products = tl.where(far, products, 0.0).to(laid.dtype.element_ty)
        values = tile(value, ((b * E + entry) * K + k) * D, column, entry < E, columns)
        mass += tl.sum(products.to(tl.float32), 1)
        total = tl.dot(products, values.to(products.dtype), total, input_precision=PRECISION)

    # The state counts as one more entry of the window's softmax. Its logit is the logarithm of its mass.
    has_mass = mass > LEAST
    top = tl.where(has_mass, tl.log2(tl.where(has_mass, mass, 1.0)), float("-inf"))
    total *= tl.where(has_mass, 1.0 / tl.where(has_mass, mass, 1.0), 0.0)[:, None]
    sums = tl.where(has_mass, 1.0, 0.0)

    asking = tile(query, row * D, column, here, columns)
    nearest, reached = tl.maximum(until, first), past_length + token
    low_end, high_end = tl.maximum(base * BLOCK, tl.load(rows + b * 4)), past_length + tl.minimum(first_token + BLOCK, T)
    shift = tl.zeros((BLOCK,), tl.float32)
    if weight is not None:
        shift += tl.load(weight + b * weight_b + token * weight_t + h * weight_h, mask=here, other=0.0) * LOG2_E
    if ROW_MAX:
        peak, place_of_peak = tl.full((BLOCK,), float("-inf"), tl.float32), tl.full((BLOCK,), 0, tl.int32)
        for low in range(low_end, high_end, BLOCK):
            entry = low + tl.arange(0, BLOCK)
            keys = tile(key, ((b * E + entry) * K + k) * D, column, entry < E, columns)
            near = here[:, None] & (entry[None, :] >= nearest[:, None]) & (entry[None, :] <= reached[:, None])
            logits = tl.dot(asking, tl.trans(keys), input_precision=PRECISION) * (scale * LOG2_E)
            logits = tl.where(near, logits, float("-inf"))
            higher = tl.max(logits, 1)
            place_of_peak = tl.where(higher > peak, low + tl.argmax(logits, 1), place_of_peak)
            peak = tl.maximum(peak, higher)
        peak = tl.where(peak == float("-inf"), 0.0, peak)
        tl.store(largest + row, peak, mask=token < T)
        tl.store(place_of_largest + row, place_of_peak, mask=token < T)
        shift -= peak
    for low in range(low_end, high_end, BLOCK):
        entry = low + tl.arange(0, BLOCK)
        keys = tile(key, ((b * E + entry) * K + k) * D, column, entry < E, columns)
        near = here[:, None] & (entry[None, :] >= nearest[:, None]) & (entry[None, :] <= reached[:, None])
        logits = tl.dot(asking, tl.trans(keys), input_precision=PRECISION) * (scale * LOG2_E) + shift[:, None]
        logits = tl.where(near, logits, float("-inf"))
        higher = tl.maximum(top, tl.max(logits, 1))
        finite = tl.where(higher == float("-inf"), 0.0, higher)
        weights, correction = tl.exp2(logits - finite[:, None]), tl.exp2(top - finite)
        sums = sums * correction + tl.sum(weights, 1)
        values = tile(value, ((b * E + entry) * K + k) * D, column, entry < E, columns)
        total = tl.dot(weights.to(values.dtype), values, total * correction[:, None], input_precision=PRECISION)
        top = higher

    some = sums > 0
    sums = tl.where(some, sums, 1.0)
    of_all = tl.where(some, top + tl.log2(sums), float("inf"))
    put(output, row * D, column, total / sums[:, None], token < T, columns)
    tl.store(mass_of_all + row, of_all, mask=token < T)
    tl.store(share + row, tl.where(has_mass, tl.exp2(-of_all), 0.0), mask=token < T)


@triton.jit
def decayed_features(key_features, clocks, row, then, present, now, feature, F: tl.constexpr):
    """Return one entry's features, decayed to each token of its block. At tokens before the entry the exponent is limited to 0.
    row, then: of its features and its clock. now: the clocks of the tokens."""
    key = tl.load(key_features + row * F + feature, mask=present & (feature < F), other=0.0).to(tl.float32)
    passed = now - tl.load(clocks + then * F + feature, mask=feature < F, other=0.0)[None, :]
    return key[None, :] * tl.exp(tl.minimum(passed, 0.0))


@triton.jit
def over_blocks(clocks, row, n, base, block, feature, N: tl.constexpr, F: tl.constexpr, BLOCK: tl.constexpr):
    """Return the decay over the blocks of entries from ``base`` to before ``block``. row: of the first entry."""
    passed = tl.zeros(feature.shape, tl.float32)
    for earlier in range(base, block):
        last = ((row + earlier * BLOCK + BLOCK - 1) * N + n) * F
        passed += tl.load(clocks + last + feature, mask=feature < F, other=0.0)
    return passed


@triton.jit
def bounds(evicted, b, token, first_token, T, BLOCK: tl.constexpr):
    """Return, for the tokens of a block: the number of entries evicted by each, the last block of entries before which all are
    evicted by the first token, and the number of entries evicted by the last token."""
    until, base, stop = token + 1, first_token // BLOCK, tl.minimum(first_token + BLOCK, T)
    if evicted is not None:
        until = tl.load(evicted + b * T + token, mask=token < T, other=0)
        base = tl.load(evicted + b * T + first_token) // BLOCK
        stop = tl.load(evicted + b * T + stop - 1)
    return until, base, stop


@triton.jit
def begins(start, rows, b, E, entry, valid):
    """Return the first entry of each token's document, and the first of its entries that is a pair and not yet in the state."""
    begin = tl.zeros_like(entry)
    if start is not None:
        begin = tl.load(start + b * E + entry, mask=valid, other=0)
    return begin, tl.maximum(begin, tl.load(rows + b * 4))
