"""A state computes the papers' sums, with and without a mass: LAWCAT's eq. 8 with its gate matrix written out, and LoLCATs' eq.
3.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from blocks.feature_maps.exponential import Exponential
from blocks.flow import Features, Pairs, Partial, Tokens
from blocks.legend import Shape
from blocks.memories.state import StateMemory
from tests.blocks import support
from tests.blocks.support import assert_derivatives, close, computed, counted, documents, empty, owner, random

SHAPE = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=3, features=5, state_heads=4)
SHARED = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=3, features=5, state_heads=2)
FORMS = ["reference", "torch"]
Inputs = tuple[Tensor, Tensor, Tensor]


def positive(shape: Shape, length: int, batch: int = 1) -> Inputs:
    """Draw positive features of queries and keys, and values."""
    query = random(batch, length, shape.heads, shape.features).exp()
    key = random(batch, length, shape.state_heads, shape.features).exp()
    return query, key, random(batch, length, shape.key_heads, shape.head_dim)


def recalled(
    part: StateMemory,
    shape: Shape,
    inputs: Inputs,
    form: str,
    decay: Tensor | None = None,
    tokens: Tokens | None = None,
    **more: Any,
) -> tuple[Partial, dict[str, Tensor]]:
    query, key, value = inputs
    batch, length = value.shape[:2]
    present = more.get("present", torch.ones(batch, length, dtype=torch.bool))
    state = more.get("state") or empty(part, shape, batch, more.get("dtype", torch.float64))
    tokens = tokens or counted(batch, length)
    return support.recalled(part, form, query, Features(key, value, present), decay, tokens, state)


@pytest.mark.parametrize("form", FORMS)
def test_state_with_gate_matches_equation_8_of_lawcat(form: str) -> None:
    """Numerator and normaliser have gates G_t = α_tᵀ 1 of d_k × d_v entries. The normaliser is the mean over the d_v columns."""
    query, key, value = positive(SHAPE, 7)
    alpha = torch.rand(1, 7, 4, 5, dtype=torch.float64)
    partial, state = recalled(StateMemory(), SHAPE, (query, key, value), form, alpha.log())
    assert partial.lse is not None
    for t in range(7):
        for head in range(4):
            numerator, normaliser = torch.zeros(5, 3, dtype=torch.float64), torch.zeros(5, 3, dtype=torch.float64)
            for i in range(t + 1):
                product = torch.ones(5, 3, dtype=torch.float64)
                for z in range(i + 1, t + 1):
                    product = product * (alpha[0, z, head][:, None] @ torch.ones(1, 3, dtype=torch.float64))
                k = key[0, i, head][:, None]
                numerator = numerator + product * (k @ value[0, i, head // 2][None])
                normaliser = normaliser + product * (k @ torch.ones(1, 3, dtype=torch.float64))
            mass = query[0, t, head] @ normaliser.mean(1)
            close(partial.output[0, t, head], query[0, t, head] @ numerator / mass)
            close(partial.lse[0, t, head], mass.log())
            if t == 6:
                close(state["state"][0, head], torch.cat((numerator, normaliser.mean(1, keepdim=True)), dim=1))


@pytest.mark.parametrize("form", FORMS)
def test_state_matches_equation_3_of_lolcats(form: str) -> None:
    """ŷ_n = Σ_i φ(q_n)·φ(k_i) v_i / Σ_i φ(q_n)·φ(k_i). Query heads of one key head share a state, and documents are separate."""
    query, key, value = positive(SHARED, 8)
    tokens = documents([3, 5])
    assert tokens.segment is not None
    partial, _ = recalled(StateMemory(), SHARED, (query, key, value), form, tokens=tokens)
    assert partial.lse is not None
    for n in range(8):
        seen = [i for i in range(n + 1) if tokens.segment[0, i] == tokens.segment[0, n]]
        for head in range(4):
            weights = torch.stack([query[0, n, head] @ key[0, i, owner(head, 4, 2)] for i in seen])
            close(partial.lse[0, n, head], weights.sum().log())
            close(partial.output[0, n, head], weights / weights.sum() @ value[0, seen, owner(head, 4, 2)])


@pytest.mark.parametrize("form", FORMS)
def test_without_normalisation_the_output_is_the_numerator(form: str) -> None:
    """Without normalisation the output is o_t = q_t S_t as in GLA, of any sign, with one decay per head."""
    part = StateMemory(normalise=False)
    query, key, value = random(1, 6, 4, 5), random(1, 6, 4, 5), random(1, 6, 2, 3)
    decay = -torch.rand(1, 6, 4, dtype=torch.float64)
    partial, state = recalled(part, SHAPE, (query, key, value), form, decay)
    assert partial.lse is None
    for head in range(4):
        held = torch.zeros(5, 3, dtype=torch.float64)
        for t in range(6):
            held = decay[0, t, head].exp() * held + key[0, t, head][:, None] * value[0, t, head // 2]
            close(partial.output[0, t, head], query[0, t, head] @ held)
        close(state["state"][0, head], held)


def test_a_raw_numerator_may_be_divided_by_the_root_of_the_features() -> None:
    """With 16 features the numerator is divided by 4 in every form, bidirectionally, and in predictions for a pair's own key."""
    shape = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=3, features=16, state_heads=4)
    query, key, value = random(2, 7, 4, 16), random(2, 7, 4, 16), random(2, 7, 2, 3)
    plain, scaled = StateMemory(normalise=False), StateMemory(normalise=False, scale="root")
    for form in FORMS:
        wanted, state = recalled(plain, shape, (query, key, value), form)
        actual, same = recalled(scaled, shape, (query, key, value), form)
        close(actual.output, wanted.output / 4)
        close(same["state"], state["state"])
        close(scaled.predict(key, state), plain.predict(key, state) / 4)
    tokens, both_ways = counted(2, 7), replace(shape, both_ways=True)
    inputs = {"features": query, "keys": key, "pairs": Pairs(value, None, value, tokens.position)}
    first, other = (computed(part, "torch", both_ways, {}, tokens, {}, **inputs)[0][0] for part in (plain, scaled))
    close(other.output, first.output / 4)
    with pytest.raises(ValidationError, match="normalise: false"):
        StateMemory(scale="root")


@pytest.mark.parametrize("form", FORMS)
def test_decay_applies_at_tokens_without_a_pair_but_not_at_padding(form: str) -> None:
    """The state decays at tokens without a pair. Padding changes neither the state nor its decay."""
    query, key, value = positive(SHAPE, 6)
    decay = -torch.rand(1, 6, 4, dtype=torch.float64)
    present = torch.tensor([[True, False, True, False, False, False]])
    valid = torch.tensor([[True, True, True, True, False, False]])
    tokens = Tokens(torch.arange(6)[None], None, valid)
    partial, state = recalled(StateMemory(), SHAPE, (query, key, value), form, decay, tokens, present=present)
    for head in range(4):
        since = [decay[0, token + 1 : 4, head].sum().exp() for token in (0, 2)]
        weights = torch.stack([query[0, 3, head] @ key[0, token, head] * left for token, left in zip((0, 2), since, strict=True)])
        close(partial.output[0, 3, head], weights / weights.sum() @ value[0, [0, 2], head // 2])
        close(state["state"][0, head, :, 3], since[0] * key[0, 0, head] + since[1] * key[0, 2, head])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["nothing entered", "no common feature", "features of 0"])
def test_zero_mass_gives_0_with_finite_gradients(kind: str, form: str) -> None:
    query, key, value = positive(SHAPE, 5)
    present = torch.ones(1, 5, dtype=torch.bool)
    if kind == "nothing entered":
        present[0, :3] = False
    elif kind == "no common feature":
        query[:, :3, :, :2], key[..., 2:] = 0, 0
        query[:, :3, :, 2:] = 1
    else:
        query[:, :3] = 0
    tensors = [tensor.requires_grad_() for tensor in (query, key, value)]
    partial, _ = recalled(StateMemory(), SHAPE, (query, key, value), form, present=present)
    assert partial.lse is not None
    assert not partial.output[:, :3].any()
    assert partial.lse[:, :3].isneginf().all()
    assert partial.lse[:, 3:].isfinite().all()
    for gradient in torch.autograd.grad(partial.output.square().sum() + partial.lse[:, 3:].sum(), tensors):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_finite_as_the_mass_underflows(dtype: torch.dtype) -> None:
    """Queries and keys share no feature, and the decay is e^-1 per token: the mass goes through the whole range of float32 down
    to 0.
    """
    length = 120
    query, key, value = (states.to(dtype) for states in positive(SHAPE, length))
    query, key = query.float(), key.float()
    query[..., 0], query[..., 1:], key[:, 1:, :, 0] = 1.0, 0.0, 0.0
    decay = torch.full((1, length, 4), -1.0)
    tensors = [tensor.requires_grad_() for tensor in (query, key, value, decay)]
    partial, _ = recalled(StateMemory(), SHAPE, (query, key, value), "torch", decay, dtype=dtype)
    assert partial.lse is not None
    assert partial.lse.isneginf().any()
    assert ((partial.lse < -60) & partial.lse.isfinite()).any()
    gradients = torch.autograd.grad(1e3 * partial.output.float().square().sum(), tensors)
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_small_features_keep_their_mass() -> None:
    """With Hedgehog's floors on both sides, products of 1e-12 are still masses in float32."""
    query, key, value = (states.float() for states in positive(SHAPE, 3))
    query, key = 1e-18 * query, 1e-18 * key
    partial, _ = recalled(StateMemory(), SHAPE, (query, key, value), "torch", dtype=torch.float32)
    exact, _ = recalled(StateMemory(), SHAPE, (query.double(), key.double(), value.double()), "reference")
    assert partial.lse is not None
    assert exact.lse is not None
    close(partial.output.double(), exact.output, 1e-5)
    close(partial.lse.double(), exact.lse, 1e-5)


@pytest.mark.parametrize("size", [1.0, 50.0, 500.0])
@pytest.mark.parametrize("normalise", [True, False])
def test_exponential_features_are_computed_from_their_logarithms(normalise: bool, size: float) -> None:
    """For exp features of ±size, o_t = Σ_s w_ts v_s / Σ_s w_ts with log w_ts = logsumexp_f(q_tf + k_sf + decays), in two calls."""
    shape = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=3, features=5, state_heads=2, exponential=True)
    part = StateMemory(normalise=normalise)
    if not normalise and size > 50:
        size = 100.0  # a raw numerator has exp's own range
    query, key, value = size * random(1, 9, 4, 5), size * random(1, 9, 2, 5), random(1, 9, 2, 3)
    decay, present = -torch.rand(1, 9, 2, 5, dtype=torch.float64), torch.ones(1, 9, dtype=torch.bool)
    present[0, 0] = present[0, 4] = False
    state, partials = empty(part, shape, 1), []
    for piece in (slice(0, 5), slice(5, 9)):
        inputs = query[:, piece], key[:, piece], value[:, piece]
        partial, state = recalled(part, shape, inputs, "torch", decay[:, piece], present=present[:, piece], state=state)
        partials.append(partial)
    output = torch.cat([partial.output for partial in partials], dim=1)
    assert not output[:, 0].any()
    for t in range(1, 9):
        for head in range(4):
            seen = [s for s in range(t + 1) if present[0, s]]
            own = owner(head, 4, 2)
            logs = [query[0, t, head] + key[0, s, own] + decay[0, s + 1 : t + 1, own].sum(0) for s in seen]
            weights = torch.stack([token.logsumexp(-1) for token in logs])
            wanted = weights.softmax(0) @ value[0, seen, own]
            close(output[0, t, head], wanted if normalise else wanted * weights.logsumexp(0).exp(), 1e-8)
            if normalise:
                lse = torch.cat([partial.lse for partial in partials if partial.lse is not None], dim=1)
                close(lse[0, t, head], weights.logsumexp(0), 1e-8)


def test_each_form_continues_from_the_state_of_the_other_form() -> None:
    shape = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=3, features=5, state_heads=2, exponential=True)
    query, key, value = 5 * random(1, 6, 4, 5), 5 * random(1, 6, 2, 5), random(1, 6, 2, 3)
    wanted, _ = recalled(StateMemory(), shape, (query, key, value), "reference")
    for first, second in (FORMS, reversed(FORMS)):
        _, state = recalled(StateMemory(), shape, (query[:, :4], key[:, :4], value[:, :4]), first)
        got, _ = recalled(StateMemory(), shape, (query[:, 4:], key[:, 4:], value[:, 4:]), second, state=state)
        close(got.output, wanted.output[:, 4:])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("exponential", [True, False])
def test_state_dtype_and_bytes_are_as_declared(exponential: bool, normalise: bool, dtype: torch.dtype, form: str) -> None:
    shape = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=3, features=5, state_heads=2, exponential=exponential)
    part, kind = StateMemory(normalise=normalise), torch.promote_types(dtype, torch.float32)
    query, key, value = positive(shape, 3, batch=2)
    before = empty(part, shape, 2, dtype)
    partial, after = recalled(part, shape, (query.to(kind), key.to(kind), value.to(dtype)), form, dtype=dtype)
    assert {name: (held.shape, held.dtype) for name, held in after.items()} == {
        name: (held.shape, held.dtype) for name, held in before.items()
    }
    # A raw numerator has no bound that half precision could hold.
    assert partial.output.dtype == (dtype if normalise else kind)
    assert partial.lse is None or partial.lse.dtype == kind
    # 2 heads of 5 × 3 numbers, 5 more for the mass, 5 more for the maximum; never in half precision.
    numbers = 2 * 5 * (3 + normalise + exponential)
    held = sum(tensor[0].nbytes for tensor in after.values())
    assert held == sum(slot.bytes(2, max(4, dtype.itemsize)) for slot in part.state(shape).values()) == numbers * kind.itemsize


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("exponential", [True, False])
def test_gradients_match_numerical_gradients(exponential: bool, form: str) -> None:
    shape = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=3, features=2, state_heads=2, exponential=exponential)
    query, key, value = positive(shape, 5)
    decay, present = -torch.rand(1, 5, 2, 2, dtype=torch.float64), torch.tensor([[True, True, False, True, True]])

    def run(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        *inputs, log_decay = tensors
        partial, _ = recalled(StateMemory(), shape, tuple(inputs), form, log_decay, documents([3, 2]), present=present)
        assert partial.lse is not None
        return partial.output, partial.lse

    assert_derivatives(run, (query, key, value, decay))


def test_a_row_of_padding_keeps_its_state() -> None:
    shape = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=3, features=5, state_heads=2, exponential=True)
    inputs, nothing = positive(shape, 4), torch.zeros(1, 4, dtype=torch.bool)
    decay = -torch.rand(1, 4, 2, dtype=torch.float64)
    _, held = recalled(StateMemory(), shape, inputs, "torch", decay)
    padding = Tokens(torch.full((1, 4), 9), torch.zeros(1, 4, dtype=torch.int64), nothing)
    _, after = recalled(StateMemory(), shape, inputs, "torch", decay, padding, present=nothing, state=held)
    for name, tensor in held.items():
        close(after[name], tensor, 1e-14)


def test_operation_count_equals_a_count_by_hand() -> None:
    # A multiply-add for each of 5 × (3 + 1) numbers: entering on 4 states, reading for 4 heads, and one product a number to decay.
    entry = 5 * 4
    assert StateMemory().flops(SHAPE, 999) == 2 * entry * (4 + 4)
    assert StateMemory.model_validate({"gate": "head"}).flops(SHAPE, 999) == 2 * entry * (4 + 4) + entry * 4
    assert StateMemory(normalise=False).flops(SHARED, 999) == 2 * 15 * (2 + 4)
    # In chunks of 64, or of the whole prefill: the pairs of the chunk by their features and values, beside the state.
    assert StateMemory().prefill_flops(SHARED, 999) == 2 * 64 * 4 * (5 + 4) + 2 * entry * (2 + 4)
    assert StateMemory().prefill_flops(SHARED, 10) == 2 * 10 * 4 * (5 + 4) + 2 * entry * (2 + 4)
    assert StateMemory().prefill_flops(replace(SHARED, both_ways=True), 999) == 2 * entry * (2 + 4)


def test_the_state_of_exponential_features_starts_without_a_maximum() -> None:
    shape = Shape(hidden_size=6, heads=2, key_heads=2, head_dim=3, features=6, state_heads=2, exponential=Exponential.exponential)
    assert StateMemory().state(shape)["maximum"].empty == -math.inf
    assert "maximum" not in StateMemory().state(SHAPE)
