"""The errors of the feature products in the LoLA kernel (``blocks.fused.lola``): for each pair in the window, the difference
between exact weight and feature product, summed over the queries that see the pair there.

Letters and layouts are those of that module.
"""
# pyright: basic, reportArgumentType=false, reportIndexIssue=false
# pyright: reportCallIssue=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import math

import triton
import triton.language as tl

from blocks.fused.tiles import tile
from blocks.fused.window_and_state import LOG2_E
from blocks.scores.base import LARGEST

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
