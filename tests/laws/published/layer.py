"""The inputs of a published layer, and features and decays that several layers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from tests.laws.published.mathematics import (
    convolve,
    hedgehog,
    log_sigmoid,
    root_mean_square_norm,
    rotate,
    silu,
    to_query_heads,
)

WINDOW, SINKS, CACHE, BLOCK, CHOSEN = 5, 2, 3, 3, 4
"""Sizes of the memories in the comparison: small, so that pairs are evicted, and some blocks are not chosen."""


@dataclass(frozen=True)
class Layer:
    """The inputs of a group of heads: hidden T C, query T H D, key and value T K D as the source projects them, and parameters.

    projections: the matrices of query, key and value, out × C.
    """

    hidden: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    parameters: Mapping[str, Tensor]
    projections: Mapping[str, Tensor]
    theta: float

    def __getitem__(self, name: str) -> Tensor:
        return self.parameters[name]

    @property
    def heads(self) -> int:
        return self.query.shape[1]

    def project(self, name: str, hidden: Tensor) -> Tensor:
        """Return query, key or value of these hidden states."""
        return (hidden @ self.projections[name].T).unflatten(-1, (-1, self.query.shape[-1]))

    @property
    def expanded(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value for each query head."""
        return self.query, to_query_heads(self.key, self.heads), to_query_heads(self.value, self.heads)

    @property
    def rotated(self) -> tuple[Tensor, Tensor]:
        query, key, _ = self.expanded
        return rotate(query, self.theta), rotate(key, self.theta)

    def linear(self, name: str) -> Tensor:
        """Return x Wᵀ + b of a weight and its bias, if it has one."""
        return self.hidden @ self[f"{name}.weight"].T + self.parameters.get(f"{name}.bias", 0)

    def short_convolved(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value after their convolutions and SiLU."""
        query, key, _ = self.expanded
        value = silu(convolve(self.value, self["conv.value"]))
        return silu(convolve(query, self["conv.query"])), silu(convolve(key, self["conv.key"])), to_query_heads(value, self.heads)

    def gated_norm(self, output: Tensor, activation: Callable[[Tensor], Tensor] = silu, epsilon: float = 1e-5) -> Tensor:
        """Apply RMSNorm to each head, and multiply by the activation of a projection of the hidden state."""
        return root_mean_square_norm(output, self["output_norm.weight"], epsilon) * activation(self.output_gate(output))

    def gated_and_normed(self, output: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
        """Divide the gated output of each head by its root mean square, and multiply by the head's number."""
        gated = output * activation(self.output_gate(output))
        return root_mean_square_norm(gated, gated.new_ones(gated.shape[-1]), 1e-5) * self["output_norm.weight"][:, None]

    def output_gate(self, output: Tensor) -> Tensor:
        """Return the logits of the output gate."""
        if "output_norm.gate_down" in self.parameters:
            logits = self.hidden @ self["output_norm.gate_down"].T @ self["output_norm.gate_up"].T
        else:
            logits = self.hidden @ self["output_norm.gate"].T
        return (logits + self.parameters.get("output_norm.gate_bias", 0)).view(output.shape)


Reference = Callable[[Layer], Tensor]
"""Returns the output of the heads, T H D, before the output projection."""


def hedgehog_features(layer: Layer, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    return hedgehog(query, layer["feature_map.query_weight"]), hedgehog(key, layer["feature_map.key_weight"])


def convolved_query_and_key(layer: Layer) -> tuple[Tensor, Tensor]:
    query, key, _ = layer.expanded
    return convolve(query, layer["conv.query"]), convolve(key, layer["conv.key"])


def lawcat_features(layer: Layer) -> tuple[Tensor, Tensor]:
    query, key = convolved_query_and_key(layer)
    return hedgehog(query, layer["feature_map.weight"]), hedgehog(key, layer["feature_map.weight"])


def channel_decay(layer: Layer, gate: str, sides: int) -> Tensor:
    """Return log α = logsigmoid(x W₁ W₂ + b) / 16 for each feature of each query head."""
    logits = layer.hidden @ layer[f"{gate}.down"].T @ layer[f"{gate}.up"].T + layer[f"{gate}.bias"]
    return log_sigmoid(logits).view(len(logits), layer.heads, sides * layer.query.shape[-1]) / 16
