"""The definition of attention transfer over a plain transformers Llama with whole T × T matrices."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from composer.data.packing import Batch
from composer.model.attention import ComposedAttention
from composer.model.hosts import attentions
from composer.model.rows import Rows
from composer.training.transfer import AttentionTarget


def attention_of(model: Any, index: int) -> ComposedAttention:
    """Return the attention of one layer of a composed model."""
    return list(attentions(model))[index][1]


def make_lesson(hidden: Tensor, batch: Batch) -> AttentionTarget:
    """Return a target with these hidden states on the tokens of a batch."""
    mask = batch.inputs(mask=True)["attention_mask"]
    rows = Rows(*batch.ids.shape, hidden.device, seen=None, columns=0, mask=mask, positions=batch.position)
    return AttentionTarget(hidden, rows.tokens, {}, hidden, hidden)


def documents(batch: Batch) -> list[tuple[int, int, int]]:
    """Return the row, the start and the end of each document."""
    spans = []
    for row, (position, valid) in enumerate(zip(batch.position, batch.valid, strict=True)):
        real = int(valid.sum())
        starts = [column for column in range(real) if int(position[column]) == 0]
        spans += [(row, start, end) for start, end in pairwise([*starts, real])]
    return spans


def projected(source: Any, ids: Tensor) -> list[dict[str, Tensor]]:
    """Return, for each layer of a Llama, the inputs of attention and the inputs and outputs of its output projection."""
    seen: list[dict[str, Tensor]] = [{} for _ in source.model.layers]
    hooks = []
    for layer, own in zip(source.model.layers, seen, strict=True):
        attention = layer.self_attn

        def kept(_module: Any, inputs: Any, answer: Any, own: dict[str, Tensor] = own) -> None:
            own |= {"heads": inputs[0].detach(), "attended": answer.detach()}

        def hidden(_module: Any, inputs: Any, own: dict[str, Tensor] = own) -> None:
            own["hidden"] = inputs[0].detach()

        hooks += [attention.o_proj.register_forward_hook(kept), attention.q_proj.register_forward_pre_hook(hidden)]
    with torch.no_grad():
        source(ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    return seen


def rotated(states: Tensor, theta: float = 10000.0) -> Tensor:
    """Apply RoPE to ``T H D`` from position 0."""
    width = states.shape[-1]
    angle = torch.arange(len(states)).double()[:, None] * theta ** (-torch.arange(0, width, 2).double() / width)
    cos, sin = (torch.cat([wave, wave], -1)[:, None] for wave in (angle.cos(), angle.sin()))
    first, two = states.chunk(2, -1)
    return states * cos + torch.cat([-two, first], -1) * sin


def projections(attention: Any, hidden: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return rotated queries and keys ``T H D`` and values ``T H D``, with a key head repeated for its query heads."""
    query, key, value = (getattr(attention, f"{name}_proj")(hidden).unflatten(-1, (-1, width)) for name in ("q", "k", "v"))
    factor = query.shape[1] // key.shape[1]
    key, value = (states.repeat_interleave(factor, dim=1) for states in (key, value))
    return rotated(query), rotated(key), value


def softmax_weights(attention: Any, hidden: Tensor, width: int) -> Tensor:
    """Return the teacher's weights ``H T T`` of one document."""
    query, key, _ = projections(attention, hidden, width)
    scores = torch.einsum("thd,shd->hts", query, key) / width**0.5
    return scores.masked_fill(torch.ones(len(hidden), len(hidden)).triu(1).bool(), -torch.inf).softmax(-1)


def lolcats_weights(attention: ComposedAttention, hidden: Tensor, size: int) -> Tensor:
    """Return the weights ``H T T`` of one document: σ exp(q·k/√D) in the window and φ(q)·φ(k) before it over one denominator
    (LoLA, eq. 13).
    """
    fresh = {name.split(".", 1)[1]: parameter for name, parameter in attention.composed.named_parameters()}
    width, length = attention.facts.head_dim, len(hidden)
    query, key, _ = projections(attention, hidden, width)
    near = torch.einsum("thd,shd->hts", query, key) / width**0.5
    near = near.exp() * fresh["window.weight"].sigmoid()[:, None, None]

    def features(states: Tensor, weight: Tensor) -> Tensor:
        mapped = torch.einsum("thd,hdf->thf", states, weight)
        return torch.cat([mapped.softmax(-1), (-mapped).softmax(-1)], -1)

    mapped = features(query, fresh["feature_map.query_weight"]), features(key, fresh["feature_map.key_weight"])
    far = torch.einsum("thf,shf->hts", *mapped)
    back = torch.arange(length)[:, None] - torch.arange(length)
    masses = torch.where(back < 0, 0.0, torch.where(back < size, near, far))
    return masses / masses.sum(-1, keepdim=True)
