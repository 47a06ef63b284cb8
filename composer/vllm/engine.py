"""All that touches vLLM's interfaces, which move with its versions: what is registered, the model, layers of states, metadata.

The model is the host's own code from transformers, with ``ServedHeads`` in the place of its layers' heads. Every host and adapter
is served that this package loads. vLLM's own linear layers, and with them its quantisation, are not used. A layer's states are one
state of bytes to vLLM, of one size in all layers: it keeps, copies (prefix caching) and recomputes them as it does Mamba's.
"""

# pyright: reportMissingImports=false
# vLLM needs its own versions of packages, so the environment of tests and checks does not have it.

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from vllm.config import ModelConfig, VllmConfig
from vllm.distributed import get_tensor_model_parallel_rank, tensor_model_parallel_all_reduce
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.model_executor.layers.mamba.mamba_utils import get_temporal_copy_spec
from vllm.model_executor.models import ModelRegistry
from vllm.model_executor.models.config import MODELS_CONFIG_MAP, VerifyAndUpdateConfig
from vllm.platforms import current_platform
from vllm.transformers_utils.config import register_config_parser
from vllm.transformers_utils.config_parser_base import ConfigParserBase
from vllm.v1.attention.backend import AttentionBackend, AttentionCGSupport, AttentionMetadataBuilder, CommonAttentionMetadata
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum, register_backend
from vllm.v1.attention.backends.utils import mamba_get_block_table_tensor

from blocks.flow import Tokens
from composer.model.head import Anatomy
from composer.vllm.folder import check_servable, configuration_of_folder, keeps_states, load_for_serving
from composer.vllm.heads import CurrentStep, ServedHeads, serve_heads, slots_of
from composer.vllm.pages import Field, Pages, layout
from composer.vllm.step import EngineStep
from composer.vllm.tensor_parallel import check_divisible, divide

KIND = MambaAttentionBackendEnum.CUSTOM
"""The kind of a layer of states among those of vLLM."""
CPU_BLOCK = 128
"""vLLM's default tokens of a block on a CPU."""


@dataclass
class StateMetadata:
    """The requests of a step, as ``EngineStep`` has them. pages: the page of each request, ``R``."""

    starts: tuple[int, ...]
    seen: tuple[int, ...]
    pages: Tensor


class StateMetadataBuilder(AttentionMetadataBuilder[StateMetadata]):
    """Make it from vLLM's description of a step."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.NEVER

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> StateMetadata:
        """Without speculative decoding, which is refused, vLLM's upper bounds of lengths are the lengths."""
        common, requests = common_attn_metadata, common_attn_metadata.num_reqs
        mode = self.vllm_config.cache_config.mamba_cache_mode
        pages = mamba_get_block_table_tensor(common.block_table_tensor, common.seq_lens, self.kv_cache_spec, mode)
        starts = common.query_start_loc_cpu[: requests + 1].tolist()
        ends = common.seq_lens_cpu_upper_bound
        assert ends is not None, "vLLM's runner of models has set it"
        lengths = [end - start for start, end in pairwise(starts)]
        seen = [end - length for end, length in zip(ends[:requests].tolist(), lengths, strict=True)]
        return StateMetadata(tuple(starts), tuple(seen), pages[:requests, 0].long())


class StateBackend(AttentionBackend):
    """Names the builder to vLLM."""

    @staticmethod
    def get_name() -> str:
        return "COMPOSER_STATES"

    @staticmethod
    def get_builder_cls() -> type[StateMetadataBuilder]:
        return StateMetadataBuilder

    @classmethod
    def is_ssm(cls) -> bool:
        return True


class LayerStates(nn.Module, MambaBase):
    """The states of one layer in vLLM's cache: a page of bytes for each request, which is one state to vLLM."""

    def __init__(self, heads: ServedHeads, fields: tuple[Field, ...], page: int, vllm_config: VllmConfig) -> None:
        """page: bytes of a page, the same in all layers."""
        super().__init__()
        self._heads = [heads]
        """In a list, so that it is no module of this one."""
        self.fields, self.page = fields, page
        self.kv_cache: tuple[Tensor, ...] = ()
        layers = vllm_config.compilation_config.static_forward_context
        if heads.name in layers:
            raise ValueError(f"two layers are called {heads.name}")
        layers[heads.name] = self

    @property
    def mamba_type(self) -> MambaAttentionBackendEnum:
        return KIND

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        return ((self.page,),)

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        return (torch.int8,)

    def bind_kv_cache(self, kv_cache: Tensor) -> None:
        """kv_cache: pages of bytes, one a row; attention beside it may have made them longer."""
        memory = kv_cache.view(kv_cache.shape[0], -1).view(torch.int8)[:, : self.page]
        self.kv_cache = (memory,)
        self._heads[0].pages = Pages(self.fields, memory)


class ServedModel(nn.Module):
    """A composed model as vLLM runs it."""

    has_inner_state: ClassVar[bool] = True
    is_hybrid: ClassVar[bool] = True
    supports_mamba_prefix_caching: ClassVar[bool] = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        model_config = vllm_config.model_config
        model = load_for_serving(Path(model_config.model), model_config.dtype)
        if (processes := vllm_config.parallel_config.tensor_parallel_size) > 1:
            divide(model, get_tensor_model_parallel_rank(), processes, tensor_model_parallel_all_reduce)
        self.composed = model.to(vllm_config.device_config.device)
        self.current = CurrentStep()
        layers = serve_heads(self.composed, partial(_softmax, vllm_config), self.current)
        layouts = [layout(slots_of(served.heads), model_config.dtype, model_config.max_model_len) for served in layers]
        page = max(size for _, size in layouts)
        self.states = nn.ModuleList(
            LayerStates(served, fields, page, vllm_config) for served, (fields, _) in zip(layers, layouts, strict=True) if fields
        )

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: VllmConfig) -> tuple[tuple[int, ...], ...]:
        """vLLM reads this after the layers are made, so that pages of its attention are as long as theirs."""
        layers = vllm_config.compilation_config.static_forward_context.values()
        return ((max((layer.page for layer in layers if isinstance(layer, LayerStates)), default=0),),)

    @classmethod
    def get_mamba_state_dtype_from_config(cls, vllm_config: VllmConfig) -> tuple[torch.dtype, ...]:
        return (torch.int8,)

    @classmethod
    def get_mamba_state_copy_func(cls) -> tuple[Any, ...]:
        return (get_temporal_copy_spec,)

    @classmethod
    def get_mamba_state_copy_funcs(cls, mamba_types: set[MambaAttentionBackendEnum]) -> dict[MambaAttentionBackendEnum, Any]:
        return dict.fromkeys(mamba_types, cls.get_mamba_state_copy_func())

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        return self.composed.get_input_embeddings()(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """Token ids ``N``, or their embeddings ``N C``, to the last hidden states ``N C``."""
        inputs: dict[str, Any] = {"input_ids": None, "inputs_embeds": None}
        tokens = input_ids if inputs_embeds is None else inputs_embeds
        assert tokens is not None, "vLLM hands one of the two over"
        inputs["input_ids" if inputs_embeds is None else "inputs_embeds"] = tokens[None]
        self.current.step = self._step(positions)
        try:
            outputs = self.composed.base.run(Tokens(positions[None]), position_ids=positions[None], cache=None, **inputs)
        finally:
            self.current.step = None
        return outputs.last_hidden_state[0]

    def _step(self, positions: Tensor) -> EngineStep:
        """Return the step that vLLM is at. Where it only measures memory, the line is one request that is not kept."""
        metadata = get_forward_context().attn_metadata
        if not isinstance(metadata, dict) or not self.states:
            return EngineStep(positions, (0, len(positions)), (0,))
        of_layers = {name: layer_metadata for name, layer_metadata in metadata.items() if isinstance(layer_metadata, StateMetadata)}
        first = next(iter(of_layers.values()))
        return EngineStep(positions, first.starts, first.seen, {name: layer.pages for name, layer in of_layers.items()})

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        return self.composed.logits_of(hidden_states[None])[0]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Return the names of all parameters: they are already loaded from the folder. One tensor is read from vLLM's own reader,
        which starts its clock."""
        next(iter(weights), None)
        return {name for name, _ in self.named_parameters()}


class ComposedFolders(VerifyAndUpdateConfig):
    """The facts that vLLM needs about a model before it is built."""

    @staticmethod
    def verify_and_update_model_config(model_config: ModelConfig) -> None:
        """vLLM decides by a model's class whether it has states, unless its configuration lists all layers as softmax: here the
        spec decides. A window in the configuration would apply to every layer without its own; here each layer has its own.
        """
        config = model_config.hf_config
        check_servable(config)
        model_config.hf_text_config.sliding_window = None
        config.layer_types = None if keeps_states(config) else ["full_attention"] * config.get_text_config().num_hidden_layers

    @staticmethod
    def verify_and_update_config(vllm_config: VllmConfig) -> None:
        """On a CPU vLLM resets its default size of blocks after it has divided its memory by another size. Then it splits texts at
        other places than the ends of blocks, and cached states belong to other tokens. A size that counts as the user's is kept.
        """
        _check_engine(vllm_config)
        cache = vllm_config.cache_config
        if current_platform.is_cpu() and not cache.user_specified_block_size:
            cache.block_size, cache.user_specified_block_size = CPU_BLOCK, True


class ComposedConfigurations(ConfigParserBase):
    """The configurations of composed models, and of exports, whose own ``config.json`` names their own class."""

    def parse(
        self, model: str | Path, trust_remote_code: bool, revision: str | None = None, code_revision: str | None = None, **_: Any
    ) -> tuple[dict[str, Any], Any]:
        config = configuration_of_folder(Path(model))
        return config.to_dict(), config


def register_with_vllm(config_format: str) -> None:
    """Register the architectures of composed models, their configurations and their layers of states. It may be called again.

    config_format: the name of the reader of configurations.
    """
    names = {"ComposedForCausalLM"}
    names |= {f"Composed{name}" for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() if isinstance(name, str)}
    for name in sorted(names - set(ModelRegistry.get_supported_archs())):
        ModelRegistry.register_model(name, f"{__name__}:{ServedModel.__name__}")
        MODELS_CONFIG_MAP[name] = ComposedFolders
    register_backend(KIND, f"{__name__}.{StateBackend.__name__}", is_mamba=True)
    register_config_parser(config_format)(ComposedConfigurations)


def _check_engine(vllm_config: VllmConfig) -> None:
    """Raise ValueError for what composed models cannot do."""
    parallel = vllm_config.parallel_config
    refused = {
        "--pipeline-parallel-size": parallel.pipeline_parallel_size > 1,
        "--speculative-config": vllm_config.speculative_config is not None,
        "--quantization": vllm_config.model_config.quantization is not None,
        "--enable-lora": vllm_config.lora_config is not None,
    }
    reasons = {
        "--speculative-config": "a state cannot be rewound to an earlier token",
        "--enable-lora": "adapters are part of the folder: compose merge",
    }
    for option, is_wanted in refused.items():
        if is_wanted:
            reason = reasons.get(option, "a composed model runs the layers of transformers")
            raise ValueError(f"composed models are not served with {option}: {reason}; leave it out")
    if parallel.tensor_parallel_size > 1:
        check_divisible(vllm_config.model_config.hf_config, parallel.tensor_parallel_size)


def _softmax(vllm_config: VllmConfig, attention: Any, group: str, head: Anatomy) -> Attention:
    """vLLM's attention for a group of heads, a module of the layer's attention, where vLLM looks for it."""
    shape, facts = head.shape, attention.facts
    sinks = {} if not facts.sinks else {"sinks": attention.sinks[list(head.numbers)]}
    softmax = Attention(
        shape.heads,
        shape.head_dim,
        shape.head_dim**-0.5,
        num_kv_heads=shape.key_heads,
        cache_config=vllm_config.cache_config,
        logits_soft_cap=facts.softcap,
        per_layer_sliding_window=facts.window,
        prefix=f"composed.layers.{attention.layer}.{group}",
        **sinks,
    )
    attention.add_module(f"softmax_{group}", softmax)
    return softmax
