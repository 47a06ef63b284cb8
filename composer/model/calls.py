"""What each kind of part becomes when a head is compiled: a call that reads named values and writes what its part gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from blocks.convolution import Convolution
from blocks.feature_maps.base import FeatureMap
from blocks.flow import Features, Pairs, Partial
from blocks.gates.base import Gate
from blocks.legend import Shape
from blocks.memories.errors import Compared, Error
from blocks.memories.full import Full
from blocks.memories.latents import Latents
from blocks.memories.recurrent import Recurrent
from blocks.memories.sparse import Sparse
from blocks.memories.window import Window
from blocks.mixers.base import Mixer
from blocks.outputs import Norm
from blocks.part import Part, State
from blocks.rates import Rate
from blocks.reads import Read
from blocks.value_positions import Vapor
from composer.model.falling import Falling
from composer.model.run import Run, Source
from composer.model.wiring import Below, Mapped, Weigh


# Each call takes its node, its module's name and its wiring, which are bound when the graph is compiled, then the run.
def _mix(node: str, name: str, run: Run, *, hidden: Source) -> None:
    run.values[node, "hidden"], state = run.compute(name, "mix", run.values[hidden], run.tokens, run.own(node), form=run.backend)
    run.keep(node, state)


def _convolution(node: str, name: str, run: Run, *, query: Source, key: Source) -> None:
    given = run.values[query], run.values[key], run.tokens, run.own(node)
    run.values[node, "query"], convolved, state = run.compute(name, "convolve", *given)
    # Pairs carry the convolved key down; the raw one stays beside it.
    run.values["pairs", "pairs"] = replace(run.values["pairs", "pairs"], convolved=convolved)
    run.keep(node, state)


def _value_position(
    node: str,
    name: str,
    run: Run,
    *,
    value: Source | None = None,
    partial: list[Source] | None = None,
    output: Source | None = None,
) -> None:
    position = run.tokens.position
    if value is None:
        answer = run.answer(output or (partial or [])[0])
        run.values[node, "output"] = run.compute(name, "leave", answer, position)
        return
    run.values[node, "value"] = turned = run.compute(name, "enter", run.values[value], position)
    run.values["pairs", "pairs"] = replace(run.values["pairs", "pairs"], value=turned)


def _gate(node: str, name: str, run: Run, *, hidden: Source, shape: Shape) -> None:
    run.values[node, "decay"] = run.compute(name, "log_decay", run.values[hidden], shape)


def _rates(node: str, name: str, run: Run, *, hidden: Source, shape: Shape) -> None:
    pairs = run.values["pairs", "pairs"]
    rate = run.compute(name, "rate", run.values[hidden], shape)
    run.values["pairs", "pairs"] = replace(pairs, numbers={**pairs.numbers, node: rate})


def _features(node: str, name: str, run: Run, *, pairs: Source, mapped: Mapped, rate: str | None) -> None:
    held: Pairs = run.values[pairs]
    own_rate = None if rate is None else held.numbers[rate]
    features = Features(mapped.key(run, held), held.value, held.present, held.arrival, own_rate)
    run.values[node, "features"] = mapped.query(run), features


def _answered(node: str, name: str, run: Run, weigh: Weigh | None, partial: Partial, state: State) -> None:
    run.values[node, "partial"] = partial if weigh is None else weigh.of(run, name, partial)
    run.keep(node, state)


def _full(node: str, name: str, run: Run, *, query: Source, pairs: Source, weigh: Weigh | None, plain: bool) -> None:
    if run.both_ways:
        _both_ways(node, name, run, query, pairs, weigh)
        return
    given = run.values[query], run.values[pairs], run.tokens, run.own(node)
    partial, state = run.compute(name, "attend", *given, form=run.backend, plain=plain)
    _answered(node, name, run, weigh, partial, state)


def _window(
    node: str, name: str, run: Run, *, query: Source, pairs: Source, weigh: Weigh | None, errors: dict[str, tuple[Error, Mapped]]
) -> None:
    if run.both_ways:
        _both_ways(node, name, run, query, pairs, weigh)
        return
    compared = {
        number: Compared(
            error,
            lambda mapped=mapped: mapped.query(run),
            lambda pairs, mapped=mapped: mapped.key(run, pairs),
            mapped.scale == "logarithm",
        )
        for number, (error, mapped) in errors.items()
    }
    given = run.values[query], run.values[pairs], run.tokens, run.own(node)
    partial, state, run.values[node, "pairs"] = run.compute(name, "attend", *given, form=run.backend, compared=compared)
    _answered(node, name, run, weigh, partial, state)


def _both_ways(node: str, name: str, run: Run, query: Source, pairs: Source, weigh: Weigh | None) -> None:
    given = run.values[query], run.values[pairs], run.tokens
    _answered(node, name, run, weigh, run.compute(name, "attend_both_ways", *given, form=run.backend), {})


def _recurrent(
    node: str,
    name: str,
    run: Run,
    *,
    features: Source,
    weigh: Weigh | None,
    shape: Shape,
    decay: Source | None = None,
) -> None:
    query, pairs = run.values[features]
    if run.both_ways:
        partial = run.compute(name, "recall_both_ways", query, pairs, run.tokens, shape)
        _answered(node, name, run, weigh, partial, {})
        return
    log_decay = None if decay is None else run.values[decay]
    partial, state = run.compute(name, "recall", query, pairs, log_decay, run.tokens, run.own(node), form=run.backend)
    _answered(node, name, run, weigh, partial, state)


def _sparse(
    node: str,
    name: str,
    run: Run,
    *,
    query: Source,
    pairs: Source,
    weigh: Weigh | None,
    below: Below | None,
    place: tuple[int, int],
) -> None:
    given = run.values[query], run.values[pairs], run.tokens, run.own(node)
    falling = None if below is None else Falling(below, run)
    partial, state = run.compute(name, "attend", *given, below=falling, place=place)
    _answered(node, name, run, weigh, partial, state)
    if below is not None and falling is not None:
        _answered(below.state, below.module, run, below.weigh, *falling.answer())


def _latents(node: str, name: str, run: Run, *, hidden: Source, value: Source, weigh: None, heads: int) -> None:
    given = run.values[hidden], run.values[value], run.tokens
    if run.both_ways:
        partial = run.compute(name, "attend_both_ways", *given, heads=heads, form=run.backend)
        _answered(node, name, run, weigh, partial, {})
        return
    partial, state = run.compute(name, "recall", *given, run.own(node), form=run.backend)
    _answered(node, name, run, weigh, partial, state)


def _read(node: str, name: str, run: Run, *, partial: list[Source]) -> None:
    run.values[node, "output"] = run.compute(name, "combine", [run.values[source] for source in partial])


def _finish(
    node: str, name: str, run: Run, *, hidden: Source, output: Source | None = None, partial: list[Source] | None = None
) -> None:
    answer = run.answer(output or (partial or [])[0])
    run.values[node, "output"] = run.compute(name, "finish", answer, run.values[hidden])


COMPILERS: dict[type[Part], Callable[..., None]] = {
    Mixer: _mix,
    Convolution: _convolution,
    Vapor: _value_position,
    FeatureMap: _features,
    Gate: _gate,
    Rate: _rates,
    Full: _full,
    Window: _window,
    Sparse: _sparse,
    Recurrent: _recurrent,
    Latents: _latents,
    Read: _read,
    Norm: _finish,
}
"""For each kind of part, the call that it becomes."""
