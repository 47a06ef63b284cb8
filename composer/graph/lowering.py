"""Lower a head's graph to its program: choose the form of each operation, and record why it is this one.

Patterns over several operations are matched first, then single operations. An operation without a fitting form on the chosen
backend falls back to another backend, and records why. Lowering changes speed, never results.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from blocks.legend import Shape
from blocks.memories.base import Memory
from blocks.operation import EVERY, FLA, REFERENCE, TORCH, TRITON, Form, Kind, Setting
from blocks.part import Closed
from blocks.pattern import Pattern
from composer.errors import BuildError, GraphError
from composer.graph.composition import HeadSpec
from composer.graph.graph import OUTPUT, HeadGraph, Node, cached_by_head, evicts_together, pairs_of, sort_by_flow, takers_of
from composer.graph.measured import find_measured
from composer.graph.pieces import takes_pieces
from composer.graph.program import CoveredOperation, HeadFunctions, Program, Step, cover, matches
from composer.graph.source import print_functions
from composer.graph.wiring import build_graph
from composer.reporting.words import plural
from composer.system.notices import warn_fallback

AUTO = "auto"
BACKENDS = (AUTO, REFERENCE, TORCH, FLA, TRITON)
"""The built-in backends. auto chooses the first form that fits, in the order of ``PREFERRED``."""
PREFERRED = {"cuda": (TRITON, FLA, TORCH, REFERENCE)}
"""The backends that auto tries, in this order, by device. It skips a form that was measured to be slower than the head without it
(``composer.graph.measured``)."""
ANYWHERE = (TORCH, REFERENCE)
"""The backends that auto tries, in this order, on other devices, and to which any backend falls back."""


FIRST = "the first form of this backend that fits"
"""Why a form runs if no other reason decides."""


def check_backend(backend: str, graphs: Iterable[HeadGraph]) -> str:
    """Return ``backend`` if it is built in or some form of these heads or their patterns has it; else raises BuildError."""
    backends = set(BACKENDS)
    for graph in graphs:
        backends |= {form.backend for node in graph.parts for form in node.operation.forms}
        backends |= {form.backend for pattern, match in matches(graph) for form in pattern.forms(_parts(graph, match))}
    backends.discard(EVERY)
    if isinstance(backend, str) and backend in backends:
        return backend
    raise BuildError(f'there is no backend "{backend}"; there are {", ".join(sorted(backends))}')


class Lowered(Closed):
    """The form that one part of a head was lowered to. decode: the form for a call with one token, where it is another one, with
    its backend, and why it is this one."""

    part: str
    kind: str
    backend: str
    form: str
    decode: str | None = None
    why_this_form: str
    decode_backend: str | None = None
    decode_why_this_form: str | None = None


class Compiled:
    """A completed head on a group of heads of one shape, with a cache of its programs."""

    def __init__(self, head: HeadSpec, shape: Shape) -> None:
        self.head, self.shape, self.graph = head, shape, build_graph(head, shape)
        self._programs: dict[tuple[str, Setting], Program] = {}
        self._functions: dict[tuple[str, Setting], HeadFunctions] = {}

    def program(self, backend: str, setting: Setting) -> Program:
        """Return the program for this backend and setting."""
        key = backend, setting
        if key not in self._programs:
            self._programs[key] = lower(self.graph, backend, setting)
        return self._programs[key]

    def functions_for(self, backend: str, setting: Setting) -> HeadFunctions:
        """Return the functions for a call, and warn if a package is missing or the backend computes nothing."""
        key = backend, setting
        if key not in self._functions:
            program = self.program(backend, setting)
            self._functions[key] = HeadFunctions(program)
            for text in dict.fromkeys(text for step in program.steps for text in step.missing):
                warn_fallback(text, "What would run on it runs on PyTorch's own kernels")
            if not setting.one_token and _backend_is_unused(program, backend):
                memories = " → ".join(memory.called for memory in self.head.memory)
                gradients = ", with gradients" if setting.gradients else ""
                here = f"with several tokens at once ({setting.device}, {setting.dtype}{gradients})"
                why = f"backend {backend} is set, but no part of a head (`{memories}`) runs on it {here}"
                warn_fallback(why, f"Run `compose explain --backend {backend}` for the reasons")
        return self._functions[key]

    def print_functions(self, backend: str, setting: Setting, name: str) -> list[str]:
        """Return the source of the functions that run in this setting. name: of the first one."""
        decode = None if self.shape.both_ways else self.program(backend, setting._replace(one_token=True))
        in_pieces = takes_pieces(self.graph, backend, setting.device)
        return print_functions(self.program(backend, setting), decode, name, in_pieces=in_pieces)

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        """Copy a compiled head: if a model rotates its queries itself, the copy of the model does."""
        return compile_head(copy.deepcopy(self.head, memo), self.shape)

    def __reduce__(self) -> tuple[Any, ...]:
        return compile_head, (self.head, self.shape)


def _backend_is_unused(program: Program, backend: str) -> bool:
    """True if a backend was chosen, no step of the program runs on it, and no missing package is the reason."""
    return backend not in (AUTO, *ANYWHERE) and not any(step.form.backend == backend or step.missing for step in program.steps)


@cached_by_head
def compile_head(head: HeadSpec, shape: Shape) -> Compiled:
    """Return the compiled head, which all layers with this head share."""
    return Compiled(head, shape)


class Joined(NamedTuple):
    """A step of several operations. names: in its pattern; choices: the forms that fit; instead: the plan of the steps in its place
    if all forms refuse, or None if the last cannot."""

    names: tuple[str, ...]
    choices: list[Choice]
    instead: StepPlan | None


@dataclass(eq=False)
class StepPlan:
    """The steps of some operations of a head: of all of them, or of those of a step whose forms may all refuse."""

    names: frozenset[str]
    """The names of the operations."""
    without: tuple[Pattern, ...]
    """Patterns that are not used."""
    units: dict[str, tuple[str, ...]]
    """For each operation of the head, those that are computed in its step."""
    joined: dict[tuple[str, ...], Joined] = field(default_factory=dict)
    """The steps of several operations."""
    skipped: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Why no form of several operations computes an operation."""
    steps: dict[tuple[str, ...], Step] = field(default_factory=dict)
    """The steps in order; set when all patterns have been tried."""


def lower(graph: HeadGraph, backend: str = AUTO, setting: Setting | None = None, without: tuple[Pattern, ...] = ()) -> Program:
    """Return the graph as steps. Raises GraphError if an operation has no form at all. without: patterns that are not used."""
    setting = setting or Setting()
    singles = {node.name: (node.name,) for node in graph.parts}
    plans = [StepPlan(frozenset(singles), without, singles)]
    for pattern, match in matches(graph):
        names = tuple(match.values())
        # The last plan with these operations is the one in place of the fewest.
        plan = next(plan for plan in reversed(plans) if plan.names.issuperset(names))
        if pattern in plan.without:
            continue
        leader = graph.nodes[match.get(pattern.leader, names[0])]
        is_free = all(len(plan.units[name]) == 1 for name in names)
        forms = pattern.forms(_parts(graph, match)) if is_free else ()
        earlier_reasons = tuple(dict.fromkeys(reason for name in names for reason in plan.skipped.get(name, ())))
        choices, reasons = _choices(forms, backend, _of_node(graph, leader, setting), earlier_reasons, several=True)
        units = plan.units | dict.fromkeys(names, names)
        if not choices or _order(graph, units) is None:
            plan.skipped |= {name: tuple(dict.fromkeys((*plan.skipped.get(name, ()), *reasons))) for name in names}
            continue
        instead = StepPlan(frozenset(names), (*plan.without, pattern), singles) if choices[-1].form.refuses else None
        plan.units, plan.joined[names] = units, Joined(tuple(match), choices, instead)
        plans += [instead] if instead else []
    for plan in reversed(plans):
        order = _order(graph, plan.units)
        assert order is not None, "a graph has no circle"
        for unit in (unit for unit in order if plan.names.issuperset(unit)):
            if unit not in plan.joined:
                plan.steps[unit] = _single_step(graph, graph.nodes[unit[0]], backend, setting, plan.skipped.get(unit[0], ()))
                continue
            names, choices, instead = plan.joined[unit]
            covers = tuple(_cover(graph, graph.nodes[name], backend, setting, frozenset(unit)) for name in unit)
            plan.steps[unit] = _step(covers, names, choices, () if instead is None else tuple(instead.steps.values()))
    steps = plans[0].steps
    first = graph.before_projections()
    (last,) = graph.into(OUTPUT)
    mixed = next(((edge.start, edge.output) for edge in graph.into("query")), ("hidden", "hidden"))
    return Program(
        before=tuple(step for unit, step in steps.items() if unit[0] in first),
        after=tuple(step for unit, step in steps.items() if unit[0] not in first),
        mixed=mixed,
        output=(last.start, last.output),
        title=_title(graph, backend, setting),
    )


def _title(graph: HeadGraph, backend: str, setting: Setting) -> str:
    """Return the title of a head's functions in tracebacks."""
    memories, shape = " → ".join(node.name for node, _ in graph.memories), graph.nodes[OUTPUT].shape
    heads = f"{plural(shape.heads, 'query head')} on {plural(shape.key_heads, 'key head')}"
    tokens = "one token" if setting.one_token else "any number of tokens"
    rows = [name for name in ("documents", "padded", "gradients") if getattr(setting, name)]
    return f"head {memories}: {', '.join([heads, tokens, *rows, f'{backend} on {setting.device}', setting.dtype])}"


def list_forms(graph: HeadGraph, backend: str, setting: Setting) -> tuple[Lowered, ...]:
    """Return the forms of all parts that the spec names, in the order of the program."""
    steps = _by_node(lower(graph, backend, setting))
    decode = _by_node(lower(graph, backend, setting._replace(one_token=True)))
    return tuple(
        _lower_node(graph.nodes[name], step, decode[name], backend)
        for name, step in steps.items()
        if graph.nodes[name].path is not None
    )


def _lower_node(node: Node, step: Step, decode: Step, backend: str) -> Lowered:
    """decode: the step for calls with one token."""

    def backend_of(form: Form) -> str:
        return backend if form.backend == EVERY else form.backend

    same = decode.form.description == step.form.description
    return Lowered(
        part=node.name,
        kind=node.kind,
        backend=backend_of(step.form),
        form=step.form.description,
        decode=None if same else decode.form.description,
        why_this_form=step.why,
        decode_backend=None if same else backend_of(decode.form),
        decode_why_this_form=None if same else decode.why,
    )


def _by_node(program: Program) -> dict[str, Step]:
    return {operation.node.name: step for step in program.steps for operation in step.covers}


def _single_step(graph: HeadGraph, node: Node, backend: str, setting: Setting, earlier_reasons: tuple[str, ...] = ()) -> Step:
    """Return the step that computes one operation by itself. earlier_reasons: why no form of several operations
    computes it."""
    choices, _ = _choices(node.operation.forms, backend, _of_node(graph, node, setting), earlier_reasons)
    if not choices:
        raise GraphError(f"nothing computes `{node.name}` in this head", node.path or ())
    return _step((_cover(graph, node, backend, setting),), (node.name,), choices)


def _step(
    covers: tuple[CoveredOperation, ...], names: tuple[str, ...], choices: list[Choice], instead: tuple[Step, ...] = ()
) -> Step:
    """Return the step of the first choice. After it come the other choices, and then ``instead``, each if those before refuse."""
    for choice in reversed(choices):
        instead = (Step(covers, names, choice.form, choice.why, choice.missing, instead),)
    return instead[0]


def _cover(graph: HeadGraph, node: Node, backend: str, setting: Setting, step: frozenset[str] = frozenset()) -> CoveredOperation:
    """step: the names of the operations in the same step."""
    choices: list[Choice] = []
    if node.operation.gives[0].kind is Kind.KEYS:  # forms of other operations call it
        choices, _ = _choices(node.operation.forms, backend, _of_node(graph, node, setting))
    runs = tuple(partial(choice.form.run, **node.options) for choice in choices)
    maps = {name: _cover(graph, graph.nodes[called], backend, setting) for name, called in node.maps.items()}
    return cover(node, graph.into(node.name), step, needs_mass=_needs_mass(graph, node), runs=runs, maps=maps)


def _needs_mass(graph: HeadGraph, node: Node) -> bool:
    return any(not taker.leaves_masses_out for taker in takers_of(graph, node.name))


def _of_node(graph: HeadGraph, node: Node, setting: Setting) -> Setting:
    if not isinstance(node.part, Memory):
        return setting._replace(shape=node.shape)
    return setting._replace(
        shape=node.shape,
        **pairs_of(graph, node.name),
        one_pair=not any(evicts_together(graph, edge.start) for edge in graph.into(node.name, "pairs")),
        needs_mass=_needs_mass(graph, node),
        needs_maximum=any(taker.asks_maximum for taker in takers_of(graph, node.name)),
        capped=node.shape.softcap is not None,
    )


def _parts(graph: HeadGraph, match: Mapping[str, str]) -> dict[str, Any]:
    """Return the parts of the nodes that a pattern was found at, by the pattern's names."""
    return {node: graph.nodes[name].part for node, name in match.items()}


@dataclass(frozen=True)
class Choice:
    """A form that fits. why: the reasons against earlier forms. missing: packages of earlier forms that are not installed."""

    form: Form
    why: str
    missing: tuple[str, ...]


def _choices(
    forms: Iterable[Form], backend: str, setting: Setting, earlier_reasons: tuple[str, ...] = (), *, several: bool = False
) -> tuple[list[Choice], tuple[str, ...]]:
    """Return the fitting forms in order, up to the first that cannot refuse, and why each other form was skipped.

    earlier_reasons: those found before. several: the forms compute several operations, and need not exist on every backend.
    """
    forms, choices = tuple(forms), []
    missing: dict[str, None] = {}
    reasons = dict.fromkeys(earlier_reasons)
    wanted = PREFERRED.get(setting.device, ANYWHERE) if backend == AUTO else tuple(dict.fromkeys((backend, *ANYWHERE)))
    for place, wanted_backend in enumerate(wanted):
        # A form of EVERY counts as one of the chosen backend, of PyTorch and of the reference.
        backends = (wanted_backend, EVERY) if wanted_backend in ANYWHERE or backend != AUTO else (wanted_backend,)
        backend_forms = [form for form in forms if form.backend in backends and (setting.one_token or not form.decode)]
        for form in backend_forms:
            absent = form.missing()
            if absent is not None:
                missing[absent] = reasons[absent] = None
                continue
            problem, measured = form.obstacle(setting), find_measured(form, setting) if backend == AUTO else None
            if problem is None and measured is not None and measured.speed < 1:
                problem = str(measured)
            if problem is not None:
                reasons[f"{form.description}: {problem}"] = None
                continue
            skip_reasons = (*reasons, *([str(measured)] if measured else ()))
            choices.append(Choice(form, _why(form, forms, backend, setting, skip_reasons), tuple(missing)))
            if not form.refuses:
                return choices, tuple(reasons)
        if place == 0 and backend != AUTO and not several and not any(form.backend in (wanted_backend, EVERY) for form in forms):
            reasons[f"it has no {wanted_backend} form"] = None
    return choices, tuple(reasons)


def _why(form: Form, forms: tuple[Form, ...], backend: str, setting: Setting, reasons: tuple[str, ...]) -> str:
    if backend == REFERENCE:
        return "the backend is reference: the definition, which is slow"
    if form.picks is not None and setting.device != "cpu":
        reasons = (*reasons, f"PyTorch selects {form.picks} itself")
    if reasons:
        return "; ".join(reasons)
    if form.backend == EVERY:
        return "one form computes it everywhere"
    if form.backend not in ANYWHERE or setting.device == "cpu":
        return FIRST
    if any(other.backend not in (*ANYWHERE, EVERY) for other in forms):
        return f"the backend is {backend}"
    return "no fla or triton form of this part is built in yet; PyTorch's own kernels run it on any device"


def _order(graph: HeadGraph, units: Mapping[str, tuple[str, ...]]) -> list[tuple[str, ...]] | None:
    """Return the units, each after those that it reads from; None where they read from each other in a circle."""
    place = {name: index for index, name in enumerate(graph.nodes)}
    pairs = ((units[edge.start], units[edge.end]) for edge in graph.edges if edge.start in units and edge.end in units)
    first_to_last = sorted(units.values(), key=lambda unit: min(place[name] for name in unit))
    return sort_by_flow(first_to_last, ((start, end) for start, end in pairs if start != end))
