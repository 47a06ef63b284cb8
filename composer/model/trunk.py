"""The modules of a trunk that Llama's may lack, chosen by the configuration: norms, MLPs, additive positions, dropout."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from blocks.flow import Tokens, accumulating
from composer.model.configuration import ComposedConfig

LONGEST_WAVE = 10000.0


def make_norm(config: ComposedConfig) -> nn.Module:
    """Over the numbers of a hidden state."""
    norm = nn.LayerNorm if config.norm_type == "layer" else LlamaRMSNorm
    return norm(config.hidden_size, eps=config.rms_norm_eps)


def make_mlp(config: ComposedConfig) -> nn.Module:
    """``B T C`` to the same."""
    return PlainMLP(config) if config.mlp_type == "plain" else LlamaMLP(config)


def make_dropout(config: ComposedConfig) -> nn.Module:
    """For what is added to a hidden state (Vaswani et al. 2017, section 5.4). At 0 it draws no random numbers."""
    return nn.Dropout(config.residual_dropout) if config.residual_dropout else nn.Identity()


class PlainMLP(nn.Module):
    """down(act(up(x)))."""

    def __init__(self, config: ComposedConfig) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)
        self.act_fn = ACT2FN[config.hidden_act]

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden ``B T C`` to the same."""
        return self.down_proj(self.act_fn(self.up_proj(hidden)))


class LearnedPositions(nn.Embedding):
    """One vector a position of a document."""

    def forward(self, hidden: Tensor, tokens: Tokens) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """hidden ``B T C`` with the vectors of its tokens' positions added. Raises ValueError where there are too few."""
        position = _real(tokens)
        last = int(position.max())
        if last >= self.num_embeddings:
            raise ValueError(
                f"token {last + 1} of a document has no position: this model has learned {self.num_embeddings} of them"
            )
        return hidden + super().forward(position)


class SinusoidalPositions(nn.Module):
    """sin(t / 10000^(2i/C)) at 2i, cos of the same at 2i + 1 (Vaswani et al. 2017, arXiv:1706.03762, section 3.5)."""

    def forward(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        """hidden ``B T C`` with the waves at its tokens' positions added."""
        width, kind = hidden.shape[-1], accumulating(hidden.dtype)
        even = torch.arange(0, width, 2, device=hidden.device, dtype=kind)
        angle = _real(tokens)[..., None].to(kind) * LONGEST_WAVE ** (-even / width)
        waves = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
        return hidden + waves[..., :width].to(hidden.dtype)


def make_positions(config: ComposedConfig) -> LearnedPositions | SinusoidalPositions | None:
    """What is added to the tokens' embeddings; None for nothing."""
    if config.position_embedding == "learned":
        return LearnedPositions(config.max_position_embeddings, config.hidden_size)
    return SinusoidalPositions() if config.position_embedding == "sinusoidal" else None


def _real(tokens: Tokens) -> Tensor:
    """Positions, 0 for padding, which may stand beyond the last one that there is."""
    return tokens.position if tokens.valid is None else tokens.position.masked_fill(~tokens.valid, 0)
