"""Composed heads inside the attention of a host: a transformers decoder, or this project's own.

A host's attention keeps its own forward: its projections, its norms of queries and keys, its gates, its output projection. In
between it calls transformers' attention interface, which runs the composed heads. They receive queries and keys before rotation:
each part rotates them as needed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from blocks.flow import Tokens
from blocks.operation import State
from composer.graph.program import HeadInputs
from composer.model.cache import CACHE_NAMES, SEEN, layer_state_among, writable
from composer.model.head import PRINTED_FOR, runs_autocast, setting_of
from composer.model.heads import AttentionFacts, ComposedHeads

INTERFACE = "composed"
CACHES = (*CACHE_NAMES, "past_key_value", "layer_past")
"""Names of the cache argument in the attention of hosts."""


@dataclass(frozen=True)
class ModelCall:
    """The tokens and the backend of a call of a model, which every layer receives in place of a mask. below: as in ``Rows``.

    ahead: by type of layer, the later tokens of the call that each token sees, B T T; under None, those of all layers. Tokens of an
    image see all of it in some models.
    """

    tokens: Tokens
    backend: str
    below: int | None = None
    ahead: Mapping[str | None, Tensor] = field(default_factory=dict)

    def tokens_of(self, kind: str | None) -> Tokens:
        """Return the tokens as layers of this type see them."""
        ahead = self.ahead.get(kind, self.ahead.get(None))
        return self.tokens if ahead is None else replace(self.tokens, ahead=ahead.to(self.tokens.position.device))

    def to(self, *_: Any, **__: Any) -> ModelCall:
        """Device maps call this on the arguments of some layers. Each layer asks for its device itself (``on``)."""
        return self

    def on(self, device: torch.device) -> ModelCall:
        """Return the same on this device, moved once per call for all layers on it."""
        tokens = self.tokens
        if tokens.position.device == device:
            return self
        return replace(self, tokens=tokens.once(("on", device), lambda: tokens.to(device)))


class Running(threading.local):
    """What the model that is running passes to its layers. Each thread has its own, and torch.compile follows it."""

    model_call: ModelCall | None = None


RUNNING = Running()


class Mixed(threading.local):
    """While a host projects: for each group, the mixed hidden states that its queries and keys are projected from. Each thread has
    its own, and torch.compile follows it."""

    inputs: list[Tensor] | None = None


MIXED = Mixed()


@dataclass(slots=True)
class LayerCall:
    """One call of a layer's heads, which the host hands from the layer to its heads: arguments, and then results."""

    hidden: Tensor
    """B T C, the input of the layer's attention."""
    model_call: ModelCall
    state: State
    in_place: bool = False
    """The state may be overwritten."""
    memory_values: Tensor | None = None
    """B T K V, the memories' input in place of the layer's own values; None: these."""
    keeps_inputs: bool = False
    """The result ``inputs`` is needed."""
    inputs: HeadInputs | None = None
    """A result, the inputs of all heads."""
    heads: Tensor | None = None
    """A result, the output B T H V."""
    carried: State = field(default_factory=dict)
    """A result, the new state."""


class ComposedAttention(nn.Module):
    """The first base of a composed attention class; the host's class of attention is the next one."""

    composed: ComposedHeads
    """An inference engine puts a module with the same methods in its place."""
    facts: AttentionFacts
    layer: int
    kind: str | None = None
    """The type of the layer, for which its model has a mask."""
    listener: Callable[[LayerCall, Mapping[str, Any], Tensor], None] | None = None
    """Called after every forward, with the call of the heads, the host's other arguments, and the layer's output B T C."""
    ends_in_projection: bool | None = None
    """Whether the host computes nothing after the heads but their output projection; None: not known yet."""
    _hooked: tuple[nn.Module, ...] = ()
    _handles: tuple[Any, ...] = ()

    def forward(self, hidden_states: Tensor, *arguments: Any, **options: Any) -> Any:
        """The host's own forward. The mask is a ``ModelCall``, and the cache is a ``ComposedCache`` or None."""
        layer_state = layer_state_among(options, CACHES, self.layer)
        state = layer_state.tensors if layer_state is not None else {}
        model_call = model_call_among(arguments, options)
        if model_call is None:
            raise TypeError("this layer was called by itself, without the tokens of a call: call the model")
        model_call = model_call.on(hidden_states.device)
        in_place = (
            layer_state is not None
            and not (layer_state.differentiated or torch.is_grad_enabled())
            and (not state or writable(layer_state))
        )
        is_recorded = layer_state is not None and layer_state.past is not None
        call = LayerCall(hidden_states, model_call, state, in_place, keeps_inputs=is_recorded or self.listener is not None)
        output = self._run_host(call, arguments, options)
        if layer_state is not None:
            layer_state.keep(call.carried, hidden_states.shape[1], self._begun(call) if is_recorded else None)
        if self.listener is not None:
            self.listener(call, options, unpack_output(output))
        return output

    def attention_output(self, hidden: Tensor, model_call: ModelCall, options: Mapping[str, Any]) -> Tensor:
        """Return the layer's output from an empty state, ``B T C``. options: the arguments that the host calls it with."""
        return unpack_output(self._run_host(LayerCall(hidden, model_call, {}), (), options))

    def heads_output(
        self,
        hidden: Tensor,
        model_call: ModelCall,
        options: Mapping[str, Any],
        memory_values: Tensor | None = None,
        inputs: HeadInputs | None = None,
    ) -> Tensor:
        """Return the output of the layer's heads from an empty state, ``B T H V``.

        memory_values: ``B T K V``, the memories' input in place of the layer's own values. inputs: of the heads, if known; the host
        then computes nothing.
        """
        call = LayerCall(hidden, model_call, {}, memory_values=memory_values)
        if inputs is None:
            self._run_host(call, (), options)
        else:
            assert not self.mixes_inputs, "its host projects other states than these"
            call.state = self._empty_state(hidden)
            self.run_heads(call, inputs.query, inputs.key, inputs.value, inputs.sinks)
        assert call.heads is not None, "the host has called its heads"
        return call.heads

    def _run_host(self, call: LayerCall, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        hidden, model_call = call.hidden, call.model_call
        if not call.state:
            call.state = self._empty_state(hidden)
        arguments = tuple(None if isinstance(argument, ModelCall) else argument for argument in arguments)
        host_options = {**options, "attention_mask": None, "layer_call": call}
        for name in CACHES:
            if name in host_options:
                host_options[name] = None
        if host_options.get("position_embeddings") is not None:
            host_options["position_embeddings"] = no_rotation(host_options["position_embeddings"])
        if not self.mixes_inputs:
            return super().forward(hidden, *arguments, **host_options)
        mixed, call.carried = self.composed.mix(hidden, model_call.tokens, call.state, model_call.backend, call.in_place)
        self.hook_projections()
        outer, MIXED.inputs = MIXED.inputs, mixed
        try:
            return super().forward(hidden, *arguments, **host_options)
        finally:
            MIXED.inputs = outer

    @property
    def mixes_inputs(self) -> bool:
        """Whether a head mixes the hidden states that queries and keys are projected from."""
        return self.composed._mixes

    def _empty_state(self, hidden: Tensor) -> State:
        return self.composed.empty_state(hidden.shape[0], _projected_dtype(hidden), hidden.device)

    def run_heads(self, call: LayerCall, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Tensor:
        """Return the heads' output ``B T H D`` for queries ``B T H D`` and keys ``B T K D`` before rotation.

        sinks: the logits of the layer's attention sinks, one a head.
        """
        model_call, is_final = call.model_call, call.memory_values is not None
        value = value if call.memory_values is None else call.memory_values
        if not query.dtype == key.dtype == value.dtype:  # under autocast, by norms of queries and keys
            query, key = query.to(value.dtype), key.to(value.dtype)
        tokens = model_call.tokens_of(self.kind) if model_call.ahead else model_call.tokens
        inputs = HeadInputs(call.hidden, query, key, value, tokens, sinks, is_final)
        heads, carried = self.composed(inputs, call.state, model_call.backend, call.in_place)
        call.heads, call.carried = heads, call.carried | carried if call.carried else carried
        if call.keeps_inputs:
            call.inputs = inputs
        return heads

    def _begun(self, call: LayerCall) -> Callable[[int], State]:
        """Return a function that computes the layer's state after the first columns of a call."""
        inputs, state, backend = call.inputs, call.state, call.model_call.backend
        assert inputs is not None, "the call keeps them"

        def compute(length: int) -> State:
            first = inputs.columns(slice(0, length), inputs.tokens.first(length))
            mixed = self.composed.mix(first.hidden, first.tokens, state, backend, False)[1] if self.mixes_inputs else {}
            states = mixed | self.composed(first, state, backend, False)[1]
            if self.layer == 0:
                seen, count = state.get(SEEN), first.tokens.count()
                states[SEEN] = count if seen is None else seen + count.to(seen.device)
            return states

        return compute

    def attend(self, query: Tensor, key: Tensor, value: Tensor, _: Any, *, layer_call: LayerCall) -> Tensor:
        """Return the heads' output for this project's own host. Its queries already have the layout ``B T H D`` and the scale of
        heads."""
        return self.run_heads(layer_call, query, key, value, None)

    def __repr__(self) -> str:
        """Return the module with its heads' programs, for the device and dtype of the host's projections."""
        token = PRINTED_FOR.set(setting_of(self.parameters()))
        try:
            return super().__repr__()
        finally:
            PRINTED_FOR.reset(token)

    def hook_projections(self) -> None:
        """Hook the projections of queries and keys, which an adapter may have replaced: they project what the groups have mixed."""
        projections = (self.get_submodule("q_proj"), self.get_submodule("k_proj"))
        if all(projection is hooked for projection, hooked in zip(projections, self._hooked, strict=False)) and self._hooked:
            return
        for handle in self._handles:
            handle.remove()
        self._hooked = projections
        hooks = (
            (projection.register_forward_pre_hook(_use_mixed), projection.register_forward_hook(self._keep_own_columns))
            for projection in projections
        )
        self._handles = tuple(handle for both in hooks for handle in both)

    def _keep_own_columns(self, _: nn.Module, __: Any, output: Tensor) -> Tensor:
        """The hook after a projection. It keeps the columns of each group's own heads."""
        mixed = MIXED.inputs
        if mixed is None or len(mixed) == 1:
            return output
        projections = output.unflatten(2, (-1, self.facts.head_dim)).chunk(len(mixed))
        return self.composed.join([self.composed.split(states)[index] for index, states in enumerate(projections)]).flatten(2)


def _use_mixed(_: nn.Module, __: Any) -> tuple[Tensor] | None:
    """The hook before a projection. Replaces the input by the mixed states; those of several groups are stacked along the batch."""
    mixed = MIXED.inputs
    if mixed is None:
        return None
    return (mixed[0] if len(mixed) == 1 else torch.cat(mixed),)


def unpack_output(output: Any) -> Tensor:
    """Return the output of a host's attention, B T C; some hosts return it in a tuple with other things."""
    return output[0] if isinstance(output, tuple) else output


def no_rotation(embeddings: Any) -> Any:
    """Return position embeddings of no rotation like those of a host: cosine and sine, or a tensor of complex numbers."""
    if isinstance(embeddings, Tensor):
        return torch.ones_like(embeddings)
    cosine, sine = embeddings
    return torch.ones_like(cosine), torch.zeros_like(sine)


def _projected_dtype(hidden: Tensor) -> torch.dtype:
    """Return the dtype of the projections of these hidden states."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if runs_autocast(device) else hidden.dtype


def model_call_among(arguments: tuple[Any, ...], options: Mapping[str, Any]) -> ModelCall | None:
    """Return the tokens of a call among the arguments of a host's module; None where it was called without."""
    for value in (options.get("attention_mask"), *arguments):
        if isinstance(value, ModelCall):
            return value
    return None


def _interface(
    module: ComposedAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    layer_call: LayerCall,
    s_aux: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query ``B H T D``, key and value ``B K T D``, to ``B T H D``."""
    query, key, value = (states.transpose(1, 2) for states in (query, key, value))
    factor = 1.0 if scaling is None else scaling * query.shape[-1] ** 0.5
    if abs(factor - 1.0) > 1e-9:
        query = query * factor
    return module.run_heads(layer_call, query, key, value, s_aux).contiguous(), None


@dataclass(frozen=True)
class Stated:
    """The mask of a call as a model states it to its text decoder. mask: B S, 1 for real tokens. ahead: as in ``ModelCall``."""

    mask: Tensor | None
    ahead: Tensor | None


def read_masks(mask: Any) -> tuple[Any, Mapping[str | None, Tensor]]:
    """Return the mask of a call, and ``ahead`` of ``ModelCall``. mask: ``Stated``, also by type of layer, or anything else."""
    by_kind = mask if isinstance(mask, Mapping) else {None: mask}
    if not {Stated}.issuperset(map(type, by_kind.values())):
        return mask, {}
    ahead = {kind: stated.ahead for kind, stated in by_kind.items() if stated.ahead is not None}
    return next(iter(by_kind.values())).mask, ahead


def _mask(*_: Any, **call: Any) -> ModelCall | Stated:
    """transformers' function for masks. It returns the ``ModelCall``, which so reaches every layer, recomputed ones too; before a
    text decoder runs inside another model, the mask that this model states."""
    if RUNNING.model_call is not None:
        return RUNNING.model_call
    mask, length, device = call["attention_mask"], call["q_length"], call["device"]
    if call["allow_is_causal_skip"] or length == 1:
        return Stated(mask, None)
    entry = torch.arange(length, device=device) + call["q_offset"]
    row = torch.arange(call["batch_size"], device=device)[:, None, None]
    ahead = call["mask_function"](row, torch.zeros_like(row), entry[:, None], entry) & (entry > entry[:, None])
    return Stated(mask, ahead.expand(len(row), -1, -1) if bool(ahead.any()) else None)


AttentionInterface.register(INTERFACE, _interface)
AttentionMaskInterface.register(INTERFACE, _mask)
