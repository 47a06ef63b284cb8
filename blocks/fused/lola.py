"""LoLA in chunks: a terraced window, a sparse cache of each query head, the state below them and their read, in one launch.

One program per row and query head processes the chunks from the first to the last. At the start of a chunk, the chunk before the
previous one of its document is evicted: its pairs and those in the cache are scored by the current state, the best are kept, and
the others are added to the state. Then the chunk's queries attend to their own chunk and the previous one, the cache, and the
state, over one denominator (both in ``blocks.fused.lola_output``). If the score needs it, the errors of the feature products are
added up for the pairs in the window: the difference between exact weight and feature product, summed over the queries that see
the pair there. At the start of a document, cache and state are empty.

    query B T H D    key, value B E K D and position B E, of the entries: 2·size before the call, the oldest first, and T
    query_features B T H F    key_features B e N F, e ≤ E; of exponential maps their logarithms
    held_key, held_value B S H D, held_features B S M F, held_position B S H: the cache before the call
    weight, held_weight B T H, by their strides    length B T H: the factor of query_features
    decay B T H, or B T H F    state B H F D+1, overwritten, times exp(maximum) of exponential maps: B H F, overwritten
    chunk_starts B T: the first token of each chunk, in order    start B E: the first entry of each entry's document
    rows B 2: number of chunks that begin in the call, and number of real tokens
    worth B H S+E: the scores of those that were held and of the entries, where neither state nor window is looked at, with their
    resolution B H S+E; or the errors of each in the window, which the walk adds to
    members B H S: of the kept pairs, their place among the S pairs of the cache followed by the entries

Scores and sums are float32. Of equal scores the older pairs are kept, as in ``blocks.scores.base.pairs_to_evict``.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from blocks.fused.arguments import Cache, Chunks, Scores
from blocks.fused.lola_output import compute_output, evict
from blocks.fused.tiles import products_of, put, tile, tune, width
from blocks.fused.window_and_state import LOG2_E
from blocks.legend import Float, Int
from blocks.scores.base import LARGEST

# pyright: basic, reportArgumentType=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false


MOST = tl.constexpr(math.exp(LARGEST))
MOST_OF_LOGARITHMS = tl.constexpr(LARGEST)
LEAST_WEIGHT = tl.constexpr(math.exp(-LARGEST))


@triton.jit
def add_errors(
    query, key, position, query_features, key_features, length, worth, row, token, end, first, begin, size, scale, k, n, E,
    H: tl.constexpr, K: tl.constexpr, N: tl.constexpr, D: tl.constexpr, F: tl.constexpr, S: tl.constexpr,
    BLOCK: tl.constexpr, SOME: tl.constexpr, DB: tl.constexpr, FB: tl.constexpr,
    ERROR: tl.constexpr, EXPONENTIAL: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Add the errors of the queries of one chunk to ``worth``. row: of the chunk's first token. ERROR: how the exact weight and
    the product of features are compared."""
    column, line, offsets = tl.arange(0, DB), tl.arange(0, BLOCK), tl.arange(0, SOME)
    here, rows = line < end - token, row + line * H
    for low in range(0, 2 * size, SOME):
        entry = (first + size + low + offsets).to(tl.int64)
        present = (low + offsets < 2 * size) & (entry >= begin) & (entry < E)
        present = present & (tl.load(position + entry, mask=present, other=-1) >= 0)
        asking = tile(query, rows * D, column, here, column < D)
        near = tile(key, (entry * K + k) * D, column, present, column < D)
        exact = tl.exp2(tl.dot(asking, tl.trans(near), input_precision=EXACT) * (scale * LOG2_E))
        products = tl.zeros((BLOCK, SOME), tl.float32)
        of_query, of_key = tl.zeros((BLOCK,), tl.float32), tl.zeros((SOME,), tl.float32)
        if EXPONENTIAL:
            of_query, of_key = of_query + float("-inf"), of_key + float("-inf")
            for at in range(0, F, FB):
                feature = at + tl.arange(0, FB)
                of_query = tl.maximum(of_query, largest(query_features, rows * F, feature, here, F))
                of_key = tl.maximum(of_key, largest(key_features, (entry * N + n) * F, feature, present, F))
        for at in range(0, F, FB):
            feature = at + tl.arange(0, FB)
            queries = tile(query_features, rows * F, feature, here, feature < F)
            keys = tile(key_features, (entry * N + n) * F, feature, present, feature < F)
            if EXPONENTIAL:
                queries = tl.where((feature < F)[None, :], tl.exp(queries - of_query[:, None]), 0.0)
                keys = tl.exp(keys - of_key[:, None])
            products = tl.dot(queries, tl.trans(keys), products, input_precision=EXACT)
        if length is not None:
            products *= tl.load(length + rows, mask=here, other=0.0)[:, None]
        if EXPONENTIAL:
            products = tl.exp(tl.minimum(tl.log(products) + of_query[:, None] + of_key[None, :], MOST_OF_LOGARITHMS))
        error = error_of_weight(tl.minimum(exact, MOST), tl.minimum(products, MOST), ERROR)
        sees = here[:, None] & present[None, :] & (entry[None, :] <= (2 * size + token + line)[:, None])
        before = tl.load(worth + S + entry, mask=present, other=0.0)
        tl.debug_barrier()  # Several threads may hold the same number; wait until all have read it.
        tl.store(worth + S + entry, before + tl.sum(tl.where(sees, error, 0.0), 0), mask=present)


@triton.jit
def largest(features, row, feature, present, F: tl.constexpr):
    """Return the largest of some features of each row."""
    return tl.max(tl.where((feature < F)[None, :], tile(features, row, feature, present, feature < F), float("-inf")), 1)


@triton.jit
def error_of_weight(exact, product, ERROR: tl.constexpr):
    """Return the error of an attention weight, as the scores in ``blocks.scores`` define it."""
    if ERROR == "overestimate":
        return product / tl.maximum(exact, LEAST_WEIGHT)
    elif ERROR == "squared_error":
        return (exact - product) * (exact - product)
    else:
        return tl.abs(exact - product)


# pyright: basic, reportArgumentType=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false


SOME = 32
"""Number of pairs that are processed together."""
WRITTEN = ["state", "maximum", "worth", "members"]


@tune(
    (4, 1),
    (8, 1),
    key=["H", "K", "D", "F", "S"],
    numbers=["T", "E", "e", "size", "weight_b", "weight_t", "weight_h", "held_weight_b", "held_weight_t", "held_weight_h"],
    restore=WRITTEN,
)
def walk(
    query, key, value, position, query_features, key_features, held_key, held_value, held_features, held_position,
    weight, held_weight, length, decay, chunk_starts, start, rows, resolution,
    state, maximum, worth, members, scored, evicted_places, output,
    T, E, e, size, scale, weight_b, weight_t, weight_h, held_weight_b, held_weight_t, held_weight_h,
    H: tl.constexpr, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr, D: tl.constexpr, F: tl.constexpr, S: tl.constexpr,
    BLOCK: tl.constexpr, SOME: tl.constexpr, EB: tl.constexpr, DB: tl.constexpr, FB: tl.constexpr, ROW_MAX: tl.constexpr,
    KEEP: tl.constexpr, ERROR: tl.constexpr, EXPONENTIAL: tl.constexpr, BY_FEATURE: tl.constexpr,
    PRECISION: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Process all chunks of one row and query head.

    BLOCK: at least the tokens of a chunk. SOME: pairs that are processed together. EB: at least the number of candidates.
    scored B H 2 EB, evicted_places B H EB: buffers for the candidates' scores and for the evicted pairs.
    KEEP, ERROR: as in ``Scores``.
    """
    b, h = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    k, n, m = h // (H // K), h // (H // N), h // (H // M)
    count, real = tl.load(rows + b * 2), tl.load(rows + b * 2 + 1)
    head_members, state, maximum = members + (b * H + h) * S, state + (b * H + h) * F * (D + 1), maximum + (b * H + h) * F
    scored, evicted_places = scored + (b * H + h) * 2 * EB, evicted_places + (b * H + h) * EB
    worth += (b * H + h) * (S + E)
    if resolution is not None:
        resolution += (b * H + h) * (S + E)
    key, value, position, key_features = key + b * E * K * D, value + b * E * K * D, position + b * E, key_features + b * e * N * F
    held_key, held_value = held_key + b * S * H * D, held_value + b * S * H * D
    held_features, held_position = held_features + b * S * M * F, held_position + b * S * H
    for chunk in range(0, count):
        token = tl.load(chunk_starts + b * T + chunk)
        end = tl.minimum(tl.load(chunk_starts + b * T + chunk + 1, mask=chunk + 1 < T, other=T), real)
        place = tl.load(position + 2 * size + token).to(tl.int32)
        first, begin = token - place % size, 0
        entered = (place % size == 0) & (place >= 2 * size)
        if start is not None:
            begin = tl.load(start + b * E + 2 * size + token)
            if begin == 2 * size + token:
                empty(state, maximum, D, F, DB, FB, EXPONENTIAL)
        if entered:
            evict(
                value, position, key_features, held_value, held_features, held_position, decay, resolution,
                state, maximum, worth, head_members, scored, evicted_places, (b * T + token) * H + h, first, begin, size, h, k, n,
                m, E, H, K, N, M, D, F, S, SOME, EB, DB, FB, KEEP, EXPONENTIAL, BY_FEATURE, EXACT,
            )  # fmt: skip
        if ERROR != "":
            add_errors(
                query, key, position, query_features, key_features, length, worth, (b * T + token) * H + h,
                token, end, first, begin, size, scale, k, n, E, H, K, N, D, F, S, BLOCK, SOME, DB, FB, ERROR, EXPONENTIAL, EXACT,
            )  # fmt: skip
        compute_output(
            query, key, value, position, query_features, held_key, held_value, held_position,
            weight, held_weight, decay, state, maximum, head_members, output,
            b, token, end, first, begin, entered, size, scale, h, k, T, E,
            weight_b, weight_t, weight_h, held_weight_b, held_weight_t, held_weight_h,
            H, K, D, F, S, BLOCK, SOME, DB, FB, ROW_MAX, EXPONENTIAL, BY_FEATURE, PRECISION,
        )  # fmt: skip
        tl.debug_barrier()


@triton.jit
def empty(
    state, maximum, D: tl.constexpr, F: tl.constexpr, DB: tl.constexpr, FB: tl.constexpr, EXPONENTIAL: tl.constexpr
):  # fmt: skip
    """Set the state to that of no pairs."""
    column = tl.arange(0, DB)
    for at in range(0, F, FB):
        feature = at + tl.arange(0, FB)
        put(state, feature * (D + 1), column, tl.zeros((FB, DB), tl.float32), feature < F, column < D)
        tl.store(state + feature * (D + 1) + D, tl.zeros((FB,), tl.float32), mask=feature < F)
        if EXPONENTIAL:
            tl.store(maximum + feature, tl.full((FB,), float("-inf"), tl.float32), mask=feature < F)
    tl.debug_barrier()


def walk_pairs(
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B E K D"],
    value: Float[Tensor, "B E K D"],
    position: Int[Tensor, "B E"],
    query_features: Float[Tensor, "B T H F"],
    key_features: Float[Tensor, "B e N F"],
    cache: Cache,
    weights: tuple[Tensor | None, Tensor | None],
    decay: Tensor | None,
    state: Float[Tensor, "B H F V"],
    maximum: Float[Tensor, "B H F"] | None,
    chunks: Chunks,
    scores: Scores,
    *,
    row_max: bool,
) -> tuple[Float[Tensor, "B T H D"], Int[Tensor, "B H S"]]:
    """Return the head's output, and the places of the pairs that the cache holds at the end. weights: of the window and the
    cache, B T H."""
    batch, length, heads, dim = query.shape
    cache_size, wide, size = cache.key.shape[1], query_features.shape[-1], chunks.size
    output = torch.zeros_like(query, memory_format=torch.contiguous_format)
    members = torch.arange(cache_size, dtype=torch.int32, device=query.device).expand(batch, heads, -1).contiguous()
    competing = width(cache_size + size)
    scored, evicted_places = state.new_empty(batch, heads, 2, competing), members.new_empty(batch, heads, competing)
    columns, exact = width(dim), products_of(query.dtype)[1]
    fine = "ieee" if exact == "ieee" else "tf32x3"
    shared, feature_heads = key.shape[2], (key_features.shape[2], cache.features.shape[2])
    constants = {"H": heads, "K": shared, "N": feature_heads[0], "M": feature_heads[1], "D": dim, "F": wide, "S": cache_size}
    constants |= {"BLOCK": width(size), "SOME": SOME, "EB": competing, "DB": columns, "FB": width(wide, 32)}
    constants |= {"ROW_MAX": row_max, "KEEP": scores.keep, "ERROR": scores.error, "EXPONENTIAL": maximum is not None}
    constants |= {"BY_FEATURE": decay is not None and decay.dim() == 4, "PRECISION": exact, "EXACT": fine}
    strides = [number for weight in weights for number in ((0, 0, 0) if weight is None else weight.stride())]
    inputs = (tensor.contiguous() for tensor in (query, key, value, position, query_features, key_features))
    cache_tensors = (tensor.contiguous() for tensor in (cache.key, cache.value, cache.features, cache.position))
    further = (
        None if tensor is None else tensor.contiguous() for tensor in (scores.length, decay, chunks.chunk_starts, chunks.start)
    )
    nothing = state.new_empty(1)
    written = state, nothing if maximum is None else maximum, nothing if scores.worth is None else scores.worth
    walk[batch * heads,](
        *inputs, *cache_tensors, *weights, *further, chunks.rows, scores.resolution, *written, members, scored, evicted_places,
        output, length, key.shape[1], key_features.shape[1], size, 1 / math.sqrt(dim), *strides, **constants,
    )  # fmt: skip
    return output, members
