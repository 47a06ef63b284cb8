"""The small host of this project's own: a decoder like Llama's, with what Latte's models have and Llama's lack.

Attributes have Llama's names, so that its weights load as they are. The heads do the rotation, not the host.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.generation.utils import GenerationMixin
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaForCausalLM, LlamaMLP, LlamaRMSNorm

from blocks.flow import Tokens
from blocks.norms import rms_norm
from blocks.tensors import accumulating
from composer.model.attention import ModelCall
from composer.model.cache import CACHE
from composer.model.configuration import ComposedConfig

LONGEST_WAVE = 10000.0


class Attention(nn.Module):
    """Four projections around heads."""

    def __init__(self, config: ComposedConfig) -> None:
        super().__init__()
        assert config.head_dim is not None, "LlamaConfig sets head_dim"
        assert config.num_key_value_heads is not None, "LlamaConfig sets num_key_value_heads"
        self.config, self.head_dim = config, config.head_dim
        bias, hidden = config.attention_bias, config.hidden_size
        queries, keys = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(hidden, queries, bias=bias)
        self.k_proj = nn.Linear(hidden, keys, bias=bias)
        self.v_proj = nn.Linear(hidden, keys, bias=bias)
        self.o_proj = nn.Linear(queries, hidden, bias=bias)

    def forward(self, hidden_states: Tensor, attention_mask: Any, cache: Any = None, **options: Any) -> Tensor:
        """hidden_states ``B T C`` to the same."""
        shape = (*hidden_states.shape[:2], -1, self.head_dim)
        query, key = self.q_proj(hidden_states).view(shape), self.k_proj(hidden_states).view(shape)
        heads = self.attend(query, key, self.v_proj(hidden_states).view(shape), attention_mask, **options)
        return self.o_proj(heads.flatten(2))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any) -> Tensor:
        """Queries ``B T H D``, keys and values ``B T K D`` to ``B T H D``, by transformers; composed heads override it."""
        attention = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        states = (states.transpose(1, 2) for states in (query, key, value))
        return attention(self, *states, attention_mask, scaling=self.head_dim**-0.5, **options)[0]


class DecoderLayer(GradientCheckpointingLayer):
    """Norm, attention, norm, MLP, each with its residual."""

    def __init__(self, config: ComposedConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = make_mlp(config)
        self.input_layernorm = make_norm(config)
        self.post_attention_layernorm = make_norm(config)
        self.dropout = make_dropout(config)

    def forward(self, hidden_states: Tensor, attention_mask: ModelCall, cache: Any = None) -> Tensor:
        """hidden_states ``B T C`` to the same."""
        normed = self.input_layernorm(hidden_states)
        attended = self.self_attn(normed, attention_mask=attention_mask, cache=cache)
        hidden_states = hidden_states + drop_out(attended, self.dropout)
        return hidden_states + drop_out(self.mlp(self.post_attention_layernorm(hidden_states)), self.dropout)


class Pretrained(PreTrainedModel):
    """The class attributes that transformers wants of a family."""

    config: ComposedConfig
    config_class = ComposedConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["DecoderLayer"]
    _skip_keys_device_placement = ["cache"]
    _supports_sdpa = True
    # Old Llama checkpoints hold these buffers, and their shards are linked as they are.
    _keys_to_ignore_on_load_unexpected = [r"rotary_emb\.inv_freq$"]


class Model(Pretrained):
    """Embedding, layers and the last norm."""

    takes_model_call = True
    """Its forward receives a ``ModelCall`` as its mask; other hosts make their own mask."""

    def __init__(self, config: ComposedConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.embed_positions = make_positions(config)
        self.dropout = make_dropout(config)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = make_norm(config)
        self.gradient_checkpointing = False
        self.post_init()

    @property
    def learned_positions(self) -> int | None:
        """How many positions the model has learned; None: it has no end of them."""
        return self.config.max_position_embeddings if self.config.position_embedding == "learned" else None

    def forward(
        self,
        input_ids: Tensor | None,
        attention_mask: ModelCall,
        cache: Any = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        **_: Any,
    ) -> BaseModelOutputWithPast:
        """Any number of tokens T ≥ 1, with padding after the others."""
        hidden = cast("Tensor", self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds)
        if self.embed_positions is not None:
            hidden = self.embed_positions(hidden, attention_mask)
        hidden = drop_out(hidden, self.dropout)
        every = [hidden]
        for layer in self.layers:
            hidden = layer(hidden, attention_mask=attention_mask, cache=cache)
            every.append(hidden)
        every[-1] = hidden = self.norm(hidden)
        return BaseModelOutputWithPast(
            last_hidden_state=hidden,
            hidden_states=tuple(every) if output_hidden_states else None,
            **{CACHE: cache},
        )


class ForCausalLM(Pretrained, GenerationMixin):
    """The language model."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: ComposedConfig) -> None:
        super().__init__(config)
        self.model = Model(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    forward = LlamaForCausalLM.forward
    """Llama's own, so that every loop for causal models finds the arguments, the loss and the outputs that it expects."""


class RMSNorm(LlamaRMSNorm):
    """Llama's, which computes in float32: of float32, in fewer operations."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """hidden_states ``B T C`` to the same."""
        weight = self.weight
        if not hidden_states.dtype == weight.dtype == torch.float32:
            return super().forward(hidden_states)
        return rms_norm(hidden_states, weight, self.variance_epsilon)


def make_norm(config: ComposedConfig) -> nn.Module:
    """Over the numbers of a hidden state."""
    norm = nn.LayerNorm if config.norm_type == "layer" else RMSNorm
    return norm(config.hidden_size, eps=config.rms_norm_eps)


def make_mlp(config: ComposedConfig) -> nn.Module:
    """``B T C`` to the same."""
    return PlainFeedForward(config) if config.mlp_type == "plain" else LlamaMLP(config)


def make_dropout(config: ComposedConfig) -> nn.Dropout | None:
    """For what is added to a hidden state (Vaswani et al. 2017, section 5.4). At 0 there is none, and no random number is drawn."""
    return nn.Dropout(config.residual_dropout) if config.residual_dropout else None


def drop_out(states: Tensor, dropout: nn.Dropout | None) -> Tensor:
    """Return the states, some of them dropped where there is dropout."""
    return states if dropout is None else dropout(states)


class PlainFeedForward(nn.Module):
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

    def forward(self, hidden: Tensor, model_call: ModelCall) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """hidden ``B T C`` with the vectors of its tokens' positions added. Raises ValueError if there are too few; in a
        compiler's graph, PyTorch does."""
        position = _real(model_call.tokens)
        enough = model_call.below is not None and model_call.below <= self.num_embeddings
        if not enough and not torch.compiler.is_compiling() and (last := int(position.max())) >= self.num_embeddings:
            raise ValueError(
                f"token {last + 1} of a document has no position: this model has learned {self.num_embeddings} of them"
            )
        return hidden + super().forward(position)


class SinusoidalPositions(nn.Module):
    """sin(t / 10000^(2i/C)) at 2i, cos of the same at 2i + 1 (Vaswani et al. 2017, arXiv:1706.03762, section 3.5)."""

    def forward(self, hidden: Tensor, model_call: ModelCall) -> Tensor:
        """hidden ``B T C`` with the waves at its tokens' positions added."""
        width, kind = hidden.shape[-1], accumulating(hidden.dtype)
        even = torch.arange(0, width, 2, device=hidden.device, dtype=kind)
        angle = _real(model_call.tokens)[..., None].to(kind) * LONGEST_WAVE ** (-even / width)
        waves = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
        return hidden + waves[..., :width].to(hidden.dtype)


def make_positions(config: ComposedConfig) -> LearnedPositions | SinusoidalPositions | None:
    """Return the positions that are added to the tokens' embeddings; None for none."""
    if config.position_embedding == "learned":
        return LearnedPositions(config.max_position_embeddings, config.hidden_size)
    return SinusoidalPositions() if config.position_embedding == "sinusoidal" else None


def _real(tokens: Tokens) -> Tensor:
    """Return positions, with 0 for padding, whose position may exceed the last one of the table."""
    return tokens.position if tokens.valid is None else tokens.position.masked_fill(~tokens.valid, 0)
