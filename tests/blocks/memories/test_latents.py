"""Latents compute Latte's sums as in the paper, with all T × T × L terms, causal (definition 2) and bidirectional (definition
1).
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from blocks.flow import Partial, Tokens
from blocks.legend import Shape
from blocks.memories.latents import Latents
from blocks.memories.window import Window
from blocks.operation import Kind, State
from blocks.part import Parameters
from blocks.reads import Mixture
from tests.blocks.memories.latte import definition
from tests.blocks.support import (
    ALIKE,
    GROUPED,
    ONE_KEY,
    SHAPE_NAMES,
    SHAPES,
    close,
    combined,
    computed,
    counted,
    documents,
    drawn,
    empty,
    random,
)

FORMS = ["reference", "torch"]
PART = Latents(size=12)


def inputs_of(shape: Shape, length: int, batch: int = 2, size: float = 1.0) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Draw parameters, the inputs of the logits, and values. ``size``: the scale of the key logits."""
    parameters = drawn(PART, shape)
    parameters["key"] = size * parameters["key"] / math.sqrt(shape.hidden_size)
    return parameters, random(batch, length, shape.hidden_size), random(batch, length, shape.key_heads, shape.head_dim)


def recalled(
    parameters: Parameters, shape: Shape, inputs: Tensor, value: Tensor, tokens: Tokens, form: str, state: State | None = None
) -> tuple[Partial, State]:
    state = {} if shape.both_ways else state or empty(PART, shape, inputs.shape[0], inputs.dtype)
    (partial,), state = computed(PART, form, shape, parameters, tokens, state, hidden=inputs, value=value)
    return partial, state


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1.0, 50.0])
@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
def test_outputs_and_weights_match_definition_2(shape: Shape, size: float, form: str) -> None:
    """Causal Latte also works with fewer key heads than heads. The weight is log Σ_l exp(q_tl), and there is no mass."""
    parameters, inputs, value = inputs_of(shape, 11, size=size)
    partial, _ = recalled(parameters, shape, inputs, value, counted(2, 11), form)
    output, mass = definition(parameters, shape, inputs, value, counted(2, 11), causal=True)
    close(partial.output, output)
    assert partial.logit is not None
    close(partial.logit, mass)
    assert partial.lse is None


@pytest.mark.parametrize("form", FORMS)
def test_gradients_match_those_of_definition_2(form: str) -> None:
    """Gradients of outputs and weights with respect to parameters, inputs and values match for two documents."""
    parameters, inputs, value = inputs_of(GROUPED, 8, size=3.0)
    tokens, weights = documents([5, 3], [2, 6]), random(2, 8, 4, 4)
    tensors = [tensor.requires_grad_() for tensor in (*parameters.values(), inputs, value)]
    partial, _ = recalled(parameters, GROUPED, inputs, value, tokens, form)
    assert partial.logit is not None
    got = torch.autograd.grad((weights * partial.output).sum() + partial.logit.square().sum(), tensors)
    output, mass = definition(parameters, GROUPED, inputs, value, tokens, causal=True)
    wanted = torch.autograd.grad((weights * output).sum() + mass.square().sum(), tensors)
    for mine, theirs in zip(got, wanted, strict=True):
        close(mine, theirs)


def test_each_form_continues_from_the_state_of_the_other_form() -> None:
    """Each form continues from the other form's state, with the same outputs and the same gradients into the call before."""
    parameters, inputs, value = inputs_of(GROUPED, 9, size=20.0)
    tensors = [tensor.requires_grad_() for tensor in (*parameters.values(), inputs, value)]
    wanted, _ = definition(parameters, GROUPED, inputs, value, counted(2, 9), causal=True)
    weights = random(*wanted.shape)
    slopes = torch.autograd.grad((weights * wanted).sum(), tensors)
    for first, second in (FORMS, reversed(FORMS)):
        early, state = recalled(parameters, GROUPED, inputs[:, :4], value[:, :4], counted(2, 4), first)
        late, _ = recalled(parameters, GROUPED, inputs[:, 4:], value[:, 4:], counted(2, 5, start=4), second, state)
        output = torch.cat((early.output, late.output), dim=1)
        close(output, wanted)
        for mine, theirs in zip(torch.autograd.grad((weights * output).sum(), tensors), slopes, strict=True):
            close(mine, theirs)


@pytest.mark.parametrize("form", FORMS)
def test_constant_key_logits_are_cumulative_averages(form: str) -> None:
    parameters, inputs, value = inputs_of(ALIKE, 20)
    parameters["key"] = torch.ones_like(parameters["key"])
    inputs[..., -1] = 7 - inputs[..., :-1].sum(-1)
    partial, state = recalled(parameters, ALIKE, inputs, value, counted(2, 20), form)
    close(partial.output, value.cumsum(1) / torch.arange(1, 21)[:, None, None])
    close(state["state"], value.mean(1)[:, :, None].expand(-1, -1, 6, -1))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_and_gradients_are_finite_at_logit_jumps_of_500(dtype: torch.dtype, form: str) -> None:
    """Outputs and gradients are finite and right if key logits jump by ±500. The exponentials of eq. 6 would overflow."""
    parameters, inputs, value = inputs_of(GROUPED, 150)
    jumps = 500 * torch.randint(-1, 2, (2, 150)).double()
    parameters["key"][:, 0], inputs[..., 0] = 1.0, jumps
    parameters["query"][:, 0] = 0
    # The same numbers: float32's own rounding of ±500 is 3e-5 by itself.
    tensors = [tensor.to(dtype).requires_grad_() for tensor in (*parameters.values(), inputs, value)]
    rounded = dict(zip(parameters, tensors, strict=False))
    partial, state = recalled(rounded, GROUPED, tensors[-2], tensors[-1], counted(2, 150), form)
    exact = {name: tensor.double() for name, tensor in rounded.items()}
    wanted, _ = definition(exact, GROUPED, tensors[-2].double(), tensors[-1].double(), counted(2, 150), causal=True)
    close(partial.output.double(), wanted, 3e-4 if dtype == torch.float32 else 1e-10)
    assert all(held.isfinite().all() for held in state.values())
    for gradient in torch.autograd.grad(partial.output.square().sum(), tensors):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pieces", [[1] * 12, [5, 7], [11, 1], [1, 2, 3, 1, 5]], ids=str)
def test_any_split_equals_one_call_and_documents_are_separate(pieces: list[int], form: str) -> None:
    """A row's first document continues the state if its segment is 0, and starts empty if its segment is 1."""
    parameters, inputs, value = inputs_of(GROUPED, 12, size=30.0)
    tokens = documents([12], [4, 1, 7])
    assert tokens.segment is not None
    whole = Tokens(tokens.position, tokens.segment + torch.tensor([[0], [1]]))
    wanted, _ = definition(parameters, GROUPED, inputs, value, whole, causal=True)
    _, last = recalled(parameters, GROUPED, inputs, value, whole, form)
    # Something older, that the second row must not see and the first one does not have.
    _, state = recalled(parameters, GROUPED, inputs[:, :3], value[:, :3], counted(2, 3), form)
    state = {name: torch.stack((empty(PART, GROUPED, 1)[name][0], held[1])) for name, held in state.items()}
    outputs, start = [], 0
    for length in pieces:
        columns = slice(start, start + length)
        partial, state = recalled(parameters, GROUPED, inputs[:, columns], value[:, columns], whole.cut(columns), form, state)
        outputs.append(partial.output)
        start += length
    close(torch.cat(outputs, dim=1), wanted)
    for name, held in state.items():
        close(held, last[name])


@pytest.mark.parametrize("form", FORMS)
def test_padding_changes_nothing(form: str) -> None:
    parameters, inputs, value = inputs_of(GROUPED, 9, batch=3)
    lengths = [9, 4, 0]
    valid = torch.stack([torch.arange(9) < length for length in lengths])
    tokens = Tokens(torch.arange(9).expand(3, 9), None, valid)
    _, held = recalled(parameters, GROUPED, inputs[:, :5], value[:, :5], counted(3, 5), form)
    partial, after = recalled(parameters, GROUPED, inputs, value, tokens, form, held)
    assert partial.output.isfinite().all()
    for row, length in enumerate(lengths):
        own = {name: tensor[row, None] for name, tensor in held.items()}
        if length:
            single_row = slice(row, row + 1)
            alone, own = recalled(
                parameters, GROUPED, inputs[single_row, :length], value[single_row, :length], counted(1, length), form, own
            )
            close(partial.output[single_row, :length], alone.output)
        for name, tensor in own.items():
            close(after[name][row, None], tensor, 1e-14)


@pytest.mark.parametrize("form", FORMS)
def test_padding_alone_has_zero_output(form: str) -> None:
    parameters, inputs, value = inputs_of(GROUPED, 3)
    tokens = Tokens(torch.zeros(2, 3, dtype=torch.int64), None, torch.zeros(2, 3, dtype=torch.bool))
    partial, state = recalled(parameters, GROUPED, inputs.requires_grad_(), value, tokens, form)
    assert not partial.output.any()
    assert {name: held.unique().tolist() for name, held in state.items()} == {"state": [0], "maximum": [-math.inf], "total": [0]}
    assert torch.autograd.grad(partial.output.sum(), inputs)[0].isfinite().all()
    both_ways, _ = recalled(parameters, replace(GROUPED, both_ways=True), inputs, value, tokens, form)
    assert not both_ways.output.any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [None, [[3, 6], [9]], [[1, 1, 7], [4, 5]]], ids=["whole", "two", "three"])
@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
def test_bidirectional_outputs_and_gradients_match_definition_1(shape: Shape, rows: list[list[int]] | None, form: str) -> None:
    """Bidirectional latents see every token of the document except padding. Gradients match, too."""
    parameters, inputs, value = inputs_of(shape, 9, size=10.0)
    tokens = documents(*rows) if rows else counted(2, 9)
    valid = torch.arange(9) < torch.tensor([[9], [7]])
    tokens, weights = Tokens(tokens.position, tokens.segment, valid), random(2, 9, shape.heads, 4) * valid[..., None, None]
    tensors = [tensor.requires_grad_() for tensor in (*parameters.values(), inputs, value)]
    partial, _ = recalled(parameters, replace(shape, both_ways=True), inputs, value, tokens, form)
    output, mass = definition(parameters, shape, inputs, value, tokens, causal=False)
    close(partial.output[valid], output[valid])
    assert partial.logit is not None
    close(partial.logit, mass)
    got = torch.autograd.grad((weights * partial.output).sum(), tensors)
    for mine, theirs in zip(got, torch.autograd.grad((weights * output).sum(), tensors), strict=True):
        close(mine, theirs)


def test_softmax_on_both_sides_matches_equation_7() -> None:
    """Linear attention with softmax on both sides is softmax_L(Q) softmax_T(K) V."""
    parameters, inputs, value = inputs_of(ONE_KEY, 7, size=500.0)
    partial, _ = recalled(parameters, replace(ONE_KEY, both_ways=True), inputs, value, counted(2, 7), "torch")
    for head in range(3):
        query, key = (inputs @ parameters[name][4 * head : 4 * head + 4].T for name in ("query", "key"))
        close(partial.output[:, :, head], query.softmax(2) @ key.softmax(1).mT @ value[:, :, 0])


@pytest.mark.parametrize("form", FORMS)
def test_mixture_with_a_window_matches_definition_3(form: str) -> None:
    """In a mixture with a window of logit b, p(l|t) is one softmax over the logits of the window and the latents."""
    parameters, inputs, value = inputs_of(GROUPED, 8)
    latents, _ = recalled(parameters, GROUPED, inputs, value, counted(2, 8), form)
    window, share = Partial(random(2, 8, 4, 4), random(2, 8, 4), random(2, 8, 4)), torch.empty(2, 8, 4, 4, dtype=torch.float64)
    got = combined(Mixture(), [window, latents])
    for head in range(4):
        query = inputs @ parameters["query"][3 * head : 3 * head + 3].T
        assert window.logit is not None
        share[:, :, head] = torch.cat((window.logit[:, :, head, None], query), dim=-1).softmax(-1)
    within, _ = definition(parameters, GROUPED, inputs, value, counted(2, 8), causal=True)
    close(got, share[..., :1] * window.output + share[..., 1:].sum(-1, keepdim=True) * within)


def test_float32_matches_float64_over_131072_tokens() -> None:
    shape, length = Shape(hidden_size=2, heads=1, key_heads=1, head_dim=2), 131_072
    part = Latents(size=2)
    parameters, inputs, value = drawn(part, shape), random(1, length, 2), random(1, length, 1, 2)
    half = [tensor.float() for tensor in (*parameters.values(), inputs, value)]
    rounded, state, outputs = dict(zip(parameters, half, strict=False)), empty(part, shape, 1, torch.float32), []
    for start, end in ((0, 100_000), (100_000, length)):
        tokens = counted(1, end - start, start)
        piece = {"hidden": half[-2][:, start:end], "value": half[-1][:, start:end]}
        (partial,), state = computed(part, "torch", shape, rounded, tokens, state, **piece)
        outputs.append(partial.output)
    logits = half[-2].double() @ half[1].double().T
    shares = (half[-2].double() @ half[0].double().T).softmax(-1)
    weights = (logits - logits.amax(1, keepdim=True)).exp()
    means = (weights[..., None] * half[-1].double()).cumsum(1) / weights.cumsum(1)[..., None]
    close(torch.cat(outputs, dim=1)[:, :, 0].double(), (shares[..., None] * means).sum(2), 1e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_state_dtype_and_bytes_are_as_declared(dtype: torch.dtype, form: str) -> None:
    """The state is never in half precision. The output has the dtype of the values."""
    kind = torch.promote_types(dtype, torch.float32)
    parameters, inputs, value = inputs_of(GROUPED, 70)
    parameters, inputs, value = (
        {name: parameter.to(dtype) for name, parameter in parameters.items()},
        inputs.to(dtype),
        value.to(dtype),
    )
    before = empty(PART, GROUPED, 2, dtype)
    partial, after = recalled(parameters, GROUPED, inputs, value, counted(2, 70), form)
    assert {name: (held.shape, held.dtype) for name, held in after.items()} == {
        name: (held.shape, held.dtype) for name, held in before.items()
    }
    assert partial.output.dtype == dtype
    assert partial.logit is not None
    assert partial.logit.dtype == kind
    exact = {name: parameter.double() for name, parameter in parameters.items()}
    wanted, _ = definition(exact, GROUPED, inputs.double(), value.double(), counted(2, 70), causal=True)
    close(partial.output.double(), wanted, {torch.bfloat16: 4e-3, torch.float32: 1e-5, torch.float64: 1e-10}[dtype])
    # 4 heads of 3 latents: a mean of 4 numbers, a maximum and a sum each.
    held = sum(tensor[0].nbytes for tensor in after.values())
    slots = PART.state(GROUPED).values()
    assert held == sum(slot.bytes(2, max(4, dtype.itemsize)) for slot in slots) == 12 * (4 + 2) * kind.itemsize


def test_parameters_and_operation_count_equal_a_count_by_hand() -> None:
    shape = Shape(hidden_size=50, heads=4, key_heads=2, head_dim=4)
    part = Latents()
    assert {name: fresh.shape for name, fresh in part.parameters(shape).items()} == {"query": (128, 50), "key": (128, 50)}
    for fresh in part.parameters(shape).values():
        tensor = torch.empty(fresh.shape)
        fresh.fill(tensor, torch.Generator().manual_seed(0))
        assert tensor.std().item() == pytest.approx(50**-0.5, rel=0.05)
    # Two logits a latent; each number of its state decays (one product), takes a value and is read (a multiply-add each).
    assert part.flops(shape, 999) == 2 * 2 * 128 * 50 + 5 * 128 * 4
    # In chunks of 64, or of the whole prefill: the pairs of the chunk by their latents and values, beside logits and state.
    for own, tokens, seen in ((shape, 999, 64), (shape, 10, 10), (replace(shape, both_ways=True), 999, 0)):  # both ways no chunks
        assert part.prefill_flops(own, tokens) == 2 * seen * 4 * (32 + 4) + 2 * 2 * 128 * 50 + 4 * 128 * 4


def test_invalid_options_are_refused() -> None:
    assert Latents(size=12).misfit(GROUPED) is None
    problem = Latents(size=10).misfit(GROUPED)
    assert problem is not None
    assert "10 latents do not split evenly over 4 heads" in problem[0]
    assert "12" in problem[0]
    for weight in ("learned", 0.3):
        with pytest.raises(ValidationError, match="remove `weight`"):
            Latents.model_validate({"weight": weight})
    assert Latents.model_validate({"weight": None}) == Latents()
    assert not Latents().has_mass()
    assert Latents.reads is Kind.HIDDEN is not Window.reads
    for size in (0, -1):
        with pytest.raises(ValidationError):
            Latents(size=size)
