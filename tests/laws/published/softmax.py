"""Softmax attention, linear attention with a mass, and heads that have both."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tests.laws.published.layer import (
    BLOCK,
    CACHE,
    CHOSEN,
    SINKS,
    WINDOW,
    Layer,
    channel_decay,
    convolved_query_and_key,
    hedgehog_features,
    lawcat_features,
)
from tests.laws.published.mathematics import (
    in_chunks,
    in_window,
    linear_attention,
    log_sigmoid,
    normalised,
    root_mean_square_norm,
    rotate,
    sigmoid,
    softmax_attention,
    softplus,
    to_query_heads,
    window_and_linear,
)


def softmax(layer: Layer) -> Tensor:
    return softmax_attention(*layer.rotated, layer.expanded[2])


def normed_softmax(layer: Layer) -> Tensor:
    query, key, value = layer.expanded
    normed = (root_mean_square_norm(of, layer[f"qk_norm.{name}"], 1e-5) for name, of in (("query", query), ("key", key)))
    return softmax_attention(*(rotate(of, layer.theta) for of in normed), value)


def window(layer: Layer) -> Tensor:
    return softmax_attention(*layer.rotated, layer.expanded[2], in_window(WINDOW))


def streaming(layer: Layer) -> Tensor:
    return softmax_attention(*layer.rotated, layer.expanded[2], lambda token, pair: pair < SINKS or token - pair < WINDOW)


def forgetting(layer: Layer) -> Tensor:
    evicted = log_sigmoid(layer.linear("full_gate")).cumsum(0)
    return softmax_attention(*layer.expanded, bias=evicted[:, None] - evicted[None])


def hypenet_exact(layer: Layer) -> Tensor:
    output = _without_positions(layer)
    return output * sigmoid(layer.output_gate(output))


def hydra_exact(layer: Layer) -> Tensor:
    return layer.gated_and_normed(_without_positions(layer), sigmoid)


def _without_positions(layer: Layer) -> Tensor:
    """Return softmax attention without positions, with logits times log(t + 362) / log(362)."""
    query, key, value = layer.expanded
    position = torch.arange(len(query), dtype=torch.float64)
    query = query * (torch.log(position + 362) / math.log(362))[:, None, None]
    return softmax_attention(query, key, value)


def linear(layer: Layer) -> Tensor:
    query, key = (torch.where(of > 0, of + 1, torch.exp(of.clamp(max=0))) for of in layer.rotated)
    return normalised(query, key, layer.expanded[2])


def t2r(layer: Layer) -> Tensor:
    def map_side(states: Tensor, side: str) -> Tensor:
        product = torch.einsum("thd,hdc->thc", states, layer[f"feature_map.{side}_weight"])
        return (product + layer[f"feature_map.{side}_bias"]).clamp(min=0)

    query, key = layer.rotated
    query, key, value = map_side(query, "query"), map_side(key, "key"), layer.expanded[2]
    total = linear_attention(query, key, torch.ones_like(value[..., :1]))
    # A query that shares no feature with any key has no mass, and is answered by 0.
    return torch.where(total > 0, linear_attention(query, key, value) / total.clamp(min=torch.finfo(total.dtype).tiny), 0.0)


def compressed(layer: Layer) -> Tensor:
    """Return softmax attention over keys and values that are restored from the stored vectors; keys are rotated after that."""
    joined = torch.cat((layer.value.flatten(1), layer.key.flatten(1)), dim=-1)
    restored = joined @ layer["compressed.down"].T @ layer["compressed.up"].T
    value, key = (part.unflatten(-1, layer.key.shape[1:]) for part in restored.chunk(2, dim=-1))
    key, value = (to_query_heads(part, layer.heads) for part in (key, value))
    return softmax_attention(rotate(layer.query, layer.theta), rotate(key, layer.theta), value)


def moba(layer: Layer) -> Tensor:
    """Return softmax attention of each query head over its own block and the blocks with the largest products q·k̄."""
    (query, key), value = layer.rotated, layer.expanded[2]
    means = torch.stack([block.mean(0) for block in key.split(BLOCK)])
    outputs = []
    for head in range(layer.heads):
        chosen = [
            sorted(range(token // BLOCK), key=lambda block: -float(query[token, head] @ means[block, head]))[:CHOSEN]
            for token in range(len(query))
        ]
        own = query[:, head, None], key[:, head, None], value[:, head, None]
        outputs.append(softmax_attention(*own, sees_blocks(chosen)))
    return torch.cat(outputs, dim=1)


def nsa(layer: Layer) -> Tensor:
    """Return the sum of three outputs, each times a sigmoid of the hidden state: of block means, chosen blocks and a window."""
    query, key = rotate(layer.query, layer.theta), rotate(layer.key, layer.theta)
    expanded = *layer.rotated, layer.expanded[2]
    outputs = {
        "block_means": block_means(query, key, layer.value),
        "selected_blocks": chosen_blocks(query, key, layer.value),
        "window": softmax_attention(*expanded, in_window(WINDOW)),
    }
    return torch.stack([sigmoid(layer.linear(name))[..., None] * output for name, output in outputs.items()]).sum(0)


def block_means(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return softmax attention over the means of whole blocks; 0 before the first one ends."""
    means = [to_query_heads(torch.stack([block.mean(0) for block in of.split(BLOCK)]), query.shape[1]) for of in (key, value)]
    outputs = [torch.zeros_like(query[0])] * (BLOCK - 1)
    for token in range(BLOCK - 1, len(query)):
        some = (mean[: (token + 1) // BLOCK] for mean in means)
        outputs.append(_attend(query[token], *some))
    return torch.stack(outputs)


def chosen_blocks(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return softmax attention over the own block, the first one, the newest earlier one, and those with the largest shares of the
    softmax over means, summed over the query heads of a key head."""
    heads = query.shape[1] // key.shape[1]
    outputs = []
    for key_head in range(key.shape[1]):
        own = slice(key_head * heads, (key_head + 1) * heads)
        means, chosen = torch.stack([block.mean(0) for block in key[:, key_head].split(BLOCK)]), list[list[int]]()
        for token in range(len(query)):
            logits = query[token, own] @ means[: (token + 1) // BLOCK].T / math.sqrt(query.shape[-1])
            shares, last = logits.softmax(-1).sum(0), token // BLOCK - 1
            always = {0, last} if last >= 0 else set[int]()
            others = sorted(set(range(last + 1)) - always, key=lambda block: -float(shares[block]))
            chosen.append([*always, *others[: CHOSEN - len(always)]])
        own_key, own_value = (of[:, key_head, None].expand(-1, heads, -1) for of in (key, value))
        outputs.append(softmax_attention(query[:, own], own_key, own_value, sees_blocks(chosen)))
    return torch.cat(outputs, dim=1)


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return softmax attention of one query, H D, over n pairs."""
    weights = (torch.einsum("hd,shd->sh", query, key) / math.sqrt(query.shape[-1])).softmax(0)
    return torch.einsum("sh,shd->hd", weights, value)


def sees_blocks(chosen: list[list[int]]) -> Callable[[int, int], bool]:
    """Return the mask of each token's own block, and of those that it has chosen."""
    return lambda token, pair: pair // BLOCK in [token // BLOCK, *chosen[token]]


def log_linear(layer: Layer) -> Tensor:
    """Return the sum over all pairs, each with the weight λ of its level, the decay since it, and φ(q)·φ(k)."""

    def map_side(states: Tensor, side: str) -> Tensor:
        return (
            torch.einsum("thd,hdc->thc", states, layer[f"feature_map.{side}_weight"]) + layer[f"feature_map.{side}_bias"]
        ).relu()

    query, key = convolved_query_and_key(layer)
    query, key, value = map_side(query, "query"), map_side(key, "key"), layer.expanded[2]
    decay = (-torch.exp(layer["log_linear_gate.rate"]) * softplus(layer.linear("log_linear_gate"))).cumsum(0)
    levels = softplus(layer.hidden @ layer["log_linear.level_weight"].T + layer["log_linear.level_bias"])
    levels = levels.unflatten(1, (layer.heads, -1))
    outputs = []
    for token in range(len(query)):
        level = torch.tensor([(token ^ earlier).bit_length() for earlier in range(token + 1)])
        weights = torch.einsum("hf,shf->sh", query[token], key[: token + 1])
        weights = weights * levels[token, :, level].T * torch.exp(decay[token] - decay[: token + 1])
        total = weights.sum(0)[:, None]
        output = torch.einsum("sh,shv->hv", weights, value[: token + 1])
        outputs.append(torch.where(total > 0, output / total.clamp(min=torch.finfo(total.dtype).tiny), 0.0))
    return torch.stack(outputs)


def hedgehog_alone(layer: Layer) -> Tensor:
    return normalised(*hedgehog_features(layer, *layer.rotated), layer.expanded[2])


def lawcat(layer: Layer) -> Tensor:
    return normalised(*lawcat_features(layer), layer.expanded[2], torch.exp(channel_decay(layer, "state_gate", 2)))


def lolcats(layer: Layer) -> Tensor:
    return _lolcats(layer, hedgehog_features(layer, *layer.rotated))


def lolcats_local_rope(layer: Layer) -> Tensor:
    query, key, _ = layer.expanded
    return _lolcats(layer, hedgehog_features(layer, query, key))


def lolcats_terraced(layer: Layer) -> Tensor:
    features = hedgehog_features(layer, *layer.rotated)
    sees = in_chunks(WINDOW)
    return window_and_linear(layer.rotated, features, layer.expanded[2], layer["window.weight"], sees, row_max=True)


def lolcats_workshop(layer: Layer) -> Tensor:
    def map_side(states: Tensor, side: str) -> Tensor:
        return torch.exp(states + torch.einsum("thd,hdc->thc", states, layer[f"feature_map.{side}_weight"]))

    (query, key), value = layer.rotated, layer.expanded[2]
    share = sigmoid(layer["window.weight"])[:, None]
    near = softmax_attention(query, key, value, in_window(WINDOW))
    query_features, key_features = map_side(query, "query"), map_side(key, "key")
    far = torch.zeros_like(near)
    for token in range(WINDOW, len(query)):
        weights = torch.einsum("hf,shf->sh", query_features[token], key_features[: token - WINDOW + 1])
        far[token] = torch.einsum("sh,shd->hd", weights / weights.sum(0), value[: token - WINDOW + 1])
    return share * near + (1 - share) * far


def lola(layer: Layer) -> Tensor:
    """Compute LoLA: chunks of a window, a cache of the pairs with the largest error, and the state, over one denominator."""
    (query, key), value = layer.rotated, layer.expanded[2]
    query_features, key_features = hedgehog_features(layer, query, key)
    factor = sigmoid(layer["window.weight"])
    output = torch.zeros_like(value)
    for head in range(layer.heads):
        cache: list[int] = []
        state: list[int] = []
        for token in range(len(query)):
            if token % WINDOW == 0 and token >= 2 * WINDOW:
                evicted = range(token - 2 * WINDOW, token - WINDOW)
                cache, state = _select([*cache, *evicted], state, key_features[:, head], value[:, head])
            near = range(max(0, token // WINDOW - 1) * WINDOW, token + 1)
            exact = [*cache, *near]
            logits = key[exact, head] @ query[token, head] / math.sqrt(query.shape[-1])
            weights = torch.cat((factor[head] * logits.exp(), key_features[state, head] @ query_features[token, head]))
            output[token, head] = weights @ value[[*exact, *state], head] / weights.sum()
    return output


def _select(eligible: list[int], state: list[int], features: Tensor, value: Tensor) -> tuple[list[int], list[int]]:
    """Return the pairs that stay in the cache and those that enter the state. Scores read the state before this eviction."""
    if len(eligible) <= CACHE:
        return eligible, state

    def error(pair: int) -> float:
        weights = features[state] @ features[pair]
        predicted = weights @ value[state] / weights.sum() if state else torch.zeros_like(value[pair])
        return torch.dist(predicted, value[pair]).item()

    kept = set(sorted(eligible, key=lambda pair: (-error(pair), pair))[:CACHE])
    return sorted(kept), state + [pair for pair in eligible if pair not in kept]


def _lolcats(layer: Layer, features: tuple[Tensor, Tensor]) -> Tensor:
    return window_and_linear(layer.rotated, features, layer.expanded[2], layer["window.weight"], in_window(WINDOW))
