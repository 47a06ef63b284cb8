"""A hybrid's layers with their own states, such as Mamba's, gated delta nets and short convolutions, which are not replaced.

A mixer keeps its host's forward. This module adds what such forwards lack, so that a mixer has the inputs of composed heads: rows
without padding, separate documents, and texts in pieces. The mixer runs on groups of documents of equal length, each from its own
state. States are in the same cache as those of heads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial, wraps
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers.cache_utils import Cache, LinearAttentionLayer

from blocks.flow import Tokens
from blocks.operation import State
from composer.model.attention import CACHES, RUNNING, ComposedAttention, ModelCall, model_call_among, unpack_output
from composer.model.cache import StateLayer, layer_state_among, writable
from composer.model.configuration import make_class

MIXER_CACHES = (*CACHES, "cache_params")
"""Names of the cache argument in hosts' mixers."""
PAIRED = frozenset({"MiniMaxLightningAttention"})
"""Hosts' mixers that return a tuple, whose second value their layers drop."""
ONE_BY_ONE = frozenset({"JambaMambaMixer"})
"""Hosts' mixers that ignore their state in calls of several tokens: they continue a text token by token."""
KINDS = (
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "linear_attention",
    "conv",
)
"""The types of layers for which hosts of hybrids make a mask each."""


def hybrids_run() -> bool:
    """Whether this version of transformers has the layers with states that mixers are composed with."""
    return hasattr(Cache, "get_conv_state")


def masks_of(model_call: ModelCall) -> dict[str, ModelCall]:
    """Return the masks of a hybrid's layers, by the type of a layer. All of them are the tokens of the call."""
    return dict.fromkeys(KINDS, model_call)


class MixerStates(LinearAttentionLayer):
    """The states of one mixer during a call. transformers' own writes over its tensors, and this one replaces them, so that
    gradients may need the old ones."""

    def __init__(self, states: State, count: int) -> None:
        """states: as ``tensors`` returns them; empty before the first token. count: of states of each kind."""
        super().__init__(number_of_states=count)
        self.linear: Tensor | None = states.get("linear")
        for index in range(count):
            self.conv_states[index] = states.get(f"conv.{index}")
            self.recurrent_states[index] = states.get(f"recurrent.{index}")
            self.has_previous_state[index] = bool(states)

    def update_conv_state(self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **_: Any) -> Tensor:
        """Keep the last columns, and return all of them, those of earlier calls first."""
        before = self.conv_states[state_idx]
        size = conv_kernel_size or (conv_states if before is None else before).shape[-1]
        all_columns = conv_states if before is None else torch.cat((before, conv_states), dim=-1)
        all_columns = pad(all_columns, (max(0, size - all_columns.shape[-1]), 0))
        self.conv_states[state_idx] = all_columns[..., -size:]
        self.has_previous_state[state_idx] = True
        return all_columns

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **_: Any) -> Tensor:
        self.recurrent_states[state_idx] = recurrent_states
        return recurrent_states

    def tensors(self) -> State:
        """Return all states that there are, by their names in the cache."""
        named = {
            **{f"conv.{index}": state for index, state in self.conv_states.items()},
            **{f"recurrent.{index}": state for index, state in self.recurrent_states.items()},
            "linear": self.linear,
        }
        return {name: state for name, state in named.items() if state is not None}


class MixerCache(Cache):
    """The cache that a host's mixer reads and writes in one call: the same states at every index."""

    def __init__(self, states: MixerStates, layer: int) -> None:
        super().__init__(layers=[*[states] * (layer + 1)])
        self.states = states

    def get_linear_cache(self, _: int) -> Tensor | None:
        """MiniMax's name for its state."""
        return self.states.linear

    def set_linear_cache(self, _: int, linear_cache: Tensor) -> None:
        self.states.linear = linear_cache


@dataclass(frozen=True, slots=True)
class DocumentSpan:
    """Consecutive tokens of one row. continues: from the state of the row. last: the row's new state is the one after these
    tokens."""

    row: int
    start: int
    length: int
    continues: bool
    last: bool


class KeptMixer(nn.Module):
    """The first base of a composed class of layers with states; the host's class is the next one."""

    layer: int
    beside_heads: bool
    """Whether the layer has composed heads, too, which count the columns of its states."""
    count: int
    """States of each kind."""

    def forward(self, hidden_states: Tensor, *arguments: Any, **options: Any) -> Any:
        """The host's own forward, on documents from their own states. The mask is a ``ModelCall``."""
        model_call = model_call_among(arguments, options) or RUNNING.model_call
        if model_call is None:
            raise TypeError("this layer was called by itself, without the tokens of a call: call the model")
        tokens = model_call.on(hidden_states.device).tokens
        layer_state = layer_state_among(options, MIXER_CACHES, self.layer)
        plain = {name: None if name in MIXER_CACHES or isinstance(value, ModelCall) else value for name, value in options.items()}

        run = partial(self._run, plain, [name for name in MIXER_CACHES if name in options])
        if tokens.valid is None and tokens.segment is None:
            attended, after = run(hidden_states, None if layer_state is None else _usable(layer_state))
        else:
            documents = tokens.once(("documents",), lambda: list(document_spans(tokens)))
            attended, after = _by_documents(hidden_states, documents, None if layer_state is None else _usable(layer_state), run)
        if layer_state is not None:
            layer_state.keep_mixer(after, 0 if self.beside_heads else hidden_states.shape[1])
        return (attended, None) if self._host_name in PAIRED else attended

    @property
    def _host_name(self) -> str:
        return type(self).__mro__[2].__name__

    def _run(self, options: Mapping[str, Any], caches: Sequence[str], hidden: Tensor, before: State | None) -> tuple[Tensor, State]:
        """Run the host's forward on whole rows. Return the output, and the states after them.

        options: the host's other arguments. caches: the names of the arguments for a cache. before: the states of the rows, which
        may be overwritten; None: there is no cache.
        """
        if before is None:
            return unpack_output(super().forward(hidden, **options)), {}  # type: ignore[misc]
        if before and hidden.shape[1] > 1 and self._host_name in ONE_BY_ONE:
            attended = []
            for column in range(hidden.shape[1]):
                part, before = self._run(options, caches, hidden[:, column, None], before)
                attended.append(part)
            return torch.cat(attended, dim=1), before
        states = MixerStates(before, self.count)
        options = {**options, **dict.fromkeys(caches, MixerCache(states, self.layer))}
        return unpack_output(super().forward(hidden, **options)), states.tensors()  # type: ignore[misc]


def _usable(layer_state: StateLayer) -> State:
    """Return a mixer's states, which the host may write over: copies, where gradients or a caller may need the states as they
    are."""
    if torch.is_grad_enabled() or layer_state.differentiated or not writable(layer_state):
        return {name: state.clone() for name, state in layer_state.mixer.items()}
    return dict(layer_state.mixer)


def document_spans(tokens: Tokens) -> Iterator[DocumentSpan]:
    """Yield the documents of a call's rows, without padding."""
    batch, length = tokens.position.shape
    counts = [length] * batch if tokens.valid is None else tokens.valid.sum(1).tolist()
    numbers = None if tokens.segment is None else tokens.segment.tolist()
    for row, count in enumerate(counts):
        row_numbers = [0] * count if numbers is None else numbers[row][:count]
        starts = [column for column in range(count) if column == 0 or row_numbers[column] != row_numbers[column - 1]]
        for start, end in pairwise([*starts, count]):
            yield DocumentSpan(row, start, end - start, row_numbers[start] == 0, end == count)


def _by_documents(
    hidden: Tensor,
    documents: Sequence[DocumentSpan],
    before: State | None,
    run: Callable[[Tensor, State | None], tuple[Tensor, State]],
) -> tuple[Tensor, State]:
    """Run a mixer on each document separately. The output at padding is 0. before: states of all rows; None: there is no cache.

    With a cache, documents of one length run together, as the states after their last tokens are needed. Without one, shorter
    documents are padded at the end, to less than twice their length: later tokens do not change the output at a token.
    """
    groups: dict[tuple[int, bool, bool], list[DocumentSpan]] = {}
    for document in documents:
        size = document.length.bit_length() if before is None else document.length
        groups.setdefault((size, document.continues, document.last), []).append(document)
    attended, after = torch.zeros_like(hidden), before
    for (_, continues, last), group in groups.items():
        rows = hidden.new_tensor([document.row for document in group], dtype=torch.int64)
        starts = hidden.new_tensor([document.start for document in group], dtype=torch.int64)
        lengths = hidden.new_tensor([document.length for document in group], dtype=torch.int64)
        offsets = torch.arange(max(document.length for document in group), device=hidden.device)
        columns = (starts[:, None] + offsets).clamp(max=hidden.shape[1] - 1)
        row_states = None
        if before is not None:
            row_states = {name: state[rows] for name, state in before.items()} if continues else {}
        mixed, state = run(hidden[rows[:, None], columns], row_states)
        real = offsets < lengths[:, None]
        places = rows[:, None].expand_as(columns)[real], columns[real]
        attended = attended.index_put(places, mixed[real].to(attended.dtype))
        if last and after is not None:
            after = {name: _rows_replaced(after.get(name), rows, part, hidden.shape[0]) for name, part in state.items()}
    return attended, after or {}


def _rows_replaced(states: Tensor | None, rows: Tensor, new: Tensor, batch: int) -> Tensor:
    """States of all rows with some of them replaced. None: all others are as before their first token, 0."""
    if states is None:
        states = new.new_zeros(batch, *new.shape[1:])
    return states.index_copy(0, rows, new.to(states.dtype))


def mixers_of(layer: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules of a layer that accept a cache, so have states, and are not composed."""
    for module in layer.children():
        parameters = inspect.signature(type(module).forward).parameters
        if not isinstance(module, ComposedAttention) and any(name in parameters for name in MIXER_CACHES):
            yield module


def keep_mixers(layer: nn.Module, index: int, count: int, *, beside_heads: bool) -> bool:
    """Let the mixers of a layer keep their states beside those of heads. Return whether it has any. count: of its states."""
    mixers = list(mixers_of(layer))
    for module in mixers:
        mixer: Any = module
        mixer.__class__ = kept_class(type(module))
        mixer.layer, mixer.count, mixer.beside_heads = index, count, beside_heads
    return bool(mixers)


@cache
def kept_class(host: type[nn.Module]) -> type[KeptMixer]:
    """Return a host's class of layers with states, kept beside composed heads."""
    return make_class(kept_class, host, KeptMixer, host)


def serve_cpu(module: ModuleType) -> None:
    """Make the functions of a host's module work for tensors on a CPU.

    transformers chooses one of fla's and other packages' kernels for such a function wherever the package is installed, without
    looking at the device: on a CPU they raise. For a call with such tensors, transformers' own definition is used.
    """
    for name, function in list(vars(module).items()):
        definition = getattr(function, "__wrapped__", None)
        if inspect.isfunction(definition) and definition.__module__ == module.__name__ and not hasattr(function, SERVES_CPU):
            setattr(module, name, _by_device(function, definition))


SERVES_CPU = "serves_cpu"
"""Marks a function that ``serve_cpu`` has made."""


def _by_device(function: Callable[..., Any], definition: Callable[..., Any]) -> Callable[..., Any]:
    parameters = inspect.signature(definition).parameters

    @wraps(definition)
    def run_by_device(first: Tensor, *arguments: Any, **options: Any) -> Any:
        if first.device.type != "cpu":
            return function(first, *arguments, **options)
        return definition(first, *arguments, **{name: value for name, value in options.items() if name in parameters})

    setattr(run_by_device, SERVES_CPU, True)
    return run_by_device
