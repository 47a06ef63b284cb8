"""The definition: one token after the other."""

from __future__ import annotations

from blocks.legend import Float, Int, Tensor, torch
from blocks.tensors import repeat_heads


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
