"""A sparse cache and the state below it, as one step: the cache reads the state before each eviction, and the state receives the
evicted pairs. Neither could compute this alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from blocks.feature_maps.base import FeatureMap
from blocks.legend import Tensor
from blocks.memories.recurrent import Recurrent
from blocks.memories.sparse import BLOCKS, ONE_BY_ONE, STEP, STEPS, Attend, Sparse
from blocks.memories.state_below import StateBelow
from blocks.operation import EVERY, REFERENCE, Form, Kind, Setting, State
from blocks.part import Part
from blocks.pattern import Pattern, RunningPart


def _run(
    parts: Mapping[str, RunningPart], inputs: Mapping[str, Mapping[str, Any]], *, recurrence: Form, attention: Attend
) -> list[tuple[Any, State]]:
    """Return the outputs of the cache and of the state."""
    cache, state, below, query, pairs = _prepare(parts, inputs, recurrence)
    exact, cache_state = cache.compute(_sparse(cache).attend, query, pairs, cache.call, below=below, attention=attention)
    state_output, summed = state.compute(lambda _: below.compute_output())
    return [((exact, None), cache_state), ((None,), {}), ((state_output,), summed)]


def _run_step(
    parts: Mapping[str, RunningPart], inputs: Mapping[str, Mapping[str, Any]], *, recurrence: Form, attention: Attend
) -> list[tuple[Any, State]]:
    """Return the outputs of the cache and of the state for one token."""
    cache, state, below, query, pairs = _prepare(parts, inputs, recurrence)
    results = cache.compute(_sparse(cache).step, query, pairs, cache.call, below=below, attention=attention)
    exact, *evicted, cache_state = results
    state_output, summed = state.compute(lambda _: below.compute_step(*evicted))
    return [((exact, None), cache_state), ((None,), {}), ((state_output,), summed)]


def _prepare(
    parts: Mapping[str, RunningPart], inputs: Mapping[str, Mapping[str, Any]], recurrence: Form
) -> tuple[RunningPart, RunningPart, StateBelow, Tensor, Any]:
    """Return the cache and the state, the state as the cache reads it, the queries, and the pairs that arrive, if any."""
    cache, state = parts["sparse"], parts["state"]
    query, pairs = inputs["sparse"]["query"], inputs["sparse"]["pairs"]
    max_per_token = 1 if pairs is None else pairs.max_per_token
    features, decay = inputs["state"]["features"], inputs["state"].get("decay")
    below = StateBelow(state, features, parts["keys"], decay, query, recurrence, max_per_token)
    return cache, state, below, query, pairs


def _sparse(running: RunningPart) -> Sparse:
    assert isinstance(running.part, Sparse)
    return running.part


def _forms(parts: Mapping[str, Part]) -> tuple[Form, ...]:
    cache, memory = parts["sparse"], parts["state"]
    assert isinstance(cache, Sparse)
    assert isinstance(memory, Recurrent)
    # A step may write over the cache, and one that refuses may not have done so.
    step_forms = [form for form in memory.recurrences if form.backend != REFERENCE and not form.refuses]
    eviction_forms = [form for form in memory.recurrences if not form.decode]
    steps = [
        replace(form, description=f"{STEP}{words}; {form.description}", decode=True,
                run=partial(_run_step, recurrence=form, attention=attention),
                obstacle=partial(_first_obstacle, (obstacle, form.obstacle)))
        for _, words, attention, obstacle in STEPS for form in step_forms
    ]  # fmt: skip
    evictions = [
        replace(form, description=f"{ONE_BY_ONE}{words}; {form.description}",
                run=partial(_run, recurrence=form, attention=attention),
                obstacle=partial(_first_obstacle, (obstacle, form.obstacle)))
        for backend, words, attention, obstacle in BLOCKS for form in eviction_forms if backend in (EVERY, form.backend)
    ]  # fmt: skip
    return (*steps, *evictions)


def _first_obstacle(obstacles: tuple[Callable[[Setting], str | None], ...], setting: Setting) -> str | None:
    return next(filter(None, (obstacle(setting) for obstacle in obstacles)), None)


SPARSE_ABOVE_STATE = Pattern(
    nodes={
        "sparse": lambda part: isinstance(part, Sparse),
        "keys": lambda part: isinstance(part, FeatureMap),
        "state": lambda part: isinstance(part, Recurrent),
    },
    edges=(("sparse", "keys", Kind.PAIRS), ("keys", "state", Kind.KEYS), ("sparse", "state", Kind.PAIRS)),
    forms=_forms,
)
