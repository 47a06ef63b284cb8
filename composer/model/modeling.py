"""The decoder: a trunk whose attention is composed. Parameters keep Llama's names; those of heads stand under ``composed``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.generation.utils import GenerationMixin
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto.modeling_auto import AutoModel, AutoModelForCausalLM
from transformers.utils.hub import cached_file

from blocks.flow import Tokens
from blocks.part import State
from composer.graph.lowering import AUTO, check_backend
from composer.model.attention import ComposedAttention
from composer.model.cache import SEEN, ComposedCache
from composer.model.configuration import ComposedConfig
from composer.model.head import Head, PartModule, precise_parameters
from composer.model.rows import Rows
from composer.model.trunk import make_dropout, make_mlp, make_norm, make_positions
from composer.spec.parameters import graphs_of
from composer.spec.resolve import Resolved
from composer.trust import code_in_adapter
from converters.composed import ADAPTER_CONFIG, ADAPTER_WEIGHTS, adapter_folder

# What transformers' own loops pass to every causal model.
PASSED_ON = frozenset({"num_items_in_batch", "return_dict", "output_attentions", "token_type_ids", "logits_to_keep"})

WHERE = ("revision", "token", "cache_dir", "local_files_only")
"""Options of ``from_pretrained`` that say where a model is, and so its adapters."""


class ComposedDecoderLayer(GradientCheckpointingLayer):
    """Norm, attention, norm, MLP, each with its residual."""

    def __init__(self, config: ComposedConfig, resolved: Resolved, layer: int) -> None:
        super().__init__()
        self.self_attn = ComposedAttention(config, resolved, layer)
        self.mlp = make_mlp(config)
        self.input_layernorm = make_norm(config)
        self.post_attention_layernorm = make_norm(config)
        self.dropout = make_dropout(config)

    def forward(self, hidden: Tensor, tokens: Tokens, state: State, backend: str, in_place: bool = False) -> tuple[Tensor, State]:
        """hidden ``B T C`` to the same, and the layer's new state. in_place: nobody else holds the state."""
        attended, state = self.self_attn(self.input_layernorm(hidden), tokens, state, backend, in_place)
        return self.after(hidden, attended), state

    def after(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """What the layer gives once its attention has answered."""
        hidden = hidden + self.dropout(attended)
        return hidden + self.dropout(self.mlp(self.post_attention_layernorm(hidden)))


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

    def set_backend(self, backend: str) -> None:
        """Which forms run its heads from now on: auto, reference, torch, or another that a part has. Raises BuildError."""
        self.run_on(check_backend(backend, graphs_of(self.config.resolved())))

    def run_on(self, backend: str) -> None:
        """The same for a backend that somebody has checked, and that none of these heads need have a form on."""
        cast("ComposedModel", self.base_model).backend = backend
        for module in self.modules():
            if isinstance(module, Head):
                module._printed = backend

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
        self.backend: str = AUTO
        self.both_ways = resolved.direction == "bidirectional"
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.embed_positions = make_positions(config)
        self.dropout = make_dropout(config)
        self.layers = nn.ModuleList(ComposedDecoderLayer(config, resolved, layer) for layer in range(resolved.dimensions.layers))
        self.norm = make_norm(config)
        # What a load is not to make narrower; casts of a model that is there are PartModule's affair.
        self._keep_in_fp32_modules_strict = precise_parameters(self)
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
        check_passed(passed)
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("pass exactly one of input_ids and inputs_embeds")
        hidden = cast("Tensor", self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds)
        batch, length = hidden.shape[:2]
        cache = self._cache(past_key_values, use_cache)
        seen = cache.seen(batch, hidden.device) if cache is not None and cache.get_seq_length() else None
        rows = Rows(batch, length, hidden.device, seen=seen, mask=attention_mask, positions=position_ids, cu_seqlens=cu_seqlens)
        hidden = self.before(rows.inward(hidden), rows.tokens)
        every = [hidden]
        for index, layer in enumerate(self.layers):
            held = cache.state(index) if cache is not None else None
            before = held.tensors if held is not None else {}
            hidden, state = layer(hidden, rows.tokens, before, self.backend, held is not None and not torch.is_grad_enabled())
            every.append(hidden)
            if held is not None:
                held.keep(state, length)
        if cache is not None:
            cache.state(0).tensors[SEEN] = rows.real if seen is None else seen + rows.real
        every[-1] = hidden = self.norm(hidden)
        return BaseModelOutputWithPast(
            last_hidden_state=rows.outward(hidden),
            past_key_values=cache,
            hidden_states=tuple(rows.outward(one) for one in every) if output_hidden_states else None,
        )

    def before(self, hidden: Tensor, tokens: Tokens) -> Tensor:
        """What the first layer is given: embedded tokens, with their positions where the trunk adds them."""
        if self.embed_positions is not None:
            hidden = self.embed_positions(hidden, tokens)
        return self.dropout(hidden)

    def _cache(self, given: Any, use_cache: bool | None) -> ComposedCache | None:
        if given is not None and not isinstance(given, ComposedCache):
            raise TypeError(
                f"past_key_values is a {type(given).__name__}, and a composed model keeps states of its own: "
                "pass what this model returned, ComposedCache(layers), or nothing"
            )
        if self.both_ways:
            if given is not None:
                raise ValueError("past_key_values: a bidirectional model hands nothing on; give it each text whole, in one call")
            return None
        wanted = self.config.use_cache if use_cache is None else use_cache
        if not wanted or (self.gradient_checkpointing and self.training):
            return given
        return given if given is not None else ComposedCache(len(self.layers))


class ComposedForCausalLM(ComposedPreTrainedModel, GenerationMixin):
    """The language model: ``from_pretrained``, ``generate`` and the loss are transformers' own."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *arguments: Any, with_adapter: bool = True, **options: Any) -> Any:
        """As transformers has it, with the adapters that belong to the weights; ``with_adapter=False`` leaves them out.

        Nothing that stands beside the weights runs, whatever ``trust_remote_code`` says: the code is this project's. Raises
        ValueError where adapters would have some imported.
        """
        options["trust_remote_code"] = False
        answer = super().from_pretrained(pretrained_model_name_or_path, *arguments, **options)
        model = answer[0] if isinstance(answer, tuple) else answer
        if not with_adapter:
            model.config.adapter = None  # what is saved from here has none
        if model.config.adapter is not None:
            where = {name: options[name] for name in WHERE if options.get(name) is not None}
            where["subfolder"] = "/".join(filter(None, (options.get("subfolder"), adapter_folder(model.config.adapter))))
            check_adapter(pretrained_model_name_or_path, where)
            model.load_adapter(pretrained_model_name_or_path, adapter_kwargs=where)
        return answer

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
        if self.model.both_ways:
            raise ValueError("a bidirectional model cannot write: what a token says would depend on those not yet written")
        if generation_config.cache_implementation is not None:
            raise ValueError(
                f"cache_implementation={generation_config.cache_implementation!r} is for caches of keys and values; "
                "a composed model keeps states of its own: leave it out"
            )
        if model_kwargs.get("past_key_values") is None and generation_config.use_cache:
            model_kwargs["past_key_values"] = ComposedCache(len(self.model.layers))
        return False


def check_adapter(reference: Any, where: Mapping[str, Any]) -> None:
    """Whether adapters are safetensors, and of a kind that has nothing imported. Raises ValueError, and OSError where they lack."""
    path = cached_file(reference, ADAPTER_CONFIG, **where)
    cached_file(reference, ADAPTER_WEIGHTS, **where)  # else a pickle would be looked for
    assert path is not None, "it raises where there is none"
    with open(path, encoding="utf-8") as stream:
        problem = code_in_adapter(json.load(stream))
    if problem is not None:
        raise ValueError(f"{path} {problem}; nothing that stands beside weights is ever run here")


def check_passed(passed: dict[str, Any]) -> None:
    """Refuse what a composed model does not take."""
    if passed.pop("output_attentions", None):
        raise ValueError("output_attentions: a composed head has no T × T attention matrix to return")
    unknown = [name for name, value in passed.items() if value is not None and name not in PASSED_ON]
    if unknown:
        raise TypeError(f"a composed model does not take {', '.join(unknown)}")


AutoModel.register(ComposedConfig, ComposedModel, exist_ok=True)
AutoModelForCausalLM.register(ComposedConfig, ComposedForCausalLM, exist_ok=True)
