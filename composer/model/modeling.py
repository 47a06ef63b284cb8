"""The decoder: a Llama trunk whose attention is composed. Parameters keep Llama's names; fresh ones stand under ``composed``."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.generation.utils import GenerationMixin
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto.modeling_auto import AutoModel, AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from blocks.flow import Tokens
from blocks.part import State
from composer.graph.lowering import Backend
from composer.model.cache import SEEN, ComposedCache
from composer.model.configuration import ComposedConfig
from composer.model.head import Head, PartModule
from composer.model.rows import Rows
from composer.spec.resolve import Resolved

# What transformers' own loops pass to every causal model.
PASSED_ON = frozenset({"num_items_in_batch", "return_dict", "output_attentions", "token_type_ids", "logits_to_keep"})


class ComposedAttention(nn.Module):
    """Llama's four projections around groups of composed heads."""

    def __init__(self, config: ComposedConfig, resolved: Resolved, layer: int) -> None:
        super().__init__()
        size, bias = resolved.dimensions, config.attention_bias
        self.head_dim = size.head_dim
        self.q_proj = nn.Linear(size.hidden_size, size.heads * size.head_dim, bias=bias)
        self.k_proj = nn.Linear(size.hidden_size, size.key_heads * size.head_dim, bias=bias)
        self.v_proj = nn.Linear(size.hidden_size, size.key_heads * size.head_dim, bias=bias)
        self.o_proj = nn.Linear(size.heads * size.head_dim, size.hidden_size, bias=bias)
        self.composed = ComposedHeads(resolved, layer)

    def forward(self, hidden: Tensor, tokens: Tokens, state: State, backend: Backend) -> tuple[Tensor, State]:
        """hidden ``B T C``, and the layer's state (empty at the start), to the attention's output and the new state."""
        projections = (self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (projection(hidden).unflatten(2, (-1, self.head_dim)) for projection in projections)
        output, carried = self.composed(hidden, query, key, value, tokens, state, backend)
        return self.o_proj(output.flatten(2)), carried


class ComposedHeads(nn.Module):
    """The groups of one layer, each a head by its name. All fresh parameters of the layer stand in here."""

    def __init__(self, resolved: Resolved, layer: int) -> None:
        super().__init__()
        self._groups = resolved.layers[layer]
        for group in self._groups:
            self.add_module(group.head, Head(resolved.heads[group.head], resolved.dimensions.shape(group.heads)))

    def forward(
        self, hidden: Tensor, query: Tensor, key: Tensor, value: Tensor, tokens: Tokens, state: State, backend: Backend
    ) -> tuple[Tensor, State]:
        """query ``B T (all heads) D``, key and value likewise, to the heads' outputs and the layer's new state."""
        queries, keys, values = (_split(states, self._groups) for states in (query, key, value))
        outputs, carried = [], {}
        for index, group in enumerate(self._groups):
            head = cast("Head", self._modules[group.head])
            own = {name.partition(".")[2]: held for name, held in state.items() if name.startswith(f"{group.head}.")}
            own = own or head.empty_state(hidden.shape[0], query.dtype, hidden.device)
            output, new = head(hidden, queries[index], keys[index], values[index], tokens, own, backend)
            outputs.append(output)
            carried |= {f"{group.head}.{name}": tensor for name, tensor in new.items()}
        return torch.cat(outputs, dim=2), carried


def _split(states: Tensor, groups: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """``B T (all heads) D`` to the heads of each group; queries have more heads than keys by the same factor everywhere."""
    factor = states.shape[2] // sum(group.key_heads for group in groups)
    return states.split([group.key_heads * factor for group in groups], dim=2)


class ComposedDecoderLayer(GradientCheckpointingLayer):
    """Norm, attention, norm, MLP, each with its residual."""

    def __init__(self, config: ComposedConfig, resolved: Resolved, layer: int) -> None:
        super().__init__()
        self.self_attn = ComposedAttention(config, resolved, layer)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, hidden: Tensor, tokens: Tokens, state: State, backend: Backend) -> tuple[Tensor, State]:
        """hidden ``B T C`` to the same, and the layer's new state."""
        attended, state = self.self_attn(self.input_layernorm(hidden), tokens, state, backend)
        hidden = hidden + attended
        return hidden + self.mlp(self.post_attention_layernorm(hidden)), state


class ComposedPreTrainedModel(PreTrainedModel):
    """Initialisation, and what transformers asks of a family."""

    config: ComposedConfig
    config_class = ComposedConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["ComposedDecoderLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    _is_stateful = True
    # Old Llama checkpoints hold these buffers, and their shards are linked as they are.
    _keys_to_ignore_on_load_unexpected = [r"rotary_emb\.inv_freq$"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, PartModule):
            module.fill(None)


class ComposedModel(ComposedPreTrainedModel):
    """Embedding, layers and the last norm."""

    def __init__(self, config: ComposedConfig) -> None:
        super().__init__(config)
        resolved = config.resolved()
        self.backend: Backend = "torch"
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(ComposedDecoderLayer(config, resolved, layer) for layer in range(resolved.dimensions.layers))
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: ComposedCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        cu_seqlens: Tensor | None = None,
        **passed: Any,
    ) -> BaseModelOutputWithPast:
        """Any number of tokens T ≥ 1, after whatever the cache has seen.

        attention_mask: ``B S``, 1 for real tokens; its last T columns are this call's. position_ids: ``B T``; a 0 starts a
        new document, which never sees the one before. cu_seqlens: ``N + 1`` bounds of the documents of one packed row.
        """
        _check_passed(passed)
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("pass exactly one of input_ids and inputs_embeds")
        hidden = cast("Tensor", self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds)
        batch, length = hidden.shape[:2]
        cache = self._cache(past_key_values, use_cache)
        seen = cache.seen(batch, hidden.device) if cache is not None and cache.get_seq_length() else None
        rows = Rows(batch, length, hidden.device, seen=seen, mask=attention_mask, positions=position_ids, cu_seqlens=cu_seqlens)
        hidden = rows.inward(hidden)
        every = [hidden]
        for index, layer in enumerate(self.layers):
            held = cache.state(index) if cache is not None else None
            hidden, state = layer(hidden, rows.tokens, held.tensors if held is not None else {}, self.backend)
            every.append(hidden)
            if held is not None:
                held.tensors, held.columns = state, held.columns + length
        if cache is not None:
            cache.state(0).tensors[SEEN] = rows.real if seen is None else seen + rows.real
        every[-1] = hidden = self.norm(hidden)
        return BaseModelOutputWithPast(
            last_hidden_state=rows.outward(hidden),
            past_key_values=cache,
            hidden_states=tuple(rows.outward(one) for one in every) if output_hidden_states else None,
        )

    def _cache(self, given: Any, use_cache: bool | None) -> ComposedCache | None:
        if given is not None and not isinstance(given, ComposedCache):
            raise TypeError(
                f"past_key_values is a {type(given).__name__}, and a composed model keeps states of its own: "
                "pass what this model returned, ComposedCache(layers), or nothing"
            )
        wanted = self.config.use_cache if use_cache is None else use_cache
        if not wanted or (self.gradient_checkpointing and self.training):
            return given
        return given if given is not None else ComposedCache(len(self.layers))


class ComposedForCausalLM(ComposedPreTrainedModel, GenerationMixin):
    """The language model: ``from_pretrained``, ``generate`` and the loss are transformers' own."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: ComposedConfig) -> None:
        super().__init__(config)
        self.model = ComposedModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: ComposedCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        cu_seqlens: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        **passed: Any,
    ) -> CausalLMOutputWithPast:
        """As ``ComposedModel.forward``. labels: ``B T``, -100 where nothing is asked; logits_to_keep: the last ones only."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            cu_seqlens=cu_seqlens,
            **passed,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.vocab_size, num_items_in_batch=num_items_in_batch
            )
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=outputs.past_key_values, hidden_states=outputs.hidden_states
        )

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *_unused: Any, **_more: Any
    ) -> bool:
        if generation_config.cache_implementation is not None:
            raise ValueError(
                f"cache_implementation={generation_config.cache_implementation!r} is for caches of keys and values; "
                "a composed model keeps states of its own: leave it out"
            )
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache:
            model_kwargs["past_key_values"] = ComposedCache(len(self.model.layers))
        return False


def _check_passed(passed: dict[str, Any]) -> None:
    if passed.pop("output_attentions", None):
        raise ValueError("output_attentions: a composed head has no T × T attention matrix to return")
    unknown = [name for name, value in passed.items() if value is not None and name not in PASSED_ON]
    if unknown:
        raise TypeError(f"a composed model does not take {', '.join(unknown)}")


AutoModel.register(ComposedConfig, ComposedModel, exist_ok=True)
AutoModelForCausalLM.register(ComposedConfig, ComposedForCausalLM, exist_ok=True)
