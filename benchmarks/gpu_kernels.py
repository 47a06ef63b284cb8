"""Table 1: this project's kernels against the best alternatives, at the sizes of Llama-3.2-1B and Llama-3.1-8B.

A row times a *kernel* on the arguments of one call of its head, beside functions of other packages that return the same from
them; and the whole *head*, beside the same head without the kernel's form and beside heads that compute something else.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks import gpu_alternatives as alternatives
from benchmarks.gpu_rows import Bench, Row, attempt, differentiate
from benchmarks.harness import compute_difference
from blocks.feature_maps import hedgehog
from blocks.flow import Tokens
from blocks.legend import Shape
from blocks.memories import lola, window_above_state
from blocks.operation import TRITON, Form, Setting, State
from blocks.softmax import triton_forms
from composer.graph import lowering
from composer.graph.lowering import AUTO, Compiled
from composer.graph.measured import MeasuredForm
from composer.graph.program import HeadInputs, Program
from composer.model.head import Head
from composer.spec.loading import load_spec
from composer.spec.resolve import Dimensions, resolve
from composer.system import notices

SIZES = {
    "1b": Dimensions(hidden_size=2048, layers=1, heads=32, key_heads=8, head_dim=64, rope_theta=500_000.0),
    "8b": Dimensions(hidden_size=4096, layers=1, heads=32, key_heads=8, head_dim=128, rope_theta=500_000.0),
}
TINY = Dimensions(hidden_size=32, layers=1, heads=2, key_heads=1, head_dim=16, rope_theta=10_000.0)
LENGTHS, BATCHES = (8192, 2048, 32_768), (1, 16)
BEFORE = 512
"""Tokens before a step of decode, which fill windows and caches."""


@dataclass(frozen=True)
class Case:
    """A kernel in a head of a shipped spec.

    - spec, overrides: the head. small: overrides for the tiny sizes of a dry run.
    - part: a part that the kernel computes.
    - kernel: the module that calls it, and its name there; None where no other function has its arguments.
    - alternatives: builders of such functions, by name.
    - others: heads that compute something else, by name, with their overrides and those for tiny sizes.
    - outputs: how many of the kernel's outputs are differentiated; 0 for a kernel without gradients.
    - longest: the most tokens at which the head without the form is timed.
    """

    spec: str
    part: str
    overrides: tuple[str, ...] = ()
    small: tuple[str, ...] = ()
    kernel: tuple[ModuleType, str] | None = None
    alternatives: tuple[tuple[str, Callable[[Bench], Callable[..., Any]]], ...] = ()
    others: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = ()
    outputs: int = 1
    decodes: bool = False
    longest: int = 1 << 20


WINDOW, SMALL_WINDOW = "head.memory.0.size=192", "head.memory.0.size=8"
CASES = {
    "lolcats": Case(
        "lolcats",
        "state",
        small=(SMALL_WINDOW,),
        kernel=(window_above_state, "JOINT"),
        alternatives=(("FlexAttention and chunk_simple_gla", alternatives.build_joint),),
        decodes=True,
    ),
    "lola": Case(
        "lola",
        "state",
        small=(SMALL_WINDOW, "head.memory.1.size=8"),
        kernel=(lola, "WALK"),
        others=(("lolcats with as many pairs", "lolcats", (WINDOW,), ("head.memory.0.size=24",)),),
        outputs=0,
        decodes=True,
        longest=8192,
    ),
    "hedgehog": Case(
        "hedgehog",
        "state_features",
        kernel=(hedgehog, "SHARES"),
        alternatives=(("PyTorch, compiled", alternatives.build_map),),
    ),
    "window": Case(
        "streaming",
        "window",
        small=("head.memory.1.size=8",),
        kernel=(triton_forms, "WITH_MASS"),
        alternatives=(("FlexAttention", alternatives.build_window),),
    ),
}


def list_rows(bench: Bench) -> dict[str, Callable[[], Row]]:
    """Return the measurements by the names of their rows, the most important first."""
    rows: dict[str, Callable[[], Row]] = {}
    for size in ("1b",) if bench.tiny else tuple(SIZES):
        for tokens in (40,) if bench.tiny else LENGTHS:
            for call in ("forward", "with backward"):
                for name, case in CASES.items():
                    if call == "forward" or case.outputs:
                        rows[f"{name} {size} {call} {tokens}"] = partial(measure, bench, case, size, call, tokens, 1)
            if tokens == LENGTHS[0] or bench.tiny:
                for batch in BATCHES[: 1 if bench.tiny else None]:
                    for name, case in CASES.items():
                        if case.decodes:
                            rows[f"{name} {size} decode {batch}"] = partial(measure, bench, case, size, "decode", 1, batch)
    return rows


class Subject:
    """A head with random weights, its inputs and its state, and the runs of one call."""

    def __init__(self, bench: Bench, spec: str, overrides: tuple[str, ...], size: str, call: str, tokens: int, batch: int) -> None:
        dimensions = TINY if bench.tiny else SIZES[size]
        resolved = resolve(load_spec(spec, (*overrides, *_size_features(spec, dimensions))), dimensions)
        ((_, self.spec),) = resolved.heads.items()
        shape = replace(dimensions.shape(dimensions.heads), both_ways=resolved.direction == "bidirectional")
        self.bench, self.decode, self.backward = bench, call == "decode", call == "with backward"
        self.head = Head(self.spec, shape)
        generator = torch.Generator().manual_seed(0)
        for module in self.head.modules():
            if hasattr(module, "fill"):
                module.fill(generator)  # pyright: ignore[reportCallIssue]
        self.head.to(bench.device, bench.dtype).requires_grad_(self.backward)
        self.before = BEFORE if not bench.tiny else 30
        self.tensors = [tensor.requires_grad_(self.backward) for tensor in self._draw(shape, batch, tokens)]
        self.batch, self.shape, self.skipped = batch, shape, ""
        start = self.before if self.decode else 0
        self.tokens = Tokens(torch.arange(start, start + tokens, device=bench.device).expand(batch, -1))
        self.state = self._fill() if self.decode else self.head.empty_state(batch, bench.dtype, self.tensors[0].device)

    def _draw(self, shape: Shape, batch: int, tokens: int) -> list[Tensor]:
        generator = torch.Generator(self.bench.device).manual_seed(1)
        sizes = ((shape.hidden_size,), (shape.heads, shape.head_dim), *[(shape.key_heads, shape.head_dim)] * 2)
        options: dict[str, Any] = {"generator": generator, "device": self.bench.device, "dtype": self.bench.dtype}
        return [torch.randn(batch, tokens, *size, **options) for size in sizes]

    def _fill(self) -> State:
        """Return the state after the tokens before a step."""
        tensors = self._draw(self.shape, self.batch, self.before)
        tokens = Tokens(torch.arange(self.before, device=self.bench.device).expand(self.batch, -1))
        with torch.no_grad():
            empty = self.head.empty_state(self.batch, self.bench.dtype, tensors[0].device)
            return self.head(HeadInputs(*tensors, tokens), empty, AUTO)[1]  # pyright: ignore[reportCallIssue]

    def run(self) -> Tensor:
        """Run the head once. The state of a step is written over."""
        with torch.set_grad_enabled(self.backward), skip_form(self.skipped):
            inputs = HeadInputs(*self.tensors, self.tokens)  # pyright: ignore[reportCallIssue]
            output, state = self.head(inputs, self.state, AUTO, self.decode)
            self.state = state if self.decode else self.state
            return output

    def find_form(self, part: str) -> Form:
        """Return the form that computes a part."""
        compiled, setting = self.head._compiled, self._setting()
        return next(step.form for step in _program(compiled, setting).steps if part in [of.node.name for of in step.covers])

    def without(self, form: Form) -> Subject:
        """Return the same head, which does not use a form."""
        other = object.__new__(Subject)
        vars(other).update(vars(self))
        other.head = Head.__new__(Head)
        vars(other.head).update(vars(self.head))
        other.head._compiled, other.skipped = Compiled(self.spec, self.shape), form.description
        other.state = {name: tensor.clone() for name, tensor in self.state.items()}
        return other

    def leaves(self) -> list[Tensor]:
        return [tensor for tensor in (*self.tensors, *self.head.parameters()) if tensor.requires_grad]

    def _setting(self) -> Setting:
        dtype = str(self.bench.dtype).removeprefix("torch.")
        return Setting(self.bench.device.partition(":")[0], dtype, one_token=self.decode, gradients=self.backward)


def _size_features(spec: str, dimensions: Dimensions) -> tuple[str, ...]:
    """Return the override for feature maps of the papers' sizes, which are the head's, where a spec fixes another."""
    return (f"head.feature_map.dim={dimensions.head_dim}",) if spec in ("lolcats", "lola") else ()


def _program(compiled: Compiled, setting: Setting) -> Program:
    return compiled.program(AUTO, setting)


@contextmanager
def skip_form(description: str) -> Iterator[None]:
    """For the block, ``auto`` does not use the form: its measured speed is 0."""

    def find(form: Form, setting: Setting) -> MeasuredForm | None:
        if form.description != description:
            return None
        return MeasuredForm(form=description, device="", head_dim=0, tokens=0, one_token=False, gradients=False, speed=0.0)

    with patch.object(lowering, "find_measured", find):
        yield


@contextmanager
def fail_on_fallback() -> Iterator[None]:
    """For the block, a kernel that refuses its inputs is an error: another form would be timed in its place."""
    notices._WARNED.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", notices.FallsBack)
        yield


def measure(bench: Bench, case: Case, size: str, call: str, tokens: int, batch: int) -> Row:
    """Time a kernel and its head, each beside its alternatives. The kernel runs on arguments of a call of the head."""
    small = case.small if bench.tiny else ()
    subject = Subject(bench, case.spec, (*case.overrides, *small), size, call, tokens, batch)
    form = subject.find_form(case.part)
    if form.backend != TRITON:
        raise ValueError(f"{case.part} runs on {form.backend} ({form.description}), and not on this project's kernel")
    figures: Row = {"size": size, "call": call, "batch": batch, "form": form.description, "apart": {}}
    figures["tokens"] = subject.before if subject.decode else tokens
    figures["head_dim"] = subject.shape.head_dim
    if case.alternatives and not subject.decode:
        figures["kernel"] = measure_kernel(bench, case, subject, figures["apart"])
        bench.free()
    without = subject.without(form)
    with fail_on_fallback():
        output = subject.run().detach()
    figures["finite"] = bool(torch.isfinite(output).all())
    runs: dict[str, Callable[[], object]] = {"own": differentiate(subject.run, subject.leaves())}
    if tokens <= case.longest:
        other, _ = attempt(without.run)
        figures["apart"] |= {} if other is None else {"without it": compute_difference(other.detach(), output)}
        runs["without it"] = differentiate(without.run, without.leaves())
    runs |= {name: differentiate(run, leaves) for name, run, leaves in list_others(bench, case, subject, size, call, tokens, batch)}
    return figures | {"head": bench.time_in_turn(runs)}


def measure_kernel(bench: Bench, case: Case, subject: Subject, apart: dict[str, float]) -> dict[str, Row]:
    """Time the kernel and its alternatives on the arguments of the head's first call of it."""
    assert case.kernel is not None
    module, name = case.kernel
    kernel, calls = getattr(module, name), list[tuple[tuple[Any, ...], dict[str, Any]]]()

    def record(*arguments: Any, **options: Any) -> Any:
        calls.append((arguments, options))
        return kernel(*arguments, **options)

    with patch.object(module, name, record):
        subject.run()
    arguments, options = calls[0]
    arguments = [_detach(argument) for argument in arguments]
    leaves = [argument for argument in arguments if isinstance(argument, Tensor) and argument.requires_grad]
    runs: dict[str, Callable[[], object]] = {}
    with torch.set_grad_enabled(bool(leaves)):
        outputs = _first(kernel(*arguments, **options))
        runs["own"] = differentiate(partial(kernel, *arguments, **options), leaves, case.outputs)
        for title, build in case.alternatives:
            run = partial(build(bench), *arguments, **options)
            other, _ = attempt(run)
            apart |= {} if other is None else {title: compute_difference(_first(other), outputs)}
            runs[title] = differentiate(run, leaves, case.outputs)
        other = outputs = None
        return bench.time_in_turn(runs)


def _detach(argument: Any) -> Any:
    return argument.detach().requires_grad_(argument.requires_grad) if isinstance(argument, Tensor) else argument


def _first(results: Any) -> Tensor:
    return (results[0] if isinstance(results, tuple) else results).detach()


def list_others(
    bench: Bench, case: Case, subject: Subject, size: str, call: str, tokens: int, batch: int
) -> Iterator[tuple[str, Callable[[], Tensor], list[Tensor]]]:
    """Yield heads that compute something else: name, run, and what is differentiated."""
    for name, spec, overrides, small in case.others:
        other = Subject(bench, spec, small if bench.tiny else overrides, size, call, tokens, batch)
        yield name, other.run, other.leaves()
    _, query, key, value = subject.tensors
    attend: Any = partial(torch.nn.functional.scaled_dot_product_attention, enable_gqa=True)
    if not subject.decode:
        rows = [states.transpose(1, 2) for states in (query, key, value)]
        leaves = [tensor for tensor in (query, key, value) if tensor.requires_grad]
        yield "SDPA", lambda: attend(*rows, is_causal=not subject.shape.both_ways), leaves
        return
    for length in (24,) if bench.tiny else LENGTHS:
        pairs = [
            torch.randn(batch, states.shape[2], length, states.shape[3], device=bench.device, dtype=bench.dtype)
            for states in (key, value)
        ]
        yield f"SDPA over {length:,} pairs", partial(attend, query.transpose(1, 2), *pairs), []
