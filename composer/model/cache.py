"""The cache of a composed model: for each layer the states of its memories, batch first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.modeling_outputs import BaseModelOutputWithPast

from blocks.operation import State

SEEN = "seen"
CACHE = "cache" if "cache" in BaseModelOutputWithPast.__annotations__ else "past_key_values"
"""transformers' name of the cache, among a model's arguments and outputs: past_key_values before 5.24, and cache from then on."""
CACHE_NAMES = ("cache", "past_key_values")


@dataclass(frozen=True, slots=True)
class LayerPast:
    """One call of a layer, as long as it can be undone.

    before: the states before the call. length: its columns. begun: computes the states after the first of its columns.
    """

    before: State
    length: int
    begun: Callable[[int], State]


class StateLayer(CacheLayerMixin):
    """The states of one layer, by ``<head>.<part>.<tensor>``, and the number of columns that it has processed.

    A layer of a hybrid has the states of its host's own mixer in ``mixer``.
    """

    is_compileable = False
    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.tensors: State = {}
        self.mixer: State = {}
        self.columns = 0
        self.differentiated = False
        """Whether gradients of a call, or ``crop``, may need the states as they are."""
        self.past: list[LayerPast] | None = None
        """The calls that ``crop`` can undo, the last one at the end; None: calls are not recorded."""

    def keep(self, state: State, columns: int, begun: Callable[[int], State] | None = None) -> None:
        """Store the new state of a call with this number of columns. A view of a much larger tensor is copied, as it would keep all
        of that tensor in memory. begun: as in ``LayerPast``, if calls are recorded."""
        before = self.tensors
        self.tensors = {name: tensor if tensor is before.get(name) else _with_own_storage(tensor) for name, tensor in state.items()}
        stays = self.differentiated and any(tensor is before.get(name) for name, tensor in state.items())
        self.differentiated = torch.is_grad_enabled() or stays
        self.columns += columns
        self.is_initialized = True
        if self.past is not None and begun is not None:
            self.differentiated = True
            self.past.append(LayerPast(before, columns, begun))

    def keep_mixer(self, states: State, columns: int) -> None:
        """Store the new states of the host's mixer. columns: 0 if the layer also has heads, which count them."""
        self.mixer = {name: _with_own_storage(tensor) for name, tensor in states.items()}
        # Heads of the same layer still hold the states of the call before.
        self.differentiated = torch.is_grad_enabled() or (self.differentiated and columns == 0)
        self.columns += columns
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> NoReturn:
        raise NotImplementedError("states are written by the layer itself")

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("states are written by the layer itself")

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.columns + query_length, 0

    def get_seq_length(self) -> int:
        """Columns so far, padding included, as generation counts them."""
        return self.columns

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        return -1

    def record(self, active: bool) -> None:
        """Record the calls from here on, so that ``crop`` can undo them, or record none."""
        self.past = [] if active else None
        self.differentiated = self.differentiated or active

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens, which are recorded. Calls before this cannot be undone any more."""
        past, remaining = self.past or [], tokens_to_remove
        self.record(self.past is not None)
        while remaining > 0:
            call = past.pop()
            states = call.before if remaining >= call.length else call.begun(call.length - remaining)
            self.tensors = {name: _with_own_storage(tensor) for name, tensor in states.items()}
            remaining -= call.length
        self.columns -= tokens_to_remove

    def reset(self) -> None:
        self.tensors, self.mixer, self.columns, self.differentiated, self.is_initialized = {}, {}, 0, False, False
        self.crop(0)

    def offload(self) -> NoReturn:
        raise NotImplementedError("states are not offloaded: they are small")

    def prefetch(self) -> NoReturn:
        raise NotImplementedError("states are not offloaded: they are small")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self._map_tensors(lambda tensor: tensor[indices.to(tensor.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._map_tensors(lambda tensor: tensor.repeat_interleave(repeats, dim=0))

    def shapes(self) -> set[tuple[str, torch.dtype, tuple[int, ...]]]:
        """Return the name, the dtype, and the shape without its rows, of each state."""
        states = [*self.tensors.items(), *self.mixer.items()]
        return {(name, tensor.dtype, tuple(tensor.shape[1:])) for name, tensor in states}

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> None:
        self.crop(0)
        self.tensors = {name: change(tensor) for name, tensor in self.tensors.items()}
        self.mixer = {name: change(tensor) for name, tensor in self.mixer.items()}


@torch.compiler.assume_constant_result  # its guards distinguish tensors of inference mode from others, and the mode, too
def writable(layer: StateLayer) -> bool:
    """Whether the states may be written over here: outside inference mode, PyTorch refuses to write over tensors made in it."""
    states = (*layer.tensors.values(), *layer.mixer.values())
    return torch.is_inference_mode_enabled() or not any(map(torch.is_inference, states))


def _with_own_storage(tensor: Tensor) -> Tensor:
    # A compiler cannot look at storages, and copies parts of larger tensors where it has to.
    larger = not torch.compiler.is_compiling() and tensor.untyped_storage().nbytes() > 2 * tensor.nbytes
    return tensor.clone() if larger else tensor


class ComposedCache(Cache):
    """One ``StateLayer`` a layer. The first also counts the real tokens of each row."""

    max_cache_len = -1
    """No largest number of tokens. PEFT's prefix tuning reads it before it passes a cache of keys and values."""

    def __init__(self, layers: int) -> None:
        super().__init__(layers=[StateLayer() for _ in range(layers)])
        self.recorder: Any = None
        """Runs a model's steps with this cache, see ``composer.model.cuda_graph``. A copy has none."""
        self.is_recording = False
        """Whether calls are recorded, so that ``crop`` can undo them."""

    def state(self, layer: int) -> StateLayer:
        """Return the states of one layer."""
        layer_state = self.layers[layer]
        assert isinstance(layer_state, StateLayer)
        return layer_state

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns so far, padding included. Layers without any state, such as an MLP by itself, count none."""
        return max(map(attrgetter("columns"), self.layers))

    def count_tokens(self) -> Tensor | None:
        """Return each row's number of real tokens so far, ``B``; None before any. Raises ValueError if a call was cut short."""
        counts = self.state(0).tensors.get(SEEN)
        if counts is None and self.get_seq_length():
            raise ValueError(
                "a call with this cache was interrupted, so its layers hold different numbers of tokens. Begin with a new cache"
            )
        return counts

    def activate_past_recording(self, active: bool = True) -> None:
        """Record the calls from here on, so that ``crop`` can undo them, or record none. transformers calls this for assisted
        generation. Each call keeps a copy of the states before it, and the inputs of its heads, until the next ``crop``."""
        self.is_recording = active
        for layer in range(len(self.layers)):
            self.state(layer).record(active)

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last ``-tokens_to_remove`` tokens of all rows. A positive number is the number of tokens that are kept, as
        in older versions of transformers. Earlier calls cannot be undone any more. Raises ValueError if calls are not recorded."""
        columns = self.get_seq_length()
        count = min(columns, max(0, columns - tokens_to_remove) if tokens_to_remove > 0 else -tokens_to_remove)
        layers = [self.state(index) for index in range(len(self.layers)) if not index or self.state(index).columns]
        recorded = min((0 if layer.mixer else sum(call.length for call in layer.past or ()) for layer in layers), default=0)
        if count > recorded:
            raise ValueError(
                f"the cache cannot forget its last {count:,} tokens: it has recorded {recorded:,} of them. Call "
                "cache.activate_past_recording() before they are read, or keep a copy of the cache from before them "
                "(copy.deepcopy, of calls under torch.no_grad())"
            )
        for layer in layers:
            layer.crop(count)

    def append(self, other: ComposedCache) -> bool:
        """Append the rows of another cache. Return False, and change nothing, if its states have other shapes, as states that grow
        have after texts of another length."""
        pairs = [(self.state(layer), other.state(layer)) for layer in range(len(self.layers))]
        if any(mine.shapes() != theirs.shapes() for mine, theirs in pairs):
            return False
        joined = [
            [{name: torch.cat((tensor, new[name])) for name, tensor in old.items()} for old, new in states]
            for states in (((mine.tensors, theirs.tensors), (mine.mixer, theirs.mixer)) for mine, theirs in pairs)
        ]
        for (mine, _), (tensors, mixer) in zip(pairs, joined, strict=True):  # after all that may run out of memory
            mine.crop(0)
            mine.tensors, mine.mixer = tensors, mixer
        tokens = int(self.state(0).tensors[SEEN].max())
        for mine, _ in pairs:  # padding of rows that have left the batch is not counted any more
            mine.columns = tokens if mine.columns else 0
        return True

    def follows(self, mask: Tensor | None, positions: Tensor | None) -> bool:
        """Whether the arguments describe the next token, in their last columns, as the cache expects it: real, and at the next
        position."""
        if mask is not None and (mask.dim() != 2 or not bool(mask[:, -1].all())):
            return False
        if positions is not None and positions.dim() == 3:
            return False  # several numbers a token, which the cache does not count
        seen = self.state(0).tensors[SEEN]
        return positions is None or bool((positions[:, -1].to(seen.device) == seen).all())

    def bytes(self) -> int:
        """Bytes of all states, counters included."""
        layers = [self.state(layer) for layer in range(len(self.layers))]
        return sum(tensor.nbytes for layer in layers for states in (layer.tensors, layer.mixer) for tensor in states.values())


def new_cache(config: Any) -> ComposedCache:
    """Return an empty cache for a model of this configuration."""
    return ComposedCache(config.get_text_config().num_hidden_layers)


def check_cache(cache: Any) -> None:
    """Raise TypeError for a cache of another class."""
    if cache is not None and not isinstance(cache, ComposedCache):
        raise TypeError(
            f"the cache is a {type(cache).__name__}, and a composed model has its own states: pass what this model "
            "returned, ComposedCache(layers), or nothing. PEFT's prefix tuning and cartridges pass keys and values in a cache, "
            "which a state cannot hold: use prompt tuning, P-tuning or LoRA"
        )


def cache_among(options: Mapping[str, Any]) -> Any:
    """Return the cache among the arguments of a call, by its name in any version of transformers; None if there is none."""
    for name in CACHE_NAMES:
        if options.get(name) is not None:
            return options[name]
    return None


def layer_state_among(options: Mapping[str, Any], names: Iterable[str], layer: int) -> StateLayer | None:
    """Return a layer's states of the cache among the arguments of a host's module, by its names there; None without a cache."""
    for name in names:
        if name in options:
            cache = options[name]
            assert cache is None or isinstance(cache, ComposedCache), "ComposedModel.forward has checked the cache's type"
            return None if cache is None else cache.layers[layer]  # pyright: ignore[reportReturnType]
    return None


def without_what_follows(options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``generate`` after a call, with None for those that a cache makes unnecessary.

    The mask marks all future tokens as real, and positions that continue those of the cache always do so. Assisted generation cuts
    both itself.
    """
    cache = options.get(CACHE)
    if options.get("use_cache") and isinstance(cache, ComposedCache) and not cache.is_recording:
        options["attention_mask"] = None
        if cache.follows(None, options.get("position_ids")):
            options["position_ids"] = None
    return options
