"""The kernels of the backward of ``blocks.fused.window_and_state``, whose letters these are.

With p a pair's share in the output o and ȯ the gradient of o, that of a logit is p (ȯ·v - ȯ·o). A product φ(q)·φ(k) has it
divided by the product: ``share`` (ȯ·v - ȯ·o), where ``share`` is 1 over the mass of both memories. So the state's gradient is the
recurrence backwards, on ``share`` ȯ and, for its mass, -``share`` ȯ·o.

``of_states`` processes the blocks from the last to the first, and stores the gradient of the state after each; ``of_queries`` and
``of_pairs`` process a block of tokens and a block of entries. upstream is ȯ, even is ȯ·o.
"""
# pyright: basic, reportArgumentType=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton.language as tl

from blocks.fused.tiles import put, tile, tune
from blocks.fused.window_and_state import LOG2_E, begins, bounds, decayed_features, over_blocks


@tune((4, 2), (8, 2), (4, 3), key=["H", "N", "D", "F", "BLOCK"], numbers=["T", "E", "count", "steps", "reach"])
def of_states(
    query_features, upstream, share, even, decay, clocks, decay_now, clocks_now, evicted, start, rows, last, laid, laid_mass, state,
    T, E, count, steps, reach,
    H: tl.constexpr, N: tl.constexpr, D: tl.constexpr, F: tl.constexpr,
    BLOCK: tl.constexpr, FB: tl.constexpr, VB: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute one tile of the gradient of a state head's matrix. reach: by token t, at most t + reach entries are evicted."""
    tiles = (D + VB - 1) // VB
    feature, column = tl.program_id(0) // tiles * FB + tl.arange(0, FB), tl.program_id(0) % tiles * VB + tl.arange(0, VB)
    b, n = (tl.program_id(1) // N).to(tl.int64), tl.program_id(1) % N
    features, columns = feature < F, column < D
    matrix = ((b * N + n) * F + feature) * (D + 1)
    summed, mass = tile(last, matrix, column, features, columns), tl.load(last + matrix + D, mask=features, other=0.0)
    end = tl.load(rows + b * 4 + 1)
    if start is not None:
        goes_on = tl.load(rows + b * 4 + 2) <= tl.maximum(end - 1, 0)
        summed, mass = tl.where(goes_on, summed, 0.0), tl.where(goes_on, mass, 0.0)
    for back in range(0, count):
        block = count - 1 - back
        low = block * BLOCK
        place = ((b * N + n) * count + block) * F + feature
        put(laid, place * D, column, summed, features, columns)
        if tl.program_id(0) % tiles == 0:
            tl.store(laid_mass + place, mass, mask=features)
        if start is not None:
            until = tl.minimum(low + BLOCK, end) - 1
            goes_on = (until < low) | (tl.load(start + b * E + tl.maximum(until, 0)) <= tl.maximum(low - 1, 0))
            summed, mass = tl.where(goes_on, summed, 0.0), tl.where(goes_on, mass, 0.0)
        if decay is not None:
            block_decay = tl.exp(tl.load(decay + (b * steps + low + BLOCK - 1) * N + n))
            summed *= block_decay
            mass *= block_decay
        if clocks is not None:
            end_of_block = ((b * steps + low + BLOCK - 1) * N + n) * F
            block_decay = tl.exp(tl.load(clocks + end_of_block + feature, mask=features, other=0.0))
            summed *= block_decay[:, None]
            mass *= block_decay
        nearest = block
        if evicted is not None:
            nearest = tl.maximum(low - reach, 0) // BLOCK
        for asking in range(nearest, tl.minimum(block + 1, tl.cdiv(T, BLOCK))):
            token = asking * BLOCK + tl.arange(0, BLOCK)
            _, base, _ = bounds(evicted, b, token, asking * BLOCK, T, BLOCK)
            reads = (token < T) & (base == block)
            if start is not None:
                begin = tl.load(start + b * E + (E - T) + token, mask=token < T, other=0)
                reads = reads & (begin <= tl.maximum(low - 1, 0))
            for member in range(0, H // N):
                row = (b * T + token) * H + n * (H // N) + member
                queries = tile(query_features, row * F, feature, reads, features)
                if decay is not None:
                    queries *= tl.exp(tl.load(decay_now + (b * steps + token) * N + n))[:, None]
                if clocks is not None:
                    now = tile(clocks_now, ((b * steps + token) * N + n) * F, feature, token < steps, features)
                    queries *= tl.exp(now)
                part = tl.load(share + row, mask=reads, other=0.0)
                numbers = tile(upstream, row * D, column, reads, columns) * part[:, None]
                queries = queries.to(laid.dtype.element_ty)
                summed = tl.dot(tl.trans(queries), numbers.to(queries.dtype), summed, input_precision=PRECISION)
                balance = part * tl.load(even + row, mask=reads, other=0.0)
                mass -= tl.sum(queries.to(tl.float32) * balance[:, None], 0)
    put(state, matrix, column, summed, features, columns)
    if tl.program_id(0) % tiles == 0:
        tl.store(state + matrix + D, mass, mask=features)


@tune(
    (4, 2),
    (8, 2),
    (8, 3),
    key=["H", "K", "N", "D", "F", "BLOCK", "ROW_MAX"],
    numbers=["T", "E", "e", "count", "steps", "past_length", "weight_b", "weight_t", "weight_h"],
)
def of_queries(
    query, key, value, key_features, decay, clocks, decay_now, clocks_now, weight, evicted, start, rows, laid, laid_mass,
    upstream, mass_of_all, share, even, largest, place_of_largest,
    query_gradient, feature_gradient, weight_gradient,
    T, E, e, count, steps, past_length, scale, weight_b, weight_t, weight_h,
    H: tl.constexpr, K: tl.constexpr, N: tl.constexpr, D: tl.constexpr, F: tl.constexpr,
    BLOCK: tl.constexpr, DB: tl.constexpr, FB: tl.constexpr, ROW_MAX: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a block of queries of one head, and of their features and weights."""
    first_token = tl.program_id(0) * BLOCK
    token, column = first_token + tl.arange(0, BLOCK), tl.arange(0, DB)
    b, h = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    k, n = h // (H // K), h // (H // N)
    here, columns = token < T, column < D
    until, base, stop = bounds(evicted, b, token, first_token, T, BLOCK)
    begin, first = begins(start, rows, b, E, past_length + token, here)
    row = (b * T + token) * H + h
    arrived = tile(upstream, row * D, column, here, columns)
    part, balance = tl.load(share + row, mask=here, other=0.0), tl.load(even + row, mask=here, other=0.0)
    since = tl.zeros((BLOCK,), tl.float32)
    if decay is not None:
        since += tl.load(decay_now + (b * steps + token) * N + n)
    place = ((b * N + n) * count + base) * F
    for at in range(0, F, FB):
        feature = at + tl.arange(0, FB)
        matrix = tile(laid, (place + feature) * D, column, feature < F, columns)
        mass = tl.load(laid_mass + place + feature, mask=feature < F, other=0.0)
        of_features = (
            tl.dot(arrived.to(matrix.dtype), tl.trans(matrix), input_precision=PRECISION) - balance[:, None] * mass[None, :]
        )
        of_features *= (part * tl.exp(since))[:, None]
        if clocks is not None:
            now = tile(clocks_now, ((b * steps + token) * N + n) * F, feature, token < steps, feature < F)
            of_features *= tl.exp(now)
        if start is not None:
            of_features = tl.where((begin <= tl.maximum(base * BLOCK - 1, 0))[:, None], of_features, 0.0)
        gone = 0.0
        for low in range(base * BLOCK, stop, BLOCK):
            entry = low + tl.arange(0, BLOCK)
            values = tile(value, ((b * E + entry) * K + k) * D, column, entry < E, columns)
            products = tl.dot(arrived, tl.trans(values), input_precision=PRECISION) - balance[:, None]
            products *= part[:, None]
            if decay is not None:
                passed = (since - gone)[:, None] - tl.load(decay + (b * steps + entry) * N + n)[None, :]
                products *= tl.exp(tl.minimum(passed, 0.0))
                if evicted is not None:
                    gone += tl.load(decay + (b * steps + low + BLOCK - 1) * N + n)
            far = (entry[None, :] < until[:, None]) & (entry[None, :] >= first[:, None])
            products = tl.where(far, products, 0.0).to(laid.dtype.element_ty)
            if clocks is not None:
                for offset in range(0, BLOCK):
                    keys = decayed_features(key_features, clocks, (b * e + low + offset) * N + n,
                                            (b * steps + low + offset) * N + n, low + offset < e, now, feature, F)  # fmt: skip
                    of_features += (
                        tl.sum(tl.where((entry == low + offset)[None, :], products.to(tl.float32), 0.0), 1)[:, None] * keys
                    )
                if evicted is not None:
                    now -= over_blocks(clocks, b * steps, n, low // BLOCK, low // BLOCK + 1, feature, N, F, BLOCK)[None, :]
            else:
                keys = tile(key_features, ((b * e + entry) * N + n) * F, feature, entry < e, feature < F).to(products.dtype)
                of_features = tl.dot(products, keys, of_features, input_precision=PRECISION)
        put(feature_gradient, row * F, feature, of_features, here, feature < F)

    asking = tile(query, row * D, column, here, columns)
    of_all = tl.load(mass_of_all + row, mask=here, other=float("inf"))
    if weight is not None:
        of_all -= tl.load(weight + b * weight_b + token * weight_t + h * weight_h, mask=here, other=0.0) * LOG2_E
    if ROW_MAX:
        of_all += tl.load(largest + row, mask=here, other=0.0)
    nearest, reached = tl.maximum(until, first), past_length + token
    of_query, of_weight = tl.zeros((BLOCK, DB), tl.float32), tl.zeros((BLOCK,), tl.float32)
    low_end, high_end = tl.maximum(base * BLOCK, tl.load(rows + b * 4)), past_length + tl.minimum(first_token + BLOCK, T)
    for low in range(low_end, high_end, BLOCK):
        entry = low + tl.arange(0, BLOCK)
        keys = tile(key, ((b * E + entry) * K + k) * D, column, entry < E, columns)
        values = tile(value, ((b * E + entry) * K + k) * D, column, entry < E, columns)
        near = (entry[None, :] >= nearest[:, None]) & (entry[None, :] <= reached[:, None])
        logits = tl.dot(asking, tl.trans(keys), input_precision=PRECISION) * (scale * LOG2_E) - of_all[:, None]
        shares = tl.exp2(tl.where(near, logits, float("-inf")))
        shares *= tl.dot(arrived, tl.trans(values), input_precision=PRECISION) - balance[:, None]
        of_weight += tl.sum(shares, 1)
        of_query = tl.dot(shares.to(keys.dtype), keys, of_query, input_precision=PRECISION)
    if ROW_MAX:
        entry = tl.load(place_of_largest + row, mask=here, other=0)
        of_query -= of_weight[:, None] * tile(key, ((b * E + entry) * K + k) * D, column, here, columns)
    put(query_gradient, row * D, column, of_query * scale, here, columns)
    tl.store(weight_gradient + row, of_weight, mask=here)


@tune(
    (4, 2),
    (8, 2),
    (8, 1),
    key=["H", "K", "N", "D", "F", "BLOCK", "ROW_MAX"],
    numbers=["T", "E", "e", "count", "steps", "past_length", "reach", "weight_b", "weight_t", "weight_h"],
)
def of_pairs(
    query, key, value, query_features, key_features, decay, clocks, decay_now, clocks_now, weight,
    evicted, start, rows, laid, laid_mass,
    upstream, mass_of_all, share, even, largest, place_of_largest, weight_gradient,
    key_gradient, value_gradient, feature_gradient,
    T, E, e, count, steps, past_length, reach, scale, weight_b, weight_t, weight_h,
    H: tl.constexpr, K: tl.constexpr, N: tl.constexpr, D: tl.constexpr, F: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, DB: tl.constexpr, FB: tl.constexpr, ROW_MAX: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of the keys, values and features of one block of entries and one key head, over all query heads."""
    block, low = tl.program_id(0) * ROWS // BLOCK, tl.program_id(0) * ROWS
    entry, column = low + tl.arange(0, ROWS), tl.arange(0, DB)
    b, k = (tl.program_id(1) // K).to(tl.int64), tl.program_id(1) % K
    columns, is_laid = column < D, block < count
    pair = ((b * E + entry) * K + k) * D
    values = tile(value, pair, column, entry < E, columns)
    end = tl.load(rows + b * 4 + 1)
    enters = (entry >= tl.load(rows + b * 4)) & (entry < end)
    if start is not None:
        enters = enters & (entry >= tl.load(start + b * E + tl.maximum(tl.minimum(block * BLOCK + BLOCK, end) - 1, 0)))
    blocks = tl.minimum(block + 1, tl.cdiv(T, BLOCK))
    asking_first = block
    if evicted is not None:
        asking_first = tl.maximum(low + 1 - reach, 0) // BLOCK
    of_value = tl.zeros((ROWS, DB), tl.float32)
    # Entries are in rows and tokens in columns, because the sums are over tokens.
    for head in range(0, N // K):
        n = k * (N // K) + head
        clock, end_decay = tl.zeros((ROWS,), tl.float32), tl.full((ROWS,), 1.0, tl.float32)
        if decay is not None:
            clock += tl.load(decay + (b * steps + entry) * N + n, mask=entry < steps, other=0.0)
            block_decay = tl.load(decay + (b * steps + block * BLOCK + BLOCK - 1) * N + n, mask=is_laid, other=0.0)
            end_decay = tl.exp(tl.minimum(block_decay - clock, 0.0))
        end_decay = tl.where(enters, end_decay, 0.0)
        for at in range(0, F, FB):
            feature = at + tl.arange(0, FB)
            features = feature < F
            place = ((b * N + n) * count + block) * F + feature
            matrix = tile(laid, place * D, column, features & is_laid, columns)
            mass = tl.load(laid_mass + place, mask=features & is_laid, other=0.0)
            mapped, remains = tile(key_features, ((b * e + entry) * N + n) * F, feature, entry < e, features), end_decay[:, None]
            if clocks is not None:
                block_decay = tl.load(clocks + ((b * steps + block * BLOCK + BLOCK - 1) * N + n) * F + feature,
                                mask=features & is_laid, other=0.0)  # fmt: skip
                then = tile(clocks, ((b * steps + entry) * N + n) * F, feature, entry < steps, features)
                remains *= tl.exp(tl.minimum(block_decay[None, :] - then, 0.0))
            of_value = tl.dot((mapped * remains).to(matrix.dtype), matrix, of_value, input_precision=PRECISION)
            of_features = tl.dot(values.to(matrix.dtype), tl.trans(matrix), input_precision=PRECISION) + mass[None, :]
            of_features *= remains
            mapped = mapped.to(matrix.dtype)
            for asking in range(asking_first, blocks):
                token = asking * BLOCK + tl.arange(0, BLOCK)
                until, base, _ = bounds(evicted, b, token, asking * BLOCK, T, BLOCK)
                _, first = begins(start, rows, b, E, past_length + token, token < T)
                far = (entry[:, None] < until[None, :]) & (entry[:, None] >= first[None, :])
                far = far & ((token < T) & (base <= block))[None, :]
                gone, gone_of = 0.0, tl.zeros((FB,), tl.float32)
                if evicted is not None:
                    if decay is not None:
                        for earlier in range(base, block):
                            gone += tl.load(decay + (b * steps + earlier * BLOCK + BLOCK - 1) * N + n)
                    if clocks is not None:
                        gone_of += over_blocks(clocks, b * steps, n, base, block, feature, N, F, BLOCK)
                for member in range(0, H // N):
                    row = (b * T + token) * H + n * (H // N) + member
                    counts = tl.where(far, tl.load(share + row, mask=token < T, other=0.0)[None, :], 0.0)
                    if decay is not None:
                        since = tl.load(decay_now + (b * steps + token) * N + n) - gone
                        counts *= tl.exp(tl.minimum(since[None, :] - clock[:, None], 0.0))
                    arrived = tile(upstream, row * D, column, token < T, columns)
                    slopes = tl.dot(values, tl.trans(arrived), input_precision=PRECISION)
                    slopes = (slopes - tl.load(even + row, mask=token < T, other=0.0)[None, :]) * counts
                    if clocks is not None:
                        products = tl.zeros((ROWS, BLOCK), tl.float32)
                        for of_block in range(0, BLOCK):
                            late = asking * BLOCK + of_block
                            asks = tl.load(query_features + ((b * T + late) * H + n * (H // N) + member) * F + feature,
                                           mask=features & (late < T), other=0.0).to(tl.float32)  # fmt: skip
                            now = tl.load(clocks_now + ((b * steps + late) * N + n) * F + feature, mask=features, other=0.0)
                            asks = asks[None, :] * tl.exp(tl.minimum((now - gone_of)[None, :] - then, 0.0))
                            its = (token == late)[None, :]
                            products += tl.where(its, tl.sum(mapped.to(tl.float32) * asks, 1)[:, None], 0.0)
                            of_features += tl.sum(tl.where(its, slopes, 0.0), 1)[:, None] * asks
                    else:
                        queries = tile(query_features, row * F, feature, token < T, features).to(matrix.dtype)
                        products = tl.dot(mapped, tl.trans(queries), input_precision=PRECISION)
                        of_features = tl.dot(slopes.to(matrix.dtype), queries, of_features, input_precision=PRECISION)
                    products = (products * counts).to(matrix.dtype)
                    of_value = tl.dot(products, arrived.to(matrix.dtype), of_value, input_precision=PRECISION)
            put(feature_gradient, ((b * e + entry) * N + n) * F, feature, of_features, entry < e, features)

    keys, of_key = tile(key, pair, column, entry < E, columns), tl.zeros((ROWS, DB), tl.float32)
    for asking in range(tl.maximum(low - past_length, 0) // BLOCK, blocks):
        token = asking * BLOCK + tl.arange(0, BLOCK)
        here = token < T
        until, _, _ = bounds(evicted, b, token, asking * BLOCK, T, BLOCK)
        _, first = begins(start, rows, b, E, past_length + token, here)
        near = (entry[:, None] >= tl.maximum(until, first)[None, :]) & (entry[:, None] <= (past_length + token)[None, :])
        for member in range(0, H // K):
            h = k * (H // K) + member
            row = (b * T + token) * H + h
            of_all = tl.load(mass_of_all + row, mask=here, other=float("inf"))
            if weight is not None:
                of_all -= tl.load(weight + b * weight_b + token * weight_t + h * weight_h, mask=here, other=0.0) * LOG2_E
            if ROW_MAX:
                of_all += tl.load(largest + row, mask=here, other=0.0)
            query_rows, arrived = tile(query, row * D, column, here, columns), tile(upstream, row * D, column, here, columns)
            logits = tl.dot(keys, tl.trans(query_rows), input_precision=PRECISION) * (scale * LOG2_E) - of_all[None, :]
            shares = tl.exp2(tl.where(near, logits, float("-inf")))
            of_value = tl.dot(shares.to(arrived.dtype), arrived, of_value, input_precision=PRECISION)
            balance = tl.load(even + row, mask=here, other=0.0)
            shares *= tl.dot(values, tl.trans(arrived), input_precision=PRECISION) - balance[None, :]
            if ROW_MAX:
                of_largest = tl.load(weight_gradient + row, mask=here, other=0.0)
                largest_entry = tl.load(place_of_largest + row, mask=here, other=-1)
                shares -= tl.where(largest_entry[None, :] == entry[:, None], of_largest[None, :], 0.0)
            of_key = tl.dot(shares.to(query_rows.dtype), query_rows, of_key, input_precision=PRECISION)
    put(key_gradient, pair, column, of_key * scale, entry < E, columns)
    put(value_gradient, pair, column, of_value, entry < E, columns)
