"""Linear attention without a mass, and delta rules. Published layers normalise their outputs by RMSNorm, if at all."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.laws.published.layer import (
    WINDOW,
    Layer,
    Reference,
    channel_decay,
    convolved_query_and_key,
    hedgehog_features,
    lawcat_features,
)
from tests.laws.published.mathematics import (
    alibi_slopes,
    convolve,
    delta_rule,
    edited_state,
    in_window,
    linear_attention,
    log_sigmoid,
    regression,
    root_mean_square_norm,
    rotate,
    sigmoid,
    silu,
    softmax_attention,
    softplus,
    to_query_heads,
    unit,
)


def gla(layer: Layer) -> Tensor:
    query, key, value = layer.expanded
    output = linear_attention(query, key, value, torch.exp(channel_decay(layer, "state_gate", 1)))
    return layer.gated_norm(output / math.sqrt(query.shape[-1]))


def retention(layer: Layer) -> Tensor:
    query, key = layer.rotated
    decay = torch.tensor([1 - 2.0 ** (-5 - head) for head in range(layer.heads)], dtype=torch.float64)
    output = linear_attention(query, key, layer.expanded[2], decay.expand(len(query), -1)[..., None])
    return layer.gated_norm(output / math.sqrt(query.shape[-1]))


def hypenet(layer: Layer) -> Tensor:
    query, key, value = layer.expanded
    query = rotate(root_mean_square_norm(query, layer["qk_norm.query"], 1e-6), layer.theta)
    key = rotate(root_mean_square_norm(key, layer["qk_norm.key"], 1e-6), layer.theta)
    decay = torch.exp(-torch.tensor(alibi_slopes(layer.heads), dtype=torch.float64))
    output = linear_attention(query, key, value, decay.expand(len(query), -1)[..., None]) / math.sqrt(query.shape[-1])
    normed = root_mean_square_norm(output.flatten(1), layer["output_norm.weight"], 1e-6).view(output.shape)
    return normed * sigmoid(layer.output_gate(output))


def mamba2(layer: Layer) -> Tensor:
    gated = _gated_mamba2(layer)
    return root_mean_square_norm(gated.flatten(1), layer["output_norm.weight"], 1e-5).view(gated.shape)


def granite_mamba2(layer: Layer) -> Tensor:
    return root_mean_square_norm(_gated_mamba2(layer), layer["output_norm.weight"], 1e-5)


def _gated_mamba2(layer: Layer) -> Tensor:
    query, key, value = layer.short_convolved()
    step = softplus(layer.linear("state_gate"))
    decay = torch.exp(-torch.exp(layer["state_gate.rate"]) * step)[..., None]
    output = linear_attention(query, key, value * step[..., None], decay) + layer["state.skip"][:, None] * value
    return output * silu(layer.output_gate(output))


def discrete_mamba2(layer: Layer) -> Tensor:
    query, key = convolved_query_and_key(layer)
    value = to_query_heads(convolve(layer.value, layer["conv.value"]), layer.heads)
    query, key = (
        torch.einsum("thd,hdn->thn", of, layer[f"feature_map.{side}_weight"]) for of, side in ((query, "query"), (key, "key"))
    )
    decay = torch.exp(-softplus(-layer.linear("state_gate")))[..., None]
    output = linear_attention(query, key, value, decay) + layer["state.skip"][:, None] * value
    return output * silu(layer.output_gate(output))


def hydra_delta(layer: Layer) -> Tensor:
    """The keys and values of each query head have their own projection: the source's, and a difference."""
    sides = dict(zip(("query", "key", "value"), layer.expanded, strict=True))
    for name in ("key", "value"):
        sides[name] = sides[name] + torch.einsum("tc,hdc->thd", layer.hidden, layer[f"unshare.{name}"])
    query, key, value = (silu(convolve(of, layer[f"conv.{name}"])) for name, of in sides.items())
    query, key = rotate(query, layer.theta), rotate(key, layer.theta)
    return layer.gated_and_normed(_delta(layer, query, key, value, _softplus_decay(layer)), silu)


def mamba3(layer: Layer) -> Tensor:
    """Return the output of a complex state h, in which two features are one number: h = α e^(-jΔθ) (h + (1-λ) Δ B' x') + λ Δ B x,
    y = Re(C̄ h), with B' and x' of the token before."""
    query, key, value = layer.expanded
    query, key = (
        root_mean_square_norm(of, layer[f"qk_norm.{name}"], 1e-5) + layer[f"trapezoid.{name}_offset"]
        for name, of in (("query", query), ("key", key))
    )
    step = softplus(layer.linear("trapezoid_gate"))
    share = sigmoid(layer.hidden @ layer["trapezoid.share_weight"].T + layer["trapezoid.share_bias"])
    angle = math.pi * torch.tanh(layer.hidden @ layer["trapezoid.angle"].T)
    turns = angle.shape[1]
    query, key = (
        torch.cat((torch.complex(of[..., :turns], of[..., turns : 2 * turns]), of[..., 2 * turns :] + 0j), -1)
        for of in (query, key)
    )
    angle = torch.cat((angle, torch.zeros(len(angle), query.shape[-1] - turns)), -1)
    state = torch.zeros(layer.heads, query.shape[-1], value.shape[-1], dtype=torch.complex128)
    pair, outputs = torch.zeros_like(state), []
    for token in range(len(query)):
        size, newer = step[token][:, None, None], share[token][:, None, None]
        transition = torch.exp(-size * (torch.exp(layer["trapezoid_gate.rate"])[:, None, None] + 1j * angle[token][None, :, None]))
        before, pair = pair, key[token][:, :, None] * value[token][:, None, :]
        state = transition * (state + (1 - newer) * size * before) + newer * size * pair
        outputs.append(torch.einsum("hf,hfv->hv", query[token].conj(), state).real)
    output = torch.stack(outputs) + layer["trapezoid.skip"][:, None] * value
    return output * silu(layer.output_gate(output))


def liger(size: int) -> Reference:
    def half_and_half(layer: Layer) -> Tensor:
        query, key, value = layer.expanded
        near = softmax_attention(*layer.rotated, value, in_window(size))
        query, key_features = torch.softmax(query, -1), torch.softmax(key, -1)
        return near / 2 + linear_attention(query, key_features, value, torch.exp(log_sigmoid(key) / 16)) / 2

    return half_and_half


def lizard(layer: Layer) -> Tensor:
    (query, key, value), (rotated_query, rotated_key) = layer.expanded, layer.rotated
    meta_key, meta_value = (to_query_heads(layer[f"meta.{name}"], layer.heads) for name in ("key", "value"))
    near = []
    for token in range(len(query)):
        first = max(0, token - WINDOW + 1)
        logits = torch.cat(
            (
                torch.einsum("hd,mhd->mh", query[token], meta_key),
                torch.einsum("hd,shd->sh", rotated_query[token], rotated_key[first : token + 1]),
            )
        )
        weights = torch.softmax(logits / math.sqrt(query.shape[-1]), 0)
        near.append(torch.einsum("sh,shd->hd", weights, torch.cat((meta_value, value[first : token + 1]))))
    decay = torch.exp(log_sigmoid(layer.linear("state_gate")) / 16)[..., None]
    return torch.stack(near) + linear_attention(*hedgehog_features(layer, query, key), value, decay)


def delta(layer: Layer) -> Tensor:
    query, key = (of.clamp(min=0) for of in convolved_query_and_key(layer))
    output = _delta(layer, query, key, layer.expanded[2], None)
    return root_mean_square_norm(output, layer["output_norm.weight"], 1e-5)


def gated_delta(layer: Layer) -> Tensor:
    query, key = (of.clamp(min=0) for of in convolved_query_and_key(layer))
    return layer.gated_norm(_delta(layer, query, key, layer.expanded[2], _slow_head_decay(layer)))


def lawcat_delta(layer: Layer) -> Tensor:
    features = (unit(of, 0.0) for of in lawcat_features(layer))
    query, key = features
    rate = sigmoid(layer.linear("delta_rate"))
    return delta_rule(query, [(key, layer.expanded[2], rate)], torch.exp(_slow_head_decay(layer))[..., None])


def gated_deltanet(layer: Layer) -> Tensor:
    return layer.gated_norm(_delta(layer, *layer.short_convolved(), _softplus_decay(layer)))


def kda(layer: Layer) -> Tensor:
    query, key, value = layer.short_convolved()
    return layer.gated_norm(_delta(layer, query, key, value, _kimi_decay(layer, "delta_gate", query)), sigmoid)


def deltaproduct(layer: Layer) -> Tensor:
    query, key, value = layer.short_convolved()
    steps = [(unit(key), value, 2 * sigmoid(layer.linear("delta_rate")))]
    for step in range(len(layer["delta.key"])):
        further = (layer.hidden @ layer[f"delta.{name}"][step].T for name in ("key", "value"))
        own_key, own_value = (to_query_heads(of.unflatten(-1, (layer.key.shape[1], -1)), layer.heads) for of in further)
        own_rate = 2 * sigmoid(layer.hidden @ layer["delta.rate_weight"][step].T + layer["delta.rate_bias"][step])
        steps.append((unit(own_key), own_value, own_rate))
    output = delta_rule(unit(query), steps, torch.exp(_softplus_decay(layer))[..., None])
    return layer.gated_norm(output / math.sqrt(query.shape[-1]))


def rwkv7(layer: Layer) -> Tensor:
    query, key, value = layer.expanded
    steepness = torch.tanh(layer.hidden @ layer["rwkv7_gate.down"].T) @ layer["rwkv7_gate.up"].T + layer["rwkv7_gate.bias"]
    decay = torch.exp(-math.exp(-0.5) * sigmoid(steepness)).view(key.shape)
    rate = sigmoid(layer.hidden @ layer["rwkv7.rate_down"].T @ layer["rwkv7.rate_up"].T + layer["rwkv7.rate_bias"]).view(key.shape)
    removed = key * layer["rwkv7.removed"]
    removed = removed / removed.norm(dim=-1, keepdim=True)
    written = key * (1 + (rate - 1) * layer["rwkv7.replaced"])
    output = edited_state(query, zip(decay, rate * removed, removed, written, value, strict=True))
    return layer.gated_norm(output, sigmoid, 64e-5)


def gdn2(layer: Layer) -> Tensor:
    query, key, value = layer.short_convolved()
    query, key = unit(query), unit(key)
    erase, write = (
        sigmoid(layer.hidden @ layer[f"gdn2.{name}_weight"].T + layer[f"gdn2.{name}_bias"]) for name in ("erase", "write")
    )
    decay = torch.exp(_kimi_decay(layer, "gdn2_gate", query))
    tokens = zip(decay, key, erase.view(key.shape) * key * decay, key, write.view(value.shape) * value, strict=True)
    return layer.gated_norm(edited_state(query, tokens) / math.sqrt(query.shape[-1]), sigmoid)


def mesa(layer: Layer) -> Tensor:
    query, key = (unit(silu(states)) for states in convolved_query_and_key(layer))
    rate, decay = sigmoid(layer.linear("mesa_rate")), sigmoid(layer.linear("mesa_gate"))
    output = regression(query, key, layer.expanded[2], rate, decay, 0.25 + softplus(layer["mesa.penalty"]))
    return root_mean_square_norm(output, layer["output_norm.weight"], 1e-5)


def _kimi_decay(layer: Layer, gate: str, query: Tensor) -> Tensor:
    logits = layer.hidden @ layer[f"{gate}.down"].T @ layer[f"{gate}.up"].T + layer[f"{gate}.bias"]
    return -torch.exp(layer[f"{gate}.rate"])[:, None] * softplus(logits.view(query.shape))


def _slow_head_decay(layer: Layer) -> Tensor:
    return log_sigmoid(layer.linear("delta_gate")) / 16


def _softplus_decay(layer: Layer) -> Tensor:
    return -torch.exp(layer["delta_gate.rate"]) * softplus(layer.linear("delta_gate"))


def _delta(layer: Layer, query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None) -> Tensor:
    """Return the output before the norm, divided by √K, with lengths as in flash-linear-attention."""
    decay = None if log_decay is None else torch.exp(log_decay if log_decay.dim() == 3 else log_decay[..., None])
    rate = sigmoid(layer.linear("delta_rate"))
    return delta_rule(unit(query), [(unit(key), value, rate)], decay) / math.sqrt(query.shape[-1])
