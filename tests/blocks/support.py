"""Shared helpers of the tests of blocks: shapes, random parameters and states, and loops over heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from blocks.flow import Features, Partial, Tokens
from blocks.legend import Shape
from blocks.memories.base import Memory
from blocks.memories.recurrent import Recurrent
from blocks.mixers.base import Mixer
from blocks.operation import EVERY, Call, Form, Operation, Setting
from blocks.part import Part
from blocks.reads import Read

GROUPED = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=4)
ALIKE = Shape(hidden_size=6, heads=2, key_heads=2, head_dim=4)
ONE_KEY = Shape(hidden_size=6, heads=3, key_heads=1, head_dim=4)
SHAPES = [GROUPED, ALIKE, ONE_KEY]
OF_CALL = frozenset({"tokens", "state", "in_place"})
"""What a function receives of a ``Call`` by name."""
SHAPE_NAMES = ["grouped", "alike", "one key head"]


def random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Draw standard normal numbers."""
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def started(part: Part, shape: Shape, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Return the part's initial parameters."""
    parameters = {name: torch.full(fresh.shape, float("nan"), dtype=dtype) for name, fresh in part.parameters(shape).items()}
    generator = torch.Generator().manual_seed(20)  # not the seed of the tests: the inputs would be the weights
    for name, fresh in part.parameters(shape).items():
        fresh.fill(parameters[name], generator)
    return parameters


def drawn(part: Part, shape: Shape, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Return random parameters of the part."""
    return {name: random(*fresh.shape, dtype=dtype) for name, fresh in part.parameters(shape).items()}


def empty(part: Part, shape: Shape, batch: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Return the part's state before the first token."""
    kinds = {"pairs": dtype, "state": torch.promote_types(dtype, torch.float32), "int64": torch.int64}
    return {name: torch.full((batch, *slot.shape), slot.empty, dtype=kinds[slot.dtype]) for name, slot in part.state(shape).items()}


def form_of(forms: Iterable[Form], backend: str, setting: Setting | None = None) -> Form:
    """Return the first form that runs on this backend in this setting."""
    setting = setting or Setting()
    fitting = (form for form in forms if setting.one_token or not form.decode)
    return next(form for form in fitting if form.backend in {backend, EVERY} and form.obstacle(setting) is None)


def by_backend(forms: Iterable[Form]) -> dict[str, Callable[..., Any]]:
    """Return each backend's implementation of a recurrence for any device and dtype. It uses the form for one token if there is
    one token.
    """
    forms = [form for form in forms if not form.refuses]
    return {form.backend: partial(_run, [candidate for candidate in forms if candidate.backend == form.backend]) for form in forms}


def _run(forms: list[Form], first: Tensor, *rest: Any, **options: Any) -> Any:
    one_token = first.shape[1] == 1
    fitting = next(form for form in sorted(forms, key=lambda form: not form.decode) if one_token or not form.decode)
    return fitting.run(first, *rest, **options)


def call_by_name(function: Callable[..., Any], **arguments: Any) -> Any:
    """Call a function with those of the arguments that it has parameters for."""
    return function(**{name: value for name, value in arguments.items() if name in signature(function).parameters})


def combined(read: Read, partials: Sequence[Partial]) -> Tensor:
    """Return the output of a read over partials with their own logits."""
    return call_by_name(read.combine, partial={str(index): partial for index, partial in enumerate(partials)}, weight={})


def computed(
    part: Part,
    backend: str,
    shape: Shape,
    parameters: Mapping[str, Tensor],
    tokens: Tokens,
    state: Mapping[str, Tensor],
    *,
    setting: Setting | None = None,
    place: tuple[int, int] = (0, 0),
    **inputs: Any,
) -> tuple[Any, dict[str, Tensor]]:
    """Run the part's operation on a backend. Returns its outputs by port, and its new state. inputs: tensors by the names of
    ports.
    """
    operation = part.operation(shape)
    empty_handed: dict[str, Any] = {port.name: {} for port in operation.reads if port.many}
    call, form = Call(tokens, dict(state), shape, place), form_of(operation.forms, backend, setting)
    if isinstance(part, Memory) and part.receives_rotated and "query" in inputs:
        inputs["query"] = part.rotation.rotate_tokens(inputs["query"], tokens)
    known = {"tokens": tokens, "state": dict(state), "in_place": False}
    return run_form(form, operation, parameters, call, known | empty_handed | inputs)


def run_form(
    form: Form, operation: Operation, parameters: Mapping[str, Tensor], call: Call, inputs: Mapping[str, Any]
) -> tuple[Any, dict[str, Tensor]]:
    """Run a form as a head does. Returns its outputs by port, and its new state."""
    if "call" in signature(form.run).parameters:
        return form.run(parameters, call, **{name: value for name, value in inputs.items() if name not in OF_CALL})
    results = call_by_name(form.run, **{"parameters": parameters, **inputs})
    if not operation.slots:
        return (results if len(operation.gives) > 1 else (results,)), {}
    *outputs, carried = results
    return tuple(outputs), carried


def recalled(
    part: Recurrent,
    backend: str,
    query: Tensor,
    pairs: Features,
    log_decay: Tensor | None,
    tokens: Tokens,
    state: Mapping[str, Tensor],
) -> tuple[Partial, dict[str, Tensor]]:
    """Return a recurrent memory's output for features on a backend."""
    _, state_heads, features, _ = state["state"].shape
    *_, key_heads, size = pairs.value.shape
    shape = Shape(
        hidden_size=1,
        heads=query.shape[2],
        key_heads=key_heads,
        head_dim=size,
        features=features,
        state_heads=state_heads,
        exponential="maximum" in state,
    )
    call = Call(tokens, dict(state), shape)
    return part.recall(call, query, pairs, log_decay, form_of(part.recurrences, backend))


def mixed(
    part: Mixer, backend: str, parameters: Mapping[str, Tensor], hidden: Tensor, tokens: Tokens, state: Mapping[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return a mixer's output for hidden states on a backend."""
    (output,), carried = computed(part, backend, GROUPED, parameters, tokens, state, hidden=hidden)
    return output, carried


def counted(batch: int, length: int, start: int = 0) -> Tokens:
    """Return tokens of one document per row, all of them real."""
    return Tokens(torch.arange(start, start + length).expand(batch, length))


def documents(*rows: list[int]) -> Tokens:
    """Return rows of documents of these lengths. The first document of a row continues the state."""
    position = [[place for length in row for place in range(length)] for row in rows]
    segment = [[number for number, length in enumerate(row) for _ in range(length)] for row in rows]
    return Tokens(torch.tensor(position), torch.tensor(segment))


def owner(head: int, heads: int, owners: int) -> int:
    """Return which of ``owners`` a head uses. Consecutive heads share one."""
    return next(
        owner_index
        for owner_index in range(owners)
        if head in range(owner_index * heads // owners, (owner_index + 1) * heads // owners)
    )


def close(got: Tensor, wanted: Tensor, tolerance: float = 1e-10) -> None:
    """Check that shapes and numbers are equal up to ``tolerance``, infinities have equal signs, and nothing is NaN."""
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance, check_dtype=False)


def assert_derivatives(function: Callable[..., Tensor | tuple[Tensor, ...]], tensors: Iterable[Tensor], **options: Any) -> None:
    """Check the gradients of all outputs with respect to all tensors. ``gradcheck`` skips outputs without a gradient."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    outputs = function(*leaves)
    assert all(output.requires_grad for output in (outputs if isinstance(outputs, tuple) else (outputs,)))
    assert torch.autograd.gradcheck(function, leaves, **options)


def cut(arguments: tuple[Any, ...], columns: slice, state: Tensor) -> tuple[Any, ...]:
    """Return the arguments of a recurrence for some consecutive tokens that continue from ``state``. The last two arguments are the
    documents and the state.
    """
    *inputs, segment, _ = arguments
    if segment is not None:
        segment = segment[:, columns] - (segment[:, columns.start - 1, None] if columns.start else 0)
    return *(None if tensor is None else tensor[:, columns] for tensor in inputs), segment, state


def assert_split(form: Callable[..., Any], wanted: tuple[Tensor, Tensor], arguments: tuple[Any, ...], cuts: list[int]) -> None:
    """Check that calls of ``cuts`` tokens have the outputs and the last state of one call."""
    outputs, state, at = [], arguments[-1], 0
    for length in cuts:
        output, state = form(*cut(arguments, slice(at, at + length), state))
        outputs.append(output)
        at += length
    close(torch.cat(outputs, dim=1), wanted[0])
    close(state, wanted[1])


def assert_agree(form: Callable[..., Any], definition: Callable[..., Any], problem: Any, tolerance: float = 1e-10) -> None:
    """Check that outputs, last states and the gradients of all tensors equal the definition's."""
    answers = []
    for compute in (form, definition):
        tensors = [tensor.clone().requires_grad_() for tensor in problem.tensors]
        output, state = compute(*problem.arguments(tensors))
        loss = output.square().mean() + state.square().mean()
        answers.append((output, state, *torch.autograd.grad(loss, tensors)))
    for got, wanted in zip(*answers, strict=True):
        close(got, wanted, tolerance)
