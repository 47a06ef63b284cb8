"""Weights inside a chunk if each feature has its own decay.

A pair's weight is Σ_f q_if k_jf exp(G_if - G_jf), with G the decay summed from the chunk's first token. The product is split into
q_i exp(G_i) and k_j exp(-G_j), which is exact as long as G is above ``STEEPEST``. Otherwise, a chunk is first split into blocks
that are short enough, down to single tokens, and these are joined in pairs until the chunk is whole: between two neighbours the
weight is q_i exp(decay since the border) · k_j exp(decay up to the border), and neither exponent is above 0. A level of joining is
one product of the halves (as in secondary chunking, Yang et al. 2023, arXiv:2312.06635, section 4.3, but down to any length).
"""

from __future__ import annotations

from dataclasses import dataclass

from blocks.legend import Float, Tensor, torch
from blocks.tensors import has_numbers

STEEPEST = -40.0
"""exp(40) leaves float32 room for keys and queries on either side."""


def block_of(log_decay: Float[Tensor, "B T N F"], chunk: int) -> int:
    """The longest block, of ``chunk`` tokens halved any number of times, in which no feature decays below ``STEEPEST``; or 1, also
    where there are no numbers to look at."""
    if not has_numbers(log_decay):
        return 1
    with torch.no_grad():
        missing = -log_decay.shape[1] % chunk
        padded = torch.nn.functional.pad(log_decay, (0, 0, 0, 0, 0, missing)) if missing else log_decay
        if padded.unflatten(1, (-1, chunk)).sum(2).min() >= STEEPEST:
            return chunk
        sums, lowest = padded, []
        while sums.shape[1] * chunk > padded.shape[1]:
            sums = sums.unflatten(1, (-1, 2)).sum(2)
            lowest.append(sums.min())
        gentle = [bool(least >= STEEPEST) for least in torch.stack(lowest).tolist()] if lowest else []
    return 1 << sum(gentle)


@dataclass(frozen=True)
class Parts:
    """Blocks of m tokens, n of them: the weights inside, and what decay leaves of queries, keys and states at their borders."""

    weights: Float[Tensor, "B K n R Q m m"]
    from_start: Float[Tensor, "B K n R Q m F"]
    to_end: Float[Tensor, "B K n R m F"]
    chunk_decay: Float[Tensor, "B K n R 1 F"]


def _in_blocks(
    queries: Float[Tensor, "B K n R Q m F"], keys: Float[Tensor, "B K n R m F"], decay: Float[Tensor, "B K n R m F"], block: int
) -> Parts:
    """Compute the blocks."""
    reads = queries.shape[4]
    total = decay.cumsum(4)
    passed = total.exp()
    from_start, chunk_decay = queries * passed[..., None, :, :], passed[..., -1:, :]
    if block == 1:
        return Parts((queries.flatten(4, 5) @ keys.mT).unflatten(4, (reads, 1)), from_start, keys, chunk_decay)
    undone = keys / passed  # so decay in blocks of several tokens must be mild
    weights = (from_start.flatten(4, 5) @ undone.mT).unflatten(4, (reads, block)).tril()
    return Parts(weights, from_start, undone * chunk_decay, chunk_decay)


def _join(parts: Parts) -> Parts:
    """Join each two neighbouring blocks. Factors of decay are at most 1, so that no exponent overflows."""
    reads, block = parts.from_start.shape[4:6]
    (weights, later_weights), (from_start, later_from_start), (to_end, later_to_end), (chunk_decay, later_decay) = (
        states.unflatten(2, (-1, 2)).unbind(3) for states in (parts.weights, parts.from_start, parts.to_end, parts.chunk_decay)
    )
    across = (later_from_start.flatten(4, 5) @ to_end.mT).unflatten(4, (reads, block))
    rows = (torch.nn.functional.pad(weights, (0, block)), torch.cat((across, later_weights), dim=-1))
    return Parts(
        torch.cat(rows, dim=-2),
        torch.cat((from_start, later_from_start * chunk_decay[..., None, :, :]), dim=-2),
        torch.cat((to_end * later_decay, later_to_end), dim=-2),
        chunk_decay * later_decay,
    )


def weigh(
    queries: Float[Tensor, "B K n R Q m F"],
    keys: Float[Tensor, "B K n R m F"],
    decay: Float[Tensor, "B K n R m F"],
    block: int,
    chunk: int,
) -> Parts:
    """Join blocks, in pairs, until they are chunks."""
    parts = _in_blocks(queries, keys, decay, block)
    while parts.weights.shape[-1] < chunk:
        parts = _join(parts)
    return parts
