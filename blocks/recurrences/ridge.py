"""Regression on the past: G_t = α_t G_{t-1} + β_t k_tᵀ k_t, H_t = α_t H_{t-1} + β_t k_tᵀ v_t, o_t = q_t (G_t + Λ)⁻¹ H_t.

(G_t + Λ)⁻¹ H_t is the matrix that maps the keys so far to their values with the smallest weighted squared error, and a penalty Λ, a
diagonal, on its size. von Oswald et al. 2025, arXiv:2506.05233 (MesaNet), where G and H are these.

All forms have the same arguments:

    query      B T H F     head h reads state head h // (H // N)
    key        B T N F     of length 1, so that G has no large entries
    value      B T K V     state head n reads the value of key head n // (N // K)
    rate       B T N       β, at least 0 (0: no pair enters, decay still runs)
    log_decay  None (no decay) or B T N, at most 0
    segment    B T, not decreasing: the document of each token; 0 continues ``state``. None: all do
    state      B N F F+V   G with H beside it
    ridge      N F         the diagonal of Λ, above 0
    returns    output B T H V, and the state after the last token

There is no form on flash-linear-attention. Its ``mesa_net`` kernels add 1e-5 to the sizes that they divide by, and so stop short of
the solution: on random keys by 8e-5 of the largest output, where float32 rounds 5e-7 of it.

In the form of decode, key, value and rate are None if there is no pair, and ``state`` may be overwritten if ``in_place``.
"""

from __future__ import annotations

import math
from itertools import repeat

from blocks.legend import Float, Int, Tensor, torch
from blocks.operation import REFERENCE, TORCH, Form, pair_obstacle
from blocks.recurrences.chunks import cut_documents, decay_between, decay_state, into_chunks, of_documents
from blocks.tensors import may_read_numbers, repeat_heads


def naive(
    query: Float[Tensor, "B T H F"],
    key: Float[Tensor, "B T N F"],
    value: Float[Tensor, "B T K V"],
    rate: Float[Tensor, "B T N"],
    log_decay: Float[Tensor, "B T N"] | None,
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B N F X"],
    *,
    ridge: Float[Tensor, "N F"],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B N F X"]]:
    """o_t = q_t (G_t + Λ)⁻¹ H_t. A new document starts from G = 0 and H = 0."""
    state_heads, features = key.shape[2:]
    entering = torch.cat((key, repeat_heads(value, state_heads)), dim=-1)
    outputs = []
    for t in range(query.shape[1]):
        if log_decay is not None:
            state = state * log_decay[:, t, :, None, None].exp()
        if segment is not None:
            before = segment[:, t - 1] if t else torch.zeros_like(segment[:, 0])
            state = state * (segment[:, t] == before)[:, None, None, None]
        state = state + (rate[:, t, :, None] * key[:, t])[..., None] * entering[:, t, :, None, :]
        queries = query[:, t].unflatten(1, (state_heads, -1))
        weights = torch.linalg.solve(state[..., :features] + torch.diag_embed(ridge), queries, left=False)
        outputs.append((weights @ state[..., features:]).flatten(1, 2))
    return torch.stack(outputs, dim=1), state


def step(
    query: Float[Tensor, "B 1 H F"],
    key: Float[Tensor, "B 1 N F"] | None,
    value: Float[Tensor, "B 1 K V"] | None,
    rate: Float[Tensor, "B 1 N"] | None,
    log_decay: Float[Tensor, "B 1 N"] | None,
    segment: Int[Tensor, "B 1"] | None,
    state: Float[Tensor, "B N F X"],
    *,
    ridge: Float[Tensor, "N F"],
    in_place: bool = False,
) -> tuple[Float[Tensor, "B 1 H V"], Float[Tensor, "B N F X"]]:
    """Return the recurrence once. The query heads of a state head are rows of one system."""
    state_heads, features = state.shape[1:3]
    state = decay_state(state, log_decay, segment, in_place=in_place)
    if key is not None and value is not None and rate is not None:
        column = (rate[..., None] * key)[:, 0, :, :, None]
        row = torch.cat((key, repeat_heads(value, state_heads)), dim=-1)[:, 0, :, None, :]
        state = state.addcmul_(column, row) if in_place else state.addcmul(column, row)
    system = state[..., :features] + torch.diag_embed(ridge)
    queries = query.view(query.shape[0], state_heads, -1, features)
    weights = torch.linalg.solve_ex(system, queries, left=False)[0]
    return (weights @ state[..., features:]).flatten(1, 2)[:, None], state


# Chunks: the systems of all tokens of a chunk at once, by conjugate gradients. The form of training and prefill on any device.
#
# With L the decay summed from the chunk's first token, G and H those that enter the chunk and W_ij = exp(L_i - L_j) β_j for j ≤ i,
# the product of a row x_i and the matrix G_i + Λ of its token needs no separate matrix:
#
#     x_i (G_i + Λ) = exp(L_i) x_i G + Σ_j W_ij (x_i·k_j) k_j + x_i ∘ λ
#     o_i = exp(L_i) x_i H + Σ_j W_ij (x_i·k_j) v_j    with x_i (G_i + Λ) = q_i
#
# Conjugate gradients need one such product per step. They end when the residuals of all rows are below rounding, if Python can
# read these numbers, and after at most ``STEPS``. In exact arithmetic F steps solve the system. The published kernels compute 30:
# with keys drawn at random, F = 64, β = 1/2 and Λ = 0.01, the largest error is then 9e-3 of the largest output, with 32 steps 7e-3,
# and with 64 1e-5, where an exact solution in float32 has 4e-6. With Λ = 1/4 all of these only round.
#
# The gradient is not computed through the steps. With y the solution for the gradient of x as right-hand side, q has the gradient y
# and G_i the gradient -x_iᵀ y_i. Both follow from q_i - x_i (G_i + Λ), which is 0, once its own gradient is replaced by y.


CHUNK = 64
SPAN = 512
"""Tokens whose chunks are computed together, so that memory does not grow with T."""
STEPS = 64


def chunked(
    query: Float[Tensor, "B T H F"],
    key: Float[Tensor, "B T N F"],
    value: Float[Tensor, "B T K V"],
    rate: Float[Tensor, "B T N"],
    log_decay: Float[Tensor, "B T N"] | None,
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B N F X"],
    *,
    ridge: Float[Tensor, "N F"],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B N F X"]]:
    """Any number of tokens, span by span."""
    outputs = []
    columns = (states.split(SPAN, dim=1) for states in (query, key, repeat_heads(value, key.shape[2]), rate))
    decays = repeat(None) if log_decay is None else log_decay.split(SPAN, dim=1)
    documents = repeat(None) if segment is None else cut_documents(segment, SPAN)
    for q, k, v, r, decay, document in zip(*columns, decays, documents, strict=False):
        output, state = _span(q, k, v, r, decay, document, state, ridge)
        outputs.append(output)
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)), state


def _span(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rate: Tensor,
    log_decay: Tensor | None,
    segment: Tensor | None,
    state: Tensor,
    ridge: Tensor,
) -> tuple[Tensor, Tensor]:
    """Compute one span in chunks. Further letters: n chunks of c tokens, Q query heads a state head."""
    length, features = query.shape[1], query.shape[3]
    chunk = min(CHUNK, 1 << (length - 1).bit_length())
    count = math.ceil(length / chunk)
    state_heads = key.shape[2]
    reads, order = query.shape[2] // state_heads, (0, 3, 1, 4, 2, 5)

    # B N n … c …; the tokens that fill the last chunk have rate 0 and decay 0, and change nothing.
    queries = into_chunks(query, count, chunk, (state_heads, reads), order).flatten(3, 4)
    keys, values = (into_chunks(states, count, chunk, (state_heads, 1), order)[:, :, :, 0] for states in (key, value))
    rates = into_chunks(rate, count, chunk, (state_heads, 1), (0, 3, 1, 4, 2))
    if log_decay is None:
        between, survives = query.new_ones(1, 1, 1, chunk, chunk).tril(), query.new_ones(1, 1, count, chunk, 1)
    else:
        decay = into_chunks(log_decay, count, chunk, (state_heads, 1), (0, 3, 1, 4, 2))
        between = decay_between(decay)[:, :, :, 0].exp().tril()
        survives = decay[:, :, :, 0].cumsum(3).exp()[..., None]
    chunk_decay = survives[..., -1:, :]
    if segment is not None:
        document, before = of_documents(segment, count, chunk)
        between = between * (document[..., :, None] == document[..., None, :])[:, None]
        continues = (document == before[..., None])[:, None, :, :, None]
        survives, chunk_decay = survives * continues, chunk_decay * continues[..., -1:, :]
    weights = between * rates

    entering = torch.cat((keys, values), dim=-1)
    added = (keys * weights[..., -1, :, None]).mT @ entering
    chunk_decay = chunk_decay.expand(-1, -1, count, -1, -1)
    earlier = []
    for state_decay, update in zip(chunk_decay.unbind(2), added.unbind(2), strict=True):
        earlier.append(state)
        state = state * state_decay + update
    matrix, products = torch.stack(earlier, dim=2).split((features, value.shape[3]), dim=-1)

    # The queries of a state head are concatenated, each with all tokens of the chunk.
    weights, survives = weights.repeat(1, 1, 1, reads, 1), survives.repeat(1, 1, 1, reads, 1)
    solution = _solution(queries, survives, matrix, keys, weights, ridge[:, None, None])
    output = (solution * survives) @ products + ((solution @ keys.mT) * weights) @ values
    output = output.unflatten(3, (reads, chunk)).permute(0, 2, 4, 1, 3, 5)
    return output.flatten(3, 4).flatten(1, 2)[:, :length], state


def _solution(queries: Tensor, survives: Tensor, matrix: Tensor, keys: Tensor, weights: Tensor, ridge: Tensor) -> Tensor:
    """x of x_i (G_i + Λ) = q_i, with its gradient."""
    fixed = [operand.detach() for operand in (survives, matrix, keys, weights, ridge)]
    solution = _conjugate_gradients(queries.detach(), *fixed)
    missing = queries - _product(solution, survives, matrix, keys, weights, ridge)
    if missing.requires_grad:
        missing.register_hook(lambda slope: slope if slope is None else _conjugate_gradients(slope, *fixed))
        solution = solution + (missing - missing.detach())
    return solution


def _product(
    rows: Float[Tensor, "B N n q F"], survives: Tensor, matrix: Tensor, keys: Tensor, weights: Tensor, ridge: Tensor
) -> Float[Tensor, "B N n q F"]:
    """x_i (G_i + Λ)."""
    return (rows * survives) @ matrix + ((rows @ keys.mT) * weights) @ keys + rows * ridge


def _conjugate_gradients(
    sides: Float[Tensor, "B N n q F"], survives: Tensor, matrix: Tensor, keys: Tensor, weights: Tensor, ridge: Tensor
) -> Float[Tensor, "B N n q F"]:
    """Return the systems of all rows, each by itself. Once a row is solved, its residual is 0 and its steps are 0."""
    least, rounding = torch.finfo(sides.dtype).tiny, torch.finfo(sides.dtype).eps
    solution, residual, direction = torch.zeros_like(sides), sides, sides
    size = residual.square().sum(-1, keepdim=True)
    solved = size * rounding**2
    for _ in range(min(STEPS, 2 * sides.shape[-1])):
        if may_read_numbers(size) and bool((size <= solved).all()):
            break
        product = _product(direction, survives, matrix, keys, weights, ridge)
        length = size / (direction * product).sum(-1, keepdim=True).clamp(min=least)
        solution, residual = solution + length * direction, residual - length * product
        before, size = size, residual.square().sum(-1, keepdim=True)
        direction = residual + size / before.clamp(min=least) * direction
    return solution


DECAY_RANKS = frozenset({"none", "head"})

FORMS: tuple[Form, ...] = (
    Form(REFERENCE, "one token after the other, each system solved exactly", naive),
    Form(TORCH, "one step of the recurrence, its system solved exactly", step, pair_obstacle, decode=True),
    Form(TORCH, "chunks of 64, their systems solved by conjugate gradients", chunked),
)
