"""Decode steps that are recorded once and replayed: on a GPU the hundreds of launches of a token become one, a CUDA graph.

A step of decode waits for nothing on the host, and its new state has the size of the old one. So the tensors of the cache, of the
token and of its logits keep their addresses: state that a step does not update in place is copied back into them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithPast

from composer.model.cache import CACHE, CACHE_NAMES, ComposedCache
from composer.system.notices import warn_fallback

Computation = Callable[[], Tensor]
"""Runs a step and returns the tensor of its logits, which is always the same one once the step is recorded."""
Recording = Callable[[Computation], Computation]
"""Records a step without running it, and returns the function that replays it."""
ANSWERED = frozenset({"use_cache", "return_dict", "logits_to_keep", "input_ids", *CACHE_NAMES})
"""Arguments with which a call may still be replayed."""
FOLLOWING = frozenset({"attention_mask", "position_ids"})
"""Arguments of generation that a replay leaves out, as they follow from the cache."""


def capture(step: Computation) -> Computation:
    """Return the step as a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    # Other threads may continue to use the device.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        logits = step()

    def replay() -> Tensor:
        graph.replay()
        return logits

    return replay


class Recorder:
    """Runs a model's steps with one cache. The first runs without a recording, as a warm-up; the second is recorded, then replayed.

    record: records a step; None: as a CUDA graph. A step that cannot be recorded runs without a recording. The recorder belongs to
    the cache, and is freed with it.
    """

    def __init__(self, model: nn.Module, cache: ComposedCache, record: Recording | None = None) -> None:
        self._model, self._cache, self._record = model, ref(cache), record or capture
        self._ids: Tensor | None = None
        self._replay: Computation | None = None
        self._warm = self._off = False
        self._fixed: list[dict[str, Tensor]] = []
        self._max_positions: int | None = getattr(model.base_model, "learned_positions", None)
        """Columns up to which every token has a position. Beyond, the model has to look, which a recording cannot."""

    @property
    def cache(self) -> ComposedCache:
        """The cache, as long as somebody holds it."""
        cache = self._cache()
        assert cache is not None
        return cache

    @property
    def replays(self) -> bool:
        """Whether a step has been recorded."""
        return self._replay is not None and not self._off

    def serves(self, model: nn.Module, options: Mapping[str, Any]) -> bool:
        """Whether a call with this cache is a step of its model: one token a row, no gradients, the last logits alone or all, which
        is one."""
        ids, columns = options.get("input_ids"), self.cache.get_seq_length()
        if self._off or ids is None or model is not self._model or torch.is_grad_enabled():
            return False
        if self._max_positions is not None and columns >= self._max_positions:
            return False
        if options.get("return_dict") is False:
            return False
        more = {name for name, value in options.items() if value is not None and value is not False} - ANSWERED - FOLLOWING
        return ids.shape[1] == 1 and columns > 0 and not more and _keeps_last_or_all(options.get("logits_to_keep"))

    def step(self, options: Mapping[str, Any]) -> CausalLMOutputWithPast:
        """Run a call that ``serves`` accepts, by the recorded step as soon as there is one."""
        ids: Tensor = options["input_ids"]
        if not self._warm:
            return self._first(options)
        if self._ids is None:
            self._begin(ids)
        if self._off or self._ids is None or self._ids.shape != ids.shape:
            return self._call_model(**{name: value for name, value in options.items() if name not in FOLLOWING})
        self._ids.copy_(ids)
        self._hold()
        assert self._replay is not None
        with _on(ids):
            logits = self._replay().clone()  # the next step writes over it
        for layer in range(len(self.cache.layers)):
            self.cache.state(layer).columns += 1
        return CausalLMOutputWithPast(logits=logits, **{CACHE: self.cache})  # pyright: ignore[reportArgumentType]

    def _call_model(self, **options: Any) -> Any:
        """Call the model itself, without the recorder."""
        return nn.Module.__call__(self._model, **options)

    def _first(self, options: Mapping[str, Any]) -> Any:
        """Run the first step without a recording. It shows whether all later steps have the same shapes, and need neither mask nor
        positions, so that they can be recorded."""
        plain = self.cache.follows(options.get("attention_mask"), options.get("position_ids"))
        before = self._shapes()
        output = self._call_model(**options)
        self._warm, self._off = True, not plain or self._shapes() != before
        return output

    def _shapes(self) -> list[dict[str, tuple[int, ...]]]:
        return [{name: tuple(tensor.shape) for name, tensor in tensors.items()} for tensors in self._states()]

    def _states(self) -> list[dict[str, Tensor]]:
        return [self.cache.state(layer).tensors for layer in range(len(self.cache.layers))]

    def _begin(self, ids: Tensor) -> None:
        """Record a step. If that fails, log a warning, and run every step without a recording."""
        self._ids = ids.clone()
        for layer in range(len(self.cache.layers)):
            layer_state = self.cache.state(layer)
            self._fixed.append({name: tensor.clone() for name, tensor in layer_state.tensors.items()})
            layer_state.tensors = dict(self._fixed[layer])  # layer by layer, so that what they were is free
        try:
            with _on(ids):
                self._replay = self._record(self._run_recorded_step)
        except RuntimeError as error:
            self._off = True
            warn_fallback(f"a step of decode cannot be recorded, and runs launch by launch: {str(error).partition(chr(10))[0]}")
            self._settle()

    def _hold(self) -> None:
        """Copy the cache's state into the tensors of the recorded step, where the cache has got other tensors meanwhile."""
        for layer, fixed in enumerate(self._fixed):
            layer_state = self.cache.state(layer)
            for name, tensor in fixed.items():
                if layer_state.tensors[name] is not tensor:
                    tensor.copy_(layer_state.tensors[name])
            layer_state.tensors = dict(fixed)

    def _run_recorded_step(self) -> Tensor:
        """Run the step that is recorded: its logits. New state that is not in the cache's fixed tensors is copied into them."""
        columns = [self.cache.state(layer).columns for layer in range(len(self.cache.layers))]
        try:
            output = self._call_model(input_ids=self._ids, **{CACHE: self.cache}, use_cache=True)
            for fixed, new in zip(self._fixed, self._states(), strict=True):
                for name, tensor in fixed.items():
                    if new[name] is not tensor:
                        tensor.copy_(new[name])
        finally:
            self._settle()
            for layer, count in enumerate(columns):
                self.cache.state(layer).columns = count
        return output.logits

    def _settle(self) -> None:
        for layer, fixed in enumerate(self._fixed):
            self.cache.state(layer).tensors = dict(fixed)

    def __reduce__(self) -> tuple[Any, ...]:
        """A graph belongs to the tensors that it was recorded with: a copy has none."""
        return type(None), ()


def _on(ids: Tensor) -> AbstractContextManager[Any]:
    """For the block, the device of the tokens is the current one."""
    return torch.cuda.device(ids.device) if ids.is_cuda else nullcontext()


def _keeps_last_or_all(logits_to_keep: Any) -> bool:
    return logits_to_keep is None or (isinstance(logits_to_keep, int) and logits_to_keep in (0, 1))


def may_record(model: Any) -> bool:
    """Whether all of a model is on one GPU, and its states are those of heads: a hybrid's mixers return new tensors. A model that
    reads images prepares the calls of its text decoder on the host."""
    if model.base.has_mixers or model.base is not model.base_model:
        return False
    devices = {parameter.device for parameter in model.parameters()}
    return len(devices) == 1 and next(iter(devices)).type == "cuda"
