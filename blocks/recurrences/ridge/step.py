"""One token: the form of decode."""

from __future__ import annotations

from blocks.legend import Float, Int, Tensor, torch
from blocks.recurrences.decay import decay_state
from blocks.tensors import repeat_heads


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
