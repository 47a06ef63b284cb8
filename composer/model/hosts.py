"""Finds the layers of a host and their attention, probes what each attention computes, and puts composed heads in its place."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn
from torch.func import functional_call
from transformers.modeling_utils import AttentionInterface
from transformers.models.llama import modeling_llama

from composer.errors import BuildError
from composer.graph.composition import HeadSpec
from composer.model.attention import INTERFACE, ComposedAttention
from composer.model.configuration import make_class
from composer.model.heads import AttentionFacts, ComposedHeads
from composer.model.mixers import hybrids_run, keep_mixers
from composer.spec.resolve import Resolved
from converters.hosts import ATTENTIONS
from converters.hybrid_layers import HYBRIDS
from converters.model_types import PREFIX
from converters.rotary import LENGTH_DEPENDENT

PROBE = "composed-probe"
"""The name of an attention interface that records its arguments and computes nothing."""

ROTARIES = ("rotary_emb", "pos_emb")
"""Names of the rotary embedding's module in hosts."""

SECTIONS = "mrope_section"
"""The attribute of a rotary embedding that rotates by three numbers a token, as by the place in an image."""

COMPLEX = frozenset({"DeepseekV2Attention"})
"""Hosts whose tables are complex numbers."""

HALVES = COMPLEX | {"GptOssAttention"}
"""Hosts whose tables have each angle once, for both coordinates of a pair."""


def layers_of(base: nn.Module) -> tuple[str, nn.ModuleList]:
    """Return the layers of a host's base model, and their name in it. Raises BuildError."""
    count = cast("Any", base).config.get_text_config().num_hidden_layers
    for name, module in base.named_modules():
        # A hybrid's layers have an attention or another mixer.
        if isinstance(module, nn.ModuleList) and len(module) == count and any(attention_of(layer) for layer in module):
            return name, module
    raise BuildError(f"{_host(base)} has no {count} layers with an attention each, so no heads can be put into it")


def attention_of(layer: nn.Module) -> tuple[str, nn.Module] | None:
    """Return the attention of a layer, and its name in it; None where it has none."""
    for name in ATTENTIONS:
        attention = getattr(layer, name, None)
        if isinstance(attention, nn.Module):
            return name, attention
    return None


def attentions(model: nn.Module) -> Iterator[tuple[str, ComposedAttention]]:
    """Yield the composed attention of each layer, with its full name. ``layer`` is its layer's index: some layers of a hybrid have
    none."""
    modules = [(name, module) for name, module in model.named_modules() if isinstance(module, ComposedAttention)]
    return iter(sorted(modules, key=lambda item: item[1].layer))


def attentions_by_layer(model: nn.Module) -> dict[int, ComposedAttention]:
    """Return the composed attention of each layer that has one, by the layer's index."""
    return {attention.layer: attention for _, attention in attentions(model)}


def compose(base: nn.Module, resolved: Resolved) -> bool:
    """Put heads into every layer of a host's base model that has attention, and keep a hybrid's other mixers. Return whether it has
    any of these. Raises BuildError with the layer whose attention heads cannot replace."""
    name, layers = layers_of(base)
    around = base.get_submodule(name.rpartition(".")[0])
    rotary = next((getattr(around, name) for name in ROTARIES if hasattr(around, name)), None)
    rotaries: dict[Any, HostRotary] = {}
    for index, layer in enumerate(layers):
        if not resolved.layers[index]:
            continue
        named_attention = attention_of(layer)
        if named_attention is None:
            raise BuildError(f"layer {index} of {_host(base)} has no attention that heads could replace; expected one")
        attention: Any = named_attention[1]
        host, layer_type = type(attention), _layer_type(rotary, attention, index)
        try:
            facts = attention_facts(attention, rotary)
        except (TypeError, ValueError, RuntimeError, AttributeError, KeyError) as error:
            raise BuildError(
                f"layer {index} of {_host(base)} could not be probed for the attention that it computes, so its heads cannot be "
                f"replaced: {error}"
            ) from error
        if rotary is not None and facts.rotates and layer_type not in rotaries:
            rotaries[layer_type] = HostRotary(rotary, attention, layer_type)
        _check(base, index, facts, resolved, rotates_by_place=facts.rotates and hasattr(rotary, SECTIONS))
        heads = ComposedHeads(resolved, index, facts, rotaries.get(layer_type) if facts.rotates else None)
        projections = (getattr(attention, name, None) for name in ("q_proj", "k_proj"))
        if heads._mixes and not all(isinstance(projection, nn.Module) for projection in projections):
            raise BuildError(
                f"layer {index} of {_host(base)} has no separate projections of queries and of keys, so their inputs "
                "alone cannot be mixed: remove `mix_input`, or set `feeds: inputs` there"
            )
        # A host builds its attention itself, and no argument of it names another class. So the instance, with its weights and its
        # hooks, gets a class of which the host's is a base. Nothing undoes this.
        attention.__class__ = composed_class(host)
        attention.config = _with_interface(attention.config, INTERFACE)
        attention.layer, attention.facts, attention.composed = index, facts, heads
        types = getattr(attention.config, "layer_types", None)
        attention.kind = None if types is None else types[index]
        if heads._mixes:
            attention.hook_projections()  # before anything is compiled, which no hook can be set in
    return _keep_mixers(base, layers, resolved)


def _keep_mixers(base: nn.Module, layers: nn.ModuleList, resolved: Resolved) -> bool:
    """Keep the mixers of a hybrid's layers, whose attention has been composed. Return whether there are any."""
    config: Any = cast("Any", base).config
    if config.model_type.removeprefix(PREFIX) not in HYBRIDS:
        return False
    if not hybrids_run():
        raise BuildError(
            f"{_host(base)} has layers with their own states, and transformers {transformers.__version__} cannot continue them "
            "as heads do: install a later version"
        )
    count = getattr(config, "number_of_conv_states", 1)
    has_mixer = [keep_mixers(layer, index, count, beside_heads=bool(resolved.layers[index])) for index, layer in enumerate(layers)]
    return any(has_mixer)


def attention_facts(attention: Any, rotary: nn.Module | None) -> AttentionFacts:
    """Return the facts of a host's attention: its own forward is called once, with tensors that have no numbers. The attention
    rotates if queries have a gradient for the tables of the rotation."""
    config, seen = attention.config, dict[str, Any]()
    options: dict[str, Any] = {"attention_mask": None, "probed": seen}
    names = inspect.signature(type(attention).forward).parameters
    if "position_ids" in names:
        options["position_ids"] = torch.zeros(1, 1, dtype=torch.int64, device="meta")
    if "shared_kv_states" in names:
        options["shared_kv_states"] = {}
    attention.config = _with_interface(config, PROBE)
    try:
        with torch.inference_mode(mode=False), torch.enable_grad():
            tensors = *attention.named_parameters(), *attention.named_buffers()
            meta = {name: tensor.detach().to("meta") for name, tensor in tensors}
            hidden = torch.empty(1, 1, config.hidden_size, device="meta", dtype=next(iter(meta.values())).dtype)
            if rotary is not None:
                table = hidden.new_empty(1, 1, _width(rotary, attention), requires_grad=True)
                is_complex = type(attention).__name__ in COMPLEX
                options["position_embeddings"] = torch.complex(table, table) if is_complex else (table, table)
            functional_call(attention, meta, (hidden,), options)
    finally:
        attention.config = config
    query, key, value, scaling = (seen[name] for name in ("query", "key", "value", "scaling"))
    return AttentionFacts(
        heads=query.shape[1],
        key_heads=key.shape[1],
        head_dim=query.shape[-1],
        value_dim=value.shape[-1],
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        window=seen.get("sliding_window"),
        softcap=seen.get("softcap"),
        rotates=query.requires_grad,
        sinks=seen.get("s_aux") is not None,
    )


def _rotates_again(head: HeadSpec) -> bool:
    """Whether a memory rotates keys that it restores, or that another one evicts, by the rotation of the source."""
    if any(memory.rotates_restored_keys and memory.rotation.follows_source for memory in head.memory):
        return True
    rotations = [memory.rotation for memory in head.memory]
    if head.graph is None and head.flow == "parallel":
        return False
    follows = any(rotation.follows_source for rotation in rotations[1:])
    differs = len({rotation.base for rotation in rotations}) > 1 and any(rotation.follows_source for rotation in rotations)
    return differs or (follows and head.conv is not None)


def _check(base: nn.Module, index: int, facts: AttentionFacts, resolved: Resolved, *, rotates_by_place: bool) -> None:
    """Raise BuildError if heads cannot replace a layer's attention. rotates_by_place: by three numbers a token."""
    size, subject = resolved.dimensions, f"layer {index} of {_host(base)}"
    values = size.size_of_values
    if (facts.heads, facts.key_heads, facts.head_dim, facts.value_dim) != (size.heads, size.key_heads, size.head_dim, values):
        raise BuildError(
            f"{subject} has {facts.heads} query heads, {facts.key_heads} key heads, {facts.head_dim} numbers in a key and "
            f"{facts.value_dim} in a value; the spec was resolved for {size.heads}, {size.key_heads}, {size.head_dim} and {values}"
        )
    heads = [resolved.heads[group.head] for group in resolved.layers[index]]
    if rotates_by_place and any(map(_rotates_again, heads)):
        raise BuildError(
            f"{subject} rotates keys by the place of a token in its image, and the spec has a head there that rotates keys again, "
            "by their position alone, when a memory evicts or restores them: set the same `position` for all memories, without "
            "`conv`, and `rotate: kept` for `compressed`"
        )
    if facts.sinks and not all(any(memory.has_mass() for memory in head.memory) for head in heads):
        raise BuildError(
            f"{subject} has attention sinks, which add to the mass of a memory, and the spec has a head there whose memories have "
            "none: put a `window` beside them, or leave such layers as they are (`use: source`)"
        )


def _host(base: nn.Module) -> str:
    """Return the name of the host's class in transformers."""
    return type(base).__name__.removeprefix("Composed")


def _probe(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any = None,
    scaling: Any = None,
    dropout: Any = 0.0,
    *,
    probed: Any,
    **more: Any,
) -> Any:
    """The attention interface ``PROBE``. It records its arguments in ``probed``, and returns a tensor without numbers."""
    probed.update(more, query=query, key=key, value=value, scaling=scaling)
    return query.new_empty(*query.transpose(1, 2).shape[:3], value.shape[-1]), None


AttentionInterface.register(PROBE, _probe)


def _with_interface(config: Any, interface: str) -> Any:
    """Return a copy of the config, for one layer, that names an attention interface."""
    config = copy.copy(config)
    config._attn_implementation_internal = interface
    return config


def _width(rotary: nn.Module | None, attention: nn.Module) -> int:
    """Return the width of a host's tables of cosine and sine."""
    if rotary is None:
        return 0
    frequencies = next(buffer for _, buffer in rotary.named_buffers())
    return frequencies.shape[-1] * (1 if type(attention).__name__ in HALVES else 2)


def _layer_type(rotary: nn.Module | None, attention: Any, index: int) -> str | None:
    """Return which of a host's rotations a layer has, where there are several."""
    if rotary is None or "layer_type" not in inspect.signature(type(rotary).forward).parameters:
        return None
    types = getattr(attention.config, "layer_types", None)
    return None if types is None else types[index]


class HostRotary:
    """The ``blocks.positions.Rotary`` of the layers of one type, by the host's own functions."""

    def __init__(self, rotary: nn.Module, attention: nn.Module, layer_type: str | None) -> None:
        host = type(attention)
        self.rotary, self.arguments = rotary, () if layer_type is None else (layer_type,)
        self.halves, self.complex = host.__name__ in HALVES, host.__name__ in COMPLEX
        self.last = hasattr(attention, "qk_rope_head_dim")
        """Whether the last coordinates turn; of other hosts, the first ones."""
        module: Any = sys.modules[host.__module__]
        if self.last and hasattr(module, "apply_rotary_pos_emb_interleave"):
            # With angles of 0, the host's own function moves the two coordinates of a pair apart. Llama's turns them there.
            module = modeling_llama
        self.function: Any = module.apply_rotary_emb if self.complex else module.apply_rotary_pos_emb
        self.both = next(iter(inspect.signature(self.function).parameters)) in ("q", "xq")
        kinds = getattr(rotary, "rope_type", None)
        self.by_call = not LENGTH_DEPENDENT.isdisjoint(kinds.values() if isinstance(kinds, Mapping) else (kinds,))

    def tables(self, position: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        tables = self.rotary(like, position, *self.arguments)
        return (tables.real, tables.imag) if self.complex else tables

    def apply(self, states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        width = cosine.shape[-1] * (2 if self.halves else 1)
        first = states.shape[-1] - width if self.last else 0
        before, rotated, behind = states.tensor_split((first, first + width), dim=-1)
        rotated = rotated.transpose(1, 2)
        tables = (torch.complex(cosine, sine),) if self.complex else (cosine, sine)
        # The host's function rotates queries and keys together. Of the second, which is dropped, it gets one head.
        rotated = self.function(rotated, rotated[:, :1], *tables)[0] if self.both else self.function(rotated, *tables)
        rotated = rotated.transpose(1, 2)
        return rotated if width == states.shape[-1] else torch.cat((before, rotated, behind), dim=-1)


@cache
def composed_class(host: type[nn.Module]) -> type[ComposedAttention]:
    """Return a host's class of attention with composed heads in it."""
    return make_class(composed_class, host, ComposedAttention, host)
