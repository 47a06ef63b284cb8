"""The delta rule equals its loop: the value stored under a key is removed before the new value is added, and orthonormal keys
return all values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from blocks.feature_maps.base import UnitLength
from blocks.feature_maps.exponential import Exponential
from blocks.feature_maps.identity import Identity
from blocks.flow import Features, Tokens
from blocks.legend import Shape
from blocks.memories.delta import Delta
from tests.blocks.support import close, counted, empty, owner, random, recalled

SHAPE = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=3, features=5, state_heads=4)
SHARED = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=3, features=5, state_heads=2)
FORMS = ["reference", "torch"]
LENGTH = 9


@dataclass
class Given:
    """The inputs of the memory: unnormalised queries and keys, values, rates, a decay, and which tokens have a pair."""

    shape: Shape
    query: Tensor
    key: Tensor
    value: Tensor
    rate: Tensor
    decay: Tensor | None
    present: Tensor
    tokens: Tokens

    def cut(self, columns: slice) -> Given:
        decay = None if self.decay is None else self.decay[:, columns]
        along = (self.query, self.key, self.value, self.rate)
        query, key, value, rate = (states[:, columns] for states in along)
        return Given(self.shape, query, key, value, rate, decay, self.present[:, columns], self.tokens.cut(columns))

    def recalled(self, form: str, state: dict[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Return the memory's output and its new matrix."""
        query, key = Identity().map({}, self.query, self.key, scale=UnitLength())
        pairs = Features(key, self.value, self.present, rate=self.rate)
        state = state or empty(Delta(), self.shape, len(self.value), self.value.dtype)
        partial, after = recalled(Delta(), form, query, pairs, self.decay, self.tokens, state)
        assert partial.lse is None
        return partial.output, after["state"]

    def by_hand(self) -> tuple[Tensor, Tensor]:
        """Compute S = α (I - β u uᵀ) S + β u vᵀ token by token for each row and head, or α S if a token has no pair."""
        outputs, matrices = torch.zeros_like(self.query[..., : self.value.shape[3]]), []
        heads, state_heads = self.query.shape[2], self.shape.state_heads
        for row in range(len(self.value)):
            held = {}
            for own in range(state_heads):
                matrix = torch.zeros(5, 3, dtype=torch.float64)
                for t in range(self.value.shape[1]):
                    if self.tokens.segment is not None and t and self.tokens.segment[row, t] != self.tokens.segment[row, t - 1]:
                        matrix = torch.zeros_like(matrix)
                    elif self.decay is not None:
                        matrix = self.decay[row, t, owner(own, state_heads, self.decay.shape[2])].exp() * matrix
                    if self.present[row, t]:
                        key = self.key[row, t, owner(own, state_heads, self.key.shape[2])]
                        unit = key / key.square().sum().sqrt()
                        value = self.value[row, t, owner(own, state_heads, self.value.shape[2])]
                        rate = self.rate[row, t, owner(own, state_heads, self.rate.shape[2])]
                        matrix = (torch.eye(5) - rate * torch.outer(unit, unit)) @ matrix + rate * torch.outer(unit, value)
                    for head in (head for head in range(heads) if owner(head, heads, state_heads) == own):
                        query = self.query[row, t, head]
                        outputs[row, t, head] = query @ matrix / query.square().sum().sqrt()
                held[own] = matrix
            matrices.append(torch.stack([held[own] for own in range(state_heads)]))
        return outputs, torch.stack(matrices)


def drawn(shape: Shape, gated: bool, *, key_heads: int = 0, rates: int = 0, segment: bool = False, length: int = LENGTH) -> Given:
    """Draw random inputs of two rows in which some tokens have no pair."""
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2], [0, 0, 0, 0, 0, 0, 1, 1, 1]]) if segment else None
    return Given(
        shape,
        random(2, length, shape.heads, 5),
        3 * random(2, length, key_heads or shape.state_heads, 5),
        random(2, length, shape.key_heads, 3),
        2 * torch.rand(2, length, rates or shape.state_heads, dtype=torch.float64),
        -torch.rand(2, length, shape.state_heads, dtype=torch.float64) if gated else None,
        torch.rand(2, length) < 0.8,
        Tokens(torch.arange(length).expand(2, -1), documents),
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("segment", [False, True], ids=["one document", "documents"])
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize(
    "heads", [(SHAPE, 4, 4), (SHAPE, 2, 1), (SHARED, 2, 2), (SHARED, 2, 1)], ids=["own", "keys", "shared", "rate"]
)
def test_outputs_and_state_equal_the_loop(heads: tuple[Shape, int, int], gated: bool, segment: bool, form: str) -> None:
    shape, key_heads, rates = heads
    inputs = drawn(shape, gated, key_heads=key_heads, rates=rates, segment=segment)
    for got, wanted in zip(inputs.recalled(form), inputs.by_hand(), strict=True):
        close(got, wanted)


@pytest.mark.parametrize("form", FORMS)
def test_scaled_outputs_are_divided_by_the_root_of_the_features(form: str) -> None:
    """The scale holds for several tokens, for one token, and for the predictions that a cache above reads."""
    inputs = drawn(SHAPE, gated=True)
    query, key = Identity().map({}, inputs.query, inputs.key, scale=UnitLength())
    pairs = Features(key, inputs.value, inputs.present, rate=inputs.rate)
    state = empty(Delta(), SHAPE, 2, torch.float64)
    wanted, after = recalled(Delta(), form, query, pairs, inputs.decay, inputs.tokens, state)
    actual, scaled = recalled(Delta(scale="root"), form, query, pairs, inputs.decay, inputs.tokens, state)
    close(actual.output, wanted.output / math.sqrt(5))
    close(scaled["state"], after["state"])
    prediction_keys = random(2, 3, 4, 5)
    close(Delta(scale="root").predict(prediction_keys, after), Delta().predict(prediction_keys, after) / math.sqrt(5))


@pytest.mark.parametrize("size", [1e-4, 1e-2, 1.0])
def test_epsilon_is_added_to_lengths_of_features(size: float) -> None:
    """An epsilon may be added to the lengths of features, and of features given as logarithms."""
    states = size * random(2, 3, 4, 5)
    wanted = states / (states.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    close(Identity().map({}, states, states, scale=UnitLength(1e-6))[0], wanted)
    assert Delta(epsilon=1e-6).features_as == UnitLength(1e-6)
    features = states.abs().log().exp()
    wanted = features / (features.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    close(
        Exponential(linear=False, two_sided=False).map({}, states.abs().log(), states.abs().log(), scale=UnitLength(1e-6))[0],
        wanted,
    )


def test_zero_features_write_and_read_nothing_for_any_epsilon() -> None:
    nothing = torch.zeros(1, 1, 4, 5, dtype=torch.float64)
    for epsilon in (0.0, 1e-6):
        assert not Identity().map({}, nothing, nothing, scale=UnitLength(epsilon))[0].any()
    assert (
        Exponential(linear=False, two_sided=False).map({}, nothing - 800, nothing - 800, scale=UnitLength(1e-6))[0].isfinite().all()
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
def test_any_split_equals_one_call(gated: bool, form: str) -> None:
    inputs = drawn(SHAPE, gated, segment=True)
    wanted, last = inputs.recalled(form)
    for bounds in ([0, 4, 9], [0, 1, 2, 8, 9], list(range(10))):
        outputs, state = [], None
        for start, end in pairwise(bounds):
            output, matrix = inputs.cut(slice(start, end)).recalled(form, state)
            state = {"state": matrix}
            outputs.append(output)
        close(torch.cat(outputs, dim=1), wanted)
        assert state is not None
        close(state["state"], last)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_equal_those_of_the_loop(form: str) -> None:
    inputs = drawn(SHAPE, gated=True, segment=True)
    assert inputs.decay is not None
    leaves = [tensor.requires_grad_() for tensor in (inputs.query, inputs.key, inputs.value, inputs.rate, inputs.decay)]
    answers = []
    for output, matrix in (inputs.by_hand(), inputs.recalled(form)):
        answers.append(torch.autograd.grad(output.square().sum() + matrix.sin().sum(), leaves))
    for wanted, got in zip(*answers, strict=True):
        close(got, wanted)
        assert got.any()


def stored(keys: Tensor, values: Tensor, form: str, rate: float = 1.0) -> tuple[dict[str, Tensor], Shape]:
    """Return one head's state after these pairs, written at one rate."""
    count, size = keys.shape
    shape = Shape(hidden_size=1, heads=1, key_heads=1, head_dim=values.shape[1], features=size, state_heads=1)
    present, rates = torch.ones(1, count, dtype=torch.bool), torch.full((1, count, 1), rate, dtype=torch.float64)
    pairs = Features(keys.view(1, count, 1, size), values.view(1, count, 1, -1), present, rate=rates)
    return recalled(Delta(), form, pairs.key, pairs, None, counted(1, count), empty(Delta(), shape, 1))[1], shape


def predict(keys: Tensor, state: dict[str, Tensor]) -> Tensor:
    return Delta().predict(keys[None, :, None], state)[0, :, 0]


@pytest.mark.parametrize("form", FORMS)
def test_orthonormal_keys_are_recalled_up_to_the_number_of_features(form: str) -> None:
    keys, values = torch.linalg.qr(random(8, 8)).Q, random(9, 3)
    state, _ = stored(keys, values[:8], form)
    close(predict(keys, state), values[:8])
    # The ninth key is a mixture of the eight: it finds its own value, and they no longer all theirs.
    extra = torch.nn.functional.normalize(random(1, 8), dim=-1)
    state, _ = stored(torch.cat((keys, extra)), values, form)
    close(predict(extra, state), values[8:])
    assert (predict(keys, state) - values[:8]).abs().max() > 1e-3


@pytest.mark.parametrize("form", FORMS)
def test_the_rate_is_the_replaced_share_of_the_old_value(form: str) -> None:
    """For a repeated key, a rate of 1 replaces the old value, 1/2 replaces half of it, and 2 reverses its sign."""
    key, values = torch.nn.functional.normalize(random(1, 8), dim=-1), random(2, 3)
    for rate, wanted in ((1.0, values[1]), (0.5, values[0] / 4 + values[1] / 2), (2.0, 2 * values[1] - 2 * values[0])):
        state, _ = stored(key.expand(2, -1), values, form, rate)
        close(predict(key, state)[0], wanted)
    state, _ = stored(key, values[:1], form, 0.0)
    assert not state["state"].any()


@pytest.mark.parametrize("form", FORMS)
def test_zero_features_write_and_read_nothing(form: str) -> None:
    inputs = drawn(SHAPE, gated=False)
    inputs.key[:, 2], inputs.query[:, 4] = 0, 0
    output, state = inputs.recalled(form)
    assert not output[:, 4].any()
    inputs.present[:, 2] = False
    close(state, inputs.recalled(form)[1])


def test_predictions_equal_outputs_for_the_same_query() -> None:
    """The prediction for a pair's key equals the output for the same query if nothing is evicted."""
    inputs = drawn(SHAPE, gated=True)
    _, matrix = inputs.recalled("torch")
    query, key = Identity().map({}, inputs.key, inputs.key, scale=UnitLength())
    nothing = Features(key, inputs.value, torch.zeros_like(inputs.present), rate=inputs.rate)
    answer, _ = recalled(Delta(), "reference", query, nothing, None, inputs.tokens, {"state": matrix})
    close(Delta().predict(key, {"state": matrix}), answer.output)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [SHAPE, SHARED], ids=["one a query head", "shared"])
def test_state_dtype_and_bytes_are_as_declared(shape: Shape, dtype: torch.dtype, form: str) -> None:
    inputs, kind = drawn(shape, gated=True), torch.promote_types(dtype, torch.float32)
    inputs.query, inputs.key, inputs.value = (states.to(dtype) for states in (inputs.query, inputs.key, inputs.value))
    inputs.rate, inputs.decay = inputs.rate.to(kind), None if inputs.decay is None else inputs.decay.to(kind)
    output, matrix = inputs.recalled(form)
    assert (output.dtype, matrix.dtype) == (kind, kind)
    # A number for each of 5 features and 3 columns of a head; never in half precision.
    numbers = shape.state_heads * 5 * 3
    (slot,) = Delta().state(shape).values()
    assert matrix[0].nbytes == slot.bytes(2, max(4, dtype.itemsize)) == numbers * kind.itemsize


def test_operation_count_equals_a_count_by_hand() -> None:
    """Return the multiply-adds for 5 × 3 numbers: prediction and write for 4 states (or 2), and reading for 4 heads."""
    assert Delta().flops(SHAPE, 9) == Delta().flops(SHAPE, 10_000) == 2 * 15 * (4 + 4 + 4)
    assert Delta().flops(SHARED, 9) == 2 * 15 * (2 + 2 + 4)
    for tokens in (1, 10, 1000):
        assert Delta().prefill_flops(SHAPE, tokens) > Delta().flops(SHAPE, tokens)
    assert Delta().prefill_flops(SHAPE, 64) == Delta().prefill_flops(SHAPE, 10_000) > Delta().prefill_flops(SHAPE, 10)


@pytest.mark.parametrize(
    "wrong", [{"rate": "none"}, {"rate": math.inf}, {"normalise": True}, {"size": 3}, {"gate": "other"}], ids=str
)
def test_invalid_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Delta.model_validate(wrong)
