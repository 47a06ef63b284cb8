"""Composed models: a host's own classes, with heads in every layer, states in place of a cache, and padding moved to the end."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, cast

import torch
import transformers
from torch import Tensor, nn
from transformers.generation.utils import GenerationMixin
from transformers.modeling_outputs import MoeModelOutputWithPast
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto.configuration_auto import AutoConfig

from blocks.flow import Tokens
from composer.errors import BuildError
from composer.graph.lowering import AUTO, check_backend
from composer.model.adapters import KEEPERS, adapters_of, where_of
from composer.model.attention import INTERFACE, RUNNING, ModelCall, read_masks
from composer.model.cache import CACHE, SEEN, ComposedCache, cache_among, check_cache, new_cache, without_what_follows
from composer.model.call_arguments import OF_IMAGES, check_passed, read_documents
from composer.model.configuration import make_class
from composer.model.cuda_graph import Recorder
from composer.model.generation import check_continuation, prepare_cache, read_prompt
from composer.model.head import Head, PartModule, precise_parameters
from composer.model.hosts import SECTIONS, compose
from composer.model.mixers import masks_of
from composer.model.rows import Rows
from composer.spec.resolve import graphs_of
from converters.composed import adapter_folder
from converters.hosts import WHOLE
from converters.model_types import PREFIX


class ComposedPreTrainedModel(PreTrainedModel):
    """The first base of all composed classes; a host's class is the next one."""

    _is_stateful = False
    """transformers refuses models that cannot remove their last tokens from a cache in assisted generation."""
    _origin: Any = None
    """The record and the folder of the model, as its ``Keeper`` sets them."""
    _supports_flash_attn = False
    _supports_flex_attn = False

    def set_backend(self, backend: str) -> None:
        """Choose the backend whose forms run the heads: one of BACKENDS, or one that a part has a form on. Raises BuildError."""
        self.run_on(check_backend(backend, graphs_of(self.config.read_spec())))

    def run_on(self, backend: str) -> None:
        """``set_backend`` without a check: heads without a form on this backend fall back."""
        self.base.backend = backend
        for module in self.modules():
            if isinstance(module, Head):
                module._printed = backend

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *arguments: Any, **options: Any) -> Any:
        """As transformers has it; the model keeps the record of the folder that it is loaded from."""
        result = super().from_pretrained(pretrained_model_name_or_path, *arguments, **options)
        for keeper in KEEPERS:
            keeper.after_load(result[0] if isinstance(result, tuple) else result, pretrained_model_name_or_path, where_of(options))
        return result

    def save_pretrained(self, save_directory: Any, is_main_process: bool = True, *arguments: Any, **options: Any) -> None:
        """As transformers has it, and the record of the model beside its weights."""
        super().save_pretrained(save_directory, is_main_process, *arguments, **options)
        if is_main_process:
            for keeper in KEEPERS:
                keeper.after_save(self, Path(save_directory))

    def _upload_modified_files(self, working_dir: Any, *arguments: Any, **options: Any) -> Any:
        """As transformers has it; the record is uploaded, too."""
        for keeper in KEEPERS:
            keeper.after_save(self, Path(working_dir))
        return super()._upload_modified_files(working_dir, *arguments, **options)

    @property
    def base(self) -> ComposedModel:
        """The model without its output matrix; of a model that reads images, too, its text decoder."""
        base: Any = self.base_model
        decoder = WHOLE.get(self.config.model_type.removeprefix(PREFIX))
        return base if decoder is None or isinstance(base, ComposedModel) else getattr(base, decoder)

    def _initialize_weights(self, module: nn.Module, *_: Any, **__: Any) -> None:
        """Initialise weights as transformers does for its own classes. It assumes that a module of another class without parameters
        is initialised, and some hosts' base models fill buffers of their layers."""
        super()._initialize_weights(module)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, PartModule):
            module.fill(None)

    def get_correct_attn_implementation(self, *_: Any, **__: Any) -> str:
        return INTERFACE


class ComposedModel(ComposedPreTrainedModel):
    """The first base of a composed base model; the host's is the next one. It moves each row's real tokens to the front, and
    padding to the end."""

    is_inside: bool = False
    """Whether this is the text decoder inside another model."""

    def __init__(self, config: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(config, *arguments, **options)
        resolved = config.read_spec()
        self.backend: str = AUTO
        self.both_ways = resolved.direction == "bidirectional"
        self.has_mixers = compose(self, resolved)
        self.rotates_by_place = any(hasattr(module, SECTIONS) for module in self.modules())
        # A load must not make these narrower. ``PartModule`` handles casts of a loaded model.
        self._keep_in_fp32_modules_strict = precise_parameters(self)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: ComposedCache | None = None,
        cache: ComposedCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cu_seqlens: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None,
        max_length_q: int | None = None,
        max_length_k: int | None = None,
        seq_idx: Tensor | None = None,
        return_dict: bool | None = None,
        **options: Any,
    ) -> Any:
        """Any number of tokens T ≥ 1, after whatever the cache has seen.

        attention_mask: ``B S``, 1 for real tokens; its last T columns are this call's. position_ids: ``B T``; a real token begins a
        document, which never sees the one before, where its position is 0 or does not rise. Models that rotate by three numbers a
        token also take these, ``3 B T``, or ``4 B T`` with positions first. cu_seqlens: ``N + 1`` bounds of the documents of one
        packed row; transformers' collators call them cu_seq_lens_q and cu_seq_lens_k. max_length_q, max_length_k: upper bounds of
        their lengths. seq_idx: ``B T``, the number of each token's document. Raises ValueError where two of these contradict each
        other. return_dict: False returns a tuple.
        """
        attention_mask, ahead = read_masks(attention_mask)
        output_attentions = options.pop("output_attentions", self.config.output_attentions)
        if options:
            check_passed(options)
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("pass exactly one of input_ids and inputs_embeds")
        tokens = cast("Tensor", input_ids if inputs_embeds is None else inputs_embeds)
        (batch, length), device = tokens.shape[:2], tokens.device
        if length == 0:
            raise ValueError(f"input_ids has the shape {tuple(tokens.shape)}; expected at least one token in each row")
        cache = self._cache(past_key_values if cache is None else cache, use_cache)
        columns = 0 if cache is None else cache.get_seq_length()
        seen = None if cache is None else cache.count_tokens()
        bounds = {"cu_seqlens": cu_seqlens, "cu_seq_lens_q": cu_seq_lens_q, "cu_seq_lens_k": cu_seq_lens_k}
        longest = {"max_length_q": max_length_q, "max_length_k": max_length_k}
        documents = read_documents(batch, length, device, bounds=bounds, seq_idx=seq_idx, longest=longest)
        places = None
        if position_ids is not None and self.rotates_by_place and position_ids.dim() == 3:
            places, position_ids = position_ids[-3:], position_ids[0] if position_ids.shape[0] == 4 else None
        rows = Rows(batch, length, device, seen, columns, mask=attention_mask, positions=position_ids, documents=documents)
        if places is not None:
            rows.tokens.coordinates = rows.inward(places.permute(1, 2, 0).to(device))
        if OF_IMAGES in options:
            options[OF_IMAGES] = rows.inward(options[OF_IMAGES])
        inputs: dict[str, Any] = {"input_ids": None, "inputs_embeds": None}
        inputs["input_ids" if inputs_embeds is None else "inputs_embeds"] = rows.inward(tokens)
        options |= inputs | {"position_ids": rows.tokens.position, "cache": cache}
        if cache is not None and self.has_mixers:
            cache.state(0).tensors.pop(SEEN, None)  # the heads of layer 0 drop it where it has any
        options["ahead"] = {kind: rows.inward(rows.inward(later).mT).mT for kind, later in ahead.items()}
        outputs = self._with_attentions(rows, seen, options) if output_attentions else self.run(rows.tokens, rows.below, **options)
        if cache is not None:
            outputs[CACHE] = cache
            cache.state(0).tensors[SEEN] = rows.seen
        if rows.is_reordered:
            outputs.last_hidden_state = rows.outward(outputs.last_hidden_state)
            if outputs.hidden_states is not None:
                outputs.hidden_states = tuple(rows.outward(hidden) for hidden in outputs.hidden_states)
            if getattr(outputs, "router_logits", None) is not None:  # a host's, of all tokens of all rows
                outputs.router_logits = tuple(
                    rows.outward(logits.reshape(batch, length, -1)).reshape(logits.shape) for logits in outputs.router_logits
                )
        return outputs.to_tuple() if return_dict is False else outputs

    def _with_attentions(self, rows: Rows, seen: Tensor | None, options: dict[str, Any]) -> Any:
        """The same with the weights of all heads, B H T T a layer: of exact memories, and those that states imply."""
        from composer.model.head_visits import Attentions, visiting_heads

        if options["ahead"]:
            raise ValueError(
                "output_attentions: weights are computed token by token, and tokens of an image see later ones. Leave "
                "output_attentions or token_type_ids out"
            )
        if seen is not None:
            raise ValueError(
                "output_attentions: weights are computed from the values of the whole text, and values of earlier calls are not "
                "kept. Pass the whole text in one call, without a cache"
            )
        attentions = Attentions(self.backend)
        with visiting_heads(self, attentions.collect):
            outputs = self.run(rows.tokens, rows.below, **options)
        outputs.attentions = attentions.by_layer(rows)
        return outputs

    def run(
        self, tokens: Tokens, below: int | None = None, *, ahead: Mapping[str | None, Tensor] = MappingProxyType({}), **options: Any
    ) -> Any:
        """Run the host's own forward for tokens in the internal order, with padding after each row's real tokens.

        below, ahead: as in ``ModelCall``. options: the host's arguments, cache and position_ids among them.
        """
        model_call = ModelCall(tokens, self.backend, below, ahead)
        if getattr(self, "takes_model_call", False):
            return super().forward(attention_mask=model_call, **options)  # type: ignore[misc]
        # Hybrids' hosts have their own kinds of caches, which they insist on where use_cache is True.
        cache = options[CACHE] = options.pop("cache")
        use_cache = cache is not None and not self.has_mixers
        masks = masks_of(model_call) if self.has_mixers else None
        options |= {"attention_mask": masks, "use_cache": use_cache, "return_dict": True}
        before, RUNNING.model_call = RUNNING.model_call, model_call
        try:
            return super().forward(**options)  # type: ignore[misc]
        finally:
            RUNNING.model_call = before

    def _cache(self, past: Any, use_cache: bool | None) -> ComposedCache | None:
        if past is not None and not isinstance(past, ComposedCache):
            if not self.is_inside or past.get_seq_length():
                check_cache(past)
            past = None  # some models that read images prepare an empty cache of their own kind
        if self.both_ways:
            if past is not None:
                raise ValueError("a bidirectional model has no cache: pass each whole text in one call")
            return None
        if getattr(self, "gradient_checkpointing", False) and self.training:
            if past is not None:
                raise ValueError("layers with gradient checkpointing accept no cache in training: call eval() first")
            return None
        return new_cache(self.config) if past is None and (self.config.use_cache if use_cache is None else use_cache) else past


class ComputedOutput(MoeModelOutputWithPast):
    """The output of ``Computed``. Whatever else a host reads of its base model, such as states of images, is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class Computed(nn.Module):
    """Replaces a base model whose last hidden states are known: it returns them."""

    def forward(self, *, inputs_embeds: Tensor, **_: Any) -> ComputedOutput:
        return ComputedOutput(last_hidden_state=cast("Any", inputs_embeds))


class ComposedForCausalLM(ComposedPreTrainedModel, GenerationMixin):
    """The first base of a composed language model; the host's is the next one. ``from_pretrained``, ``generate`` and the loss are
    transformers' own.

    use_graph: whether ``generate`` on a GPU records the step of decode once, as a CUDA graph, and replays it.
    """

    use_graph: bool = True
    class_of: ClassVar[Callable[[Any], Any]]
    """Returns the class of the models of a configuration. ``composer.model.classes`` sets it, as it imports this module."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """The host's forward, or a step of the cache's recorder where that serves the call."""
        cache = cache_among(options)
        if isinstance(cache, ComposedCache) and cache.is_recording and not arguments:
            options = read_prompt(self, cache, options)
        recorder = getattr(cache, "recorder", None)
        named_options = {"input_ids": arguments[0], **options} if len(arguments) == 1 else options
        if recorder is not None and len(arguments) < 2 and recorder.serves(self, named_options):
            return recorder.step(named_options)
        return super().__call__(*arguments, **options)

    def generate(self, *arguments: Any, **options: Any) -> Any:
        """As transformers has it. A cache that outlives the call has no recorder: recorded steps keep their own memory. Raises
        ValueError if the cache has seen all of the input."""
        result = None
        check_continuation(arguments, options)
        try:
            result = super().generate(*arguments, **options)  # pyright: ignore[reportAttributeAccessIssue]
            return result
        finally:
            for cache in (cache_among(options), getattr(result, CACHE, None)):
                if isinstance(cache, ComposedCache):
                    cache.recorder = None

    def logits_of(self, hidden: Tensor) -> Tensor:
        """Return the logits ``B T V`` of last hidden states ``B T C``, by the host's own forward, with its caps and scales."""
        head = copy.copy(self)
        head._modules = {**self._modules, self.base_model_prefix: Computed()}
        return PreTrainedModel.__call__(head, inputs_embeds=hidden).logits

    def recording(self, cache: ComposedCache) -> Recorder:
        """Return a recorder of this model's steps for this cache, which has it from here on."""
        cache.recorder = Recorder(self, cache)
        return cache.recorder

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *arguments: Any, with_adapter: bool = True, **options: Any) -> Any:
        """Load as transformers does, with the adapters that belong to the weights; ``with_adapter=False`` leaves them out.

        Code beside the weights never runs, for any value of ``trust_remote_code``: the code is this project's. Raises ValueError if
        adapters would import code.
        """
        options["trust_remote_code"] = False
        load_options = where_of(options)
        if cls is ComposedForCausalLM:
            config = options.get("config") or AutoConfig.from_pretrained(pretrained_model_name_or_path, **load_options)
            model_class = cast("type[ComposedForCausalLM]", ComposedForCausalLM.class_of(config))
            return model_class.from_pretrained(pretrained_model_name_or_path, *arguments, with_adapter=with_adapter, **options)
        result = super().from_pretrained(pretrained_model_name_or_path, *arguments, **options)  # type: ignore[misc]
        model = result[0] if isinstance(result, tuple) else result
        if not with_adapter:
            model.config.adapter = None  # so that a later save names none
        if model.config.adapter is not None:
            load_options["subfolder"] = "/".join(
                filter(None, (load_options.get("subfolder"), adapter_folder(model.config.adapter)))
            )
            conversions = getattr(model, "_weight_conversions", None)
            model.load_adapter(adapters_of(pretrained_model_name_or_path, load_options))
            # transformers replaces the model's conversions by those of the adapters. Names in files need the model's.
            model._weight_conversions = conversions
        return result

    def __init__(self, config: Any, *arguments: Any, **options: Any) -> None:
        try:
            super().__init__(config, *arguments, **options)
        except KeyError as error:
            if error.args != (INTERFACE,):
                raise
            raise BuildError(
                f"the attention of {type(self).__name__.removeprefix('Composed')} has no place for heads in transformers "
                f"{transformers.__version__}: a later version may have one"
            ) from error
        around: Any = self
        name = self.base_model_prefix
        if (decoder := WHOLE.get(config.model_type.removeprefix(PREFIX))) is not None:
            around, name = self.base_model, decoder
            config.get_text_config()._attn_implementation_internal = INTERFACE  # for the masks that are given to the decoder
        base = composed_model(type(getattr(around, name)))(config.of_decoder())
        setattr(around, name, base)
        if around is not self:
            base.is_inside = True
            around.post_init()
        self.post_init()

    def _prepare_cache_for_generation(
        self, settings: Any, options: dict[str, Any], mode: Any = None, *_unused: Any, **_more: Any
    ) -> bool:
        prepare_cache(self, settings, options, mode)
        return False

    def _update_model_kwargs_for_generation(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """Prepare the next step as transformers does, without the arguments that the cache determines, so that no step waits to
        read them."""
        return without_what_follows(super()._update_model_kwargs_for_generation(*arguments, **options))


@cache
def composed_model(host: type[nn.Module]) -> type[ComposedModel]:
    """Return a host's base model with heads in its layers."""
    return make_class(composed_model, host, ComposedModel, host, __doc__=ComposedModel.__doc__)


@cache
def composed_causal(host: type[nn.Module]) -> type[ComposedForCausalLM]:
    """Return a host's language model with heads in its layers."""
    return make_class(composed_causal, host, ComposedForCausalLM, host, __doc__=ComposedForCausalLM.__doc__)
