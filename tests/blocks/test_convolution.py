"""The convolution is its sum over taps for every choice of filters, starts as the identity, and is the same in any split."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from blocks.convolution import Convolution
from blocks.flow import Tokens
from blocks.legend import Shape
from blocks.taps import filter_inputs, filter_step
from tests.blocks.support import (
    GROUPED,
    SHAPE_NAMES,
    SHAPES,
    assert_derivatives,
    close,
    counted,
    documents,
    drawn,
    empty,
    owner,
    random,
    started,
)
from tests.laws.cases import SMALL, build_head, complete, run
from tests.laws.cases import inputs as law_inputs

CHOICES = [
    Convolution(kernel=3, inputs=inputs, share=share, per=per)
    for inputs, share, per in itertools.product([("q",), ("k",), ("q", "k")], ["none", "qk"], ["query_head", "key_head"])
    if len(inputs) == 2 or (share == "none" and (per == "query_head" or inputs == ("k",)))
]


def by_taps(inputs: Tensor, weight: Tensor, documents_of: Tensor, heads: int, kernel: int) -> Tensor:
    """Compute Σ_δ w_δ ⊙ x_{t-δ} within a document for one row ``T h D``."""
    output = torch.zeros(inputs.shape[0], heads, inputs.shape[2], dtype=inputs.dtype)
    for t, head in itertools.product(range(inputs.shape[0]), range(heads)):
        taps = weight[owner(head, heads, weight.shape[0])]
        for back in range(kernel):
            if t >= back and documents_of[t - back] == documents_of[t]:
                output[t, head] += taps[:, kernel - 1 - back] * inputs[t - back, owner(head, heads, inputs.shape[1])]
    return output


def wanted(part: Convolution, shape: Shape, parameters: dict[str, Tensor], query: Tensor, key: Tensor, segment: Tensor):
    key_filters = parameters.get("weight", parameters.get("key"))
    query_filters = parameters.get("weight", parameters.get("query"))
    if "q" in part.inputs:
        query = torch.stack([by_taps(row, query_filters, own, shape.heads, part.kernel) for row, own in zip(query, segment)])  # noqa: B905
    if "k" in part.inputs:
        heads = shape.heads if part.per == "query_head" else shape.key_heads
        key = torch.stack([by_taps(row, key_filters, own, heads, part.kernel) for row, own in zip(key, segment)])  # noqa: B905
    return query, key


def convolve(
    part: Convolution,
    parameters: dict[str, Tensor],
    query: Tensor,
    key: Tensor,
    tokens: Tokens,
    state: dict[str, Tensor],
    *how: Any,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    outputs, carried = part.convolve(parameters, {"query": query, "key": key}, tokens, state, *how)
    return outputs["query"], outputs["key"], carried


def inputs(shape: Shape, batch: int, length: int) -> tuple[Tensor, Tensor]:
    return random(batch, length, shape.heads, shape.head_dim), random(batch, length, shape.key_heads, shape.head_dim)


@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
@pytest.mark.parametrize("part", CHOICES, ids=lambda part: f"{''.join(part.inputs)} {part.share} {part.per}")
def test_convolution_equals_the_sum_over_taps(part: Convolution, shape: Shape) -> None:
    parameters, (query, key) = drawn(part, shape), inputs(shape, 2, 7)
    tokens = documents([3, 4], [7])
    got_query, got_key, _ = convolve(part, parameters, query, key, tokens, empty(part, shape, 2))
    want_query, want_key = wanted(part, shape, parameters, query, key, tokens.segment)
    close(got_query, want_query)
    close(got_key, want_key)
    assert got_key.shape[2] == part.key_heads(shape)


@pytest.mark.parametrize("kernel", [1, 2, 4, 9])
def test_convolution_starts_as_the_identity(kernel: int) -> None:
    part = Convolution(kernel=kernel)
    query, key = inputs(GROUPED, 1, 6)
    got_query, got_key, _ = convolve(part, started(part, GROUPED), query, key, counted(1, 6), empty(part, GROUPED, 1))
    assert torch.equal(got_query, query)
    assert torch.equal(got_key, key.repeat_interleave(2, dim=2))


def test_filters_have_the_shape_of_their_owners() -> None:
    def shapes(**choice: object) -> dict[str, tuple[int, ...]]:
        return {name: fresh.shape for name, fresh in Convolution.model_validate(choice).parameters(GROUPED).items()}

    assert shapes() == {"query": (4, 4, 4), "key": (4, 4, 4)}
    assert shapes(kernel=2, per="key_head") == {"query": (4, 4, 2), "key": (2, 4, 2)}
    assert shapes(inputs=["k"], per="key_head") == {"key": (2, 4, 4)}
    assert shapes(inputs=["q"]) == {"query": (4, 4, 4)}
    assert shapes(share="qk") == {"weight": (4, 4, 4)}
    assert shapes(share="qk", per="key_head") == {"weight": (2, 4, 4)}


@pytest.mark.parametrize("kernel", [1, 2, 5])
@pytest.mark.parametrize("cuts", [[1] * 9, [4, 5], [2, 1, 6]], ids=str)
def test_the_state_holds_the_last_inputs_for_the_next_call(kernel: int, cuts: list[int]) -> None:
    part = Convolution(kernel=kernel, per="key_head")
    parameters, (query, key) = drawn(part, GROUPED), inputs(GROUPED, 2, 9)
    whole = convolve(part, parameters, query, key, counted(2, 9), empty(part, GROUPED, 2))
    state, at, pieces = empty(part, GROUPED, 2), 0, []
    for length in cuts:
        piece = slice(at, at + length)
        taps = filter_step if length == 1 else filter_inputs
        *outputs, state = convolve(part, parameters, query[:, piece], key[:, piece], counted(2, length, at), state, taps)
        pieces.append(outputs)
        at += length
    for index in range(2):
        close(torch.cat([piece[index] for piece in pieces], dim=1), whole[index])
    for name, slot in part.state(GROUPED).items():
        assert state[name].shape == (2, *slot.shape)
        # Raw inputs, newest last; zeros before the first token.
        raw = torch.cat((torch.zeros(2, kernel, *slot.shape[1:]), query if name == "query" else key), dim=1)
        assert torch.equal(state[name], raw[:, raw.shape[1] - (kernel - 1) :])


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("choice", [{"inputs": ("v",)}, {"inputs": ("q", "k", "v"), "share": "qk"}], ids=["v", "q, k, v"])
def test_values_have_separate_filters_and_every_input_the_activation(choice: dict[str, Any], activation: Any) -> None:
    part, tokens = Convolution(kernel=3, activation=activation, **choice), documents([3, 4], [7])
    states = {name: random(2, 7, heads, 4) for name, heads in {"query": 4, "key": 2, "value": 2}.items()}
    parameters = drawn(part, GROUPED)
    assert parameters["value"].shape == (2, 4, 3)
    outputs, carried = part.convolve(parameters, states, tokens, empty(part, GROUPED, 2))
    assert tokens.segment is not None
    for name, output in outputs.items():
        if name not in carried:
            assert output is states[name]
            continue
        weight, heads = parameters.get(name, parameters.get("weight")), output.shape[2]
        assert weight is not None
        sums = torch.stack([by_taps(row, weight, own, heads, 3) for row, own in zip(states[name], tokens.segment, strict=True)])
        close(output, sums / (1 + (-sums).exp()) if activation == "silu" else sums)
    assert [tensor.shape for tensor in carried.values()] == [(2, 2, states[name].shape[2], 4) for name in carried]


def test_memories_store_convolved_values_and_exact_memories_raw_keys() -> None:
    """A full memory of convolved values is softmax over the raw keys of the filtered values."""
    head = {
        "position": "none",
        "conv": {"inputs": ["v"], "kernel": 2},
        "memory": ["full", "state"],
        "flow": "parallel",
        "read": "sum",
    }
    shape = SMALL.shape(4)
    built_head = build_head(complete(head | {"feature_map": "elu"}), shape)
    data = law_inputs(shape, 1, 9)
    with torch.no_grad():
        (taps,) = (tensor for name, tensor in built_head.named_parameters() if name == "conv.value")
        taps[..., 1], taps[..., 0] = 1.0, 0.5
    earlier = torch.nn.functional.pad(data.value, (0, 0, 0, 0, 1, 0))[:, :-1]
    plain = build_head(complete({name: value for name, value in (head | {"feature_map": "elu"}).items() if name != "conv"}), shape)
    already = dataclasses.replace(data, value=data.value + 0.5 * earlier)
    close(run(built_head, data)[0], run(plain, already)[0])


def test_other_documents_and_padding_change_nothing() -> None:
    """The first call has rows with 4, 2 and 0 real tokens, the second call has 3 more. In the second call rows start a document
    at different places or not at all.
    """
    part = Convolution(kernel=4)
    parameters, (query, key) = drawn(part, GROUPED), inputs(GROUPED, 3, 7)
    real, starts = [4, 2, 0], [0, 1, 9]
    segment = torch.tensor([[0] * 4 + [1] * 3, [0] * 3 + [1] * 4, [0] * 7])
    first = Tokens(torch.zeros(3, 4, dtype=torch.int64), None, torch.arange(4) < torch.tensor(real)[:, None])
    second = Tokens(torch.zeros(3, 3, dtype=torch.int64), torch.stack([(torch.arange(3) >= at).long() for at in starts]))
    gathered = [torch.stack([torch.arange(at, at + 3) for at in real]), torch.arange(4).expand(3, 4)]

    def taken(states: Tensor, index: Tensor) -> Tensor:
        return torch.stack([row[own] for row, own in zip(states, index, strict=True)])

    _, _, state = convolve(part, parameters, query[:, :4], key[:, :4], first, empty(part, GROUPED, 3))
    got_query, got_key, _ = convolve(part, parameters, taken(query, gathered[0]), taken(key, gathered[0]), second, state)
    want = wanted(part, GROUPED, parameters, query, key, segment)
    close(got_query, taken(want[0], gathered[0]))
    close(got_key, taken(want[1], gathered[0]))


def test_a_document_that_starts_at_the_first_token_does_not_see_the_state() -> None:
    part = Convolution(kernel=3)
    parameters, (query, key) = drawn(part, GROUPED), inputs(GROUPED, 1, 4)
    _, _, state = convolve(part, parameters, query, key, counted(1, 4), empty(part, GROUPED, 1))
    anew = Tokens(torch.arange(4)[None], torch.ones(1, 4, dtype=torch.int64))
    *got, left = convolve(part, parameters, query, key, anew, state)
    *want, wanted_left = convolve(part, parameters, query, key, counted(1, 4), empty(part, GROUPED, 1))
    for mine, other in zip(got, want, strict=True):
        close(mine, other)
    assert all(torch.equal(left[name], wanted_left[name]) for name in left)


def test_after_a_document_of_one_token_the_state_holds_only_this_token() -> None:
    part = Convolution(kernel=4, inputs=("k",))
    query, key = inputs(GROUPED, 1, 5)
    _, _, state = convolve(part, drawn(part, GROUPED), query, key, documents([4, 1]), empty(part, GROUPED, 1))
    assert torch.equal(state["key"], torch.cat((torch.zeros(1, 2, 2, 4), key[:, 4:]), dim=1))


def test_gradients_reach_filters_and_inputs() -> None:
    part = Convolution(kernel=2, per="key_head")
    tensors = [*inputs(GROUPED, 1, 3), *drawn(part, GROUPED).values()]

    def run(query: Tensor, key: Tensor, query_filter: Tensor, key_filter: Tensor) -> tuple[Tensor, Tensor]:
        parameters = {"query": query_filter, "key": key_filter}
        return convolve(part, parameters, query, key, documents([2, 1]), empty(part, GROUPED, 1))[:2]

    assert_derivatives(run, tensors)


def test_inputs_are_unique_and_in_any_order() -> None:
    assert Convolution(inputs=("k", "q")) == Convolution(inputs=("q", "k"))
    assert Convolution(inputs=("v", "k", "q")).inputs == ("q", "k", "v")
    for wrong in ((), ("q", "q"), ("x",)):
        with pytest.raises(ValidationError):
            Convolution.model_validate({"inputs": wrong})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": ("q", "v"), "share": "qk"}, "`inputs` has q and v: remove `share`"),
        ({"inputs": ("v",), "per": "key_head"}, "`inputs` has v alone: remove `per`"),
        ({"inputs": ("q",), "share": "qk"}, "`inputs` has q alone: remove `share`"),
        ({"inputs": ("k",), "share": "qk"}, "`inputs` has k alone: remove `share`"),
        ({"inputs": ("q",), "per": "key_head"}, "`inputs` has q alone: remove `per`"),
    ],
)
def test_an_option_without_an_effect_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Convolution.model_validate(options)
    assert Convolution.model_validate(options | {"inputs": ("q", "k")})


def test_operation_count_equals_a_count_by_hand() -> None:
    # 4 taps, a multiply-add each, for 4 numbers of 4 query heads, and of 4 or 2 heads of keys.
    assert Convolution().flops(GROUPED, 100) == 2 * 4 * 4 * (4 + 4)
    assert Convolution(per="key_head").flops(GROUPED, 100) == 2 * 4 * 4 * (4 + 2)
    assert Convolution(inputs=("k",)).flops(GROUPED, 100) == 2 * 4 * 4 * 4
    assert Convolution(inputs=("v",)).flops(GROUPED, 100) == 2 * 4 * 4 * 2
