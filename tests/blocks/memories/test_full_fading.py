"""Softmax with decaying pairs, and with logits that grow with the text length, equals its token-by-token definition in every
form and split.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.flow import Pairs, Tokens
from blocks.memories.full import Full
from composer.errors import GraphError
from tests.blocks.support import GROUPED, close, computed, counted, documents, empty, random
from tests.laws.cases import SMALL, build_head, complete, inputs, run

FORMS = ["reference", "torch"]
FADING = Full(gate={"kind": "head"})  # pyright: ignore[reportArgumentType]


def by_hand(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor | None, segment: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute one row logit by logit. Returns the outputs T H D and the logarithms of the masses T H."""
    length, heads, size = query.shape
    output, mass = torch.zeros_like(query), torch.zeros(length, heads, dtype=query.dtype)
    for t in range(length):
        for head in range(heads):
            seen = [s for s in range(t + 1) if segment[s] == segment[t]]
            logits = torch.stack(
                [
                    scale[t] * query[t, head] @ key[s, head // 2] / math.sqrt(size)
                    + (0.0 if decay is None else decay[s + 1 : t + 1, head].sum())
                    for s in seen
                ]
            )
            output[t, head] = logits.softmax(0) @ value[seen, head // 2]
            mass[t, head] = logits.logsumexp(0)
    return output, mass


def run_form(
    part: Full, form: str, tokens: Tokens, state: Any, query: Tensor, key: Tensor, value: Tensor, decay: Tensor | None
) -> Any:
    pairs = Pairs(key, None, value, tokens.position, tokens=tokens)
    decays = {} if decay is None else {"decay": decay}
    return computed(part, form, GROUPED, {}, tokens, state, query=query, pairs=pairs, **decays)


@pytest.mark.parametrize("form", FORMS)
def test_logits_are_reduced_by_the_decay_since_the_pair(form: str) -> None:
    tokens = documents([4, 5], [9])
    assert tokens.segment is not None
    tensors = [random(2, 9, 4, 4), random(2, 9, 2, 4), random(2, 9, 2, 4), -torch.rand(2, 9, 4, dtype=torch.float64)]
    mine = [tensor.clone().requires_grad_() for tensor in tensors]
    (partial,), _ = run_form(FADING, form, tokens, empty(FADING, GROUPED, 2), *mine)
    (partial.output.square().sum() + partial.lse.square().sum()).backward()
    theirs = [tensor.clone().requires_grad_() for tensor in tensors]
    first = torch.ones(9, dtype=torch.float64)
    rows = [by_hand(*(tensor[row] for tensor in theirs), tokens.segment[row], first) for row in range(2)]
    output, mass = (torch.stack(of) for of in zip(*rows, strict=True))
    (output.square().sum() + mass.square().sum()).backward()
    close(partial.output, output)
    close(partial.lse, mass)
    for first, other in zip(mine, theirs, strict=True):
        assert first.grad is not None
        assert other.grad is not None
        close(first.grad, other.grad)


def test_output_equals_the_forgetting_attention_of_flash_linear_attention() -> None:
    """The result equals flash-linear-attention's forgetting attention, with one decay per query head and a scale of 1/√D, in
    float32.
    """
    naive = pytest.importorskip("fla.ops.forgetting_attn.naive")
    query, key, value, decay = random(2, 9, 4, 4), random(2, 9, 2, 4), random(2, 9, 2, 4), -torch.rand(2, 9, 4, dtype=torch.float64)
    (partial,), _ = run_form(FADING, "reference", counted(2, 9), empty(FADING, GROUPED, 2), query, key, value, decay)
    close(partial.output, naive.naive_forgetting_attn(query, key, value, decay, scale=0.5), 1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cuts", [[1] * 9, [4, 5], [1, 7, 1]], ids=str)
def test_split_calls_carry_the_accumulated_decay(cuts: list[int], form: str) -> None:
    tensors = [random(2, 9, 4, 4), random(2, 9, 2, 4), random(2, 9, 2, 4), -torch.rand(2, 9, 4, dtype=torch.float64)]
    (whole,), last = run_form(FADING, form, counted(2, 9), empty(FADING, GROUPED, 2), *tensors)
    state, at, outputs = empty(FADING, GROUPED, 2), 0, []
    for length in cuts:
        (partial,), state = run_form(FADING, form, counted(2, length, at), state, *(of[:, at : at + length] for of in tensors))
        outputs.append(partial.output)
        at += length
    close(torch.cat(outputs, dim=1), whole.output)
    close(state["faded"], last["faded"])
    # Nothing has been taken of the last pair, and of the one before what its successor's token took.
    close(last["faded"][:, -2:], torch.stack((tensors[3][:, -1], torch.zeros(2, 4)), dim=1))
    assert {name: tuple(held.shape[1:]) for name, held in state.items()} == {
        name: slot.shape for name, slot in FADING.state_after(GROUPED, 9).items()
    }


def test_gradients_are_finite_before_the_first_eviction() -> None:
    head = build_head(complete({"memory": [{"kind": "window", "size": 4}, {"kind": "full", "gate": "head"}]}), SMALL.shape(4))
    head.requires_grad_()
    output, _ = run(head, inputs(SMALL.shape(4), 2, 1))
    output.sum().backward()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in head.parameters())


def test_slopes_equal_alibi() -> None:
    """The logit of each pair is reduced by its distance times 2^(-8h/H)."""
    shape = SMALL.shape(4)
    data = inputs(shape, 1, 11)
    output, _ = run(build_head(complete({"position": "none", "memory": [{"kind": "full", "gate": "slopes"}]}), shape), data)
    places = torch.arange(11)
    far = (places[:, None] - places).clamp(min=0)
    for head in range(4):
        logits = data.query[0, :, head] @ data.key[0, :, head // 2].T / math.sqrt(8) - 4.0 ** -(head + 1) * far
        logits = logits.masked_fill(places[:, None] < places, -math.inf)
        close(output[0, :, head], logits.softmax(-1) @ data.value[0, :, head // 2])


@pytest.mark.parametrize("form", FORMS)
def test_logits_grow_with_the_logarithm_of_the_position(form: str) -> None:
    part, tokens = Full(length_scale=3.0), documents([4, 5], [9])
    assert tokens.segment is not None
    query, key, value = random(2, 9, 4, 4), random(2, 9, 2, 4), random(2, 9, 2, 4)
    (partial,), _ = run_form(part, form, tokens, empty(part, GROUPED, 2), query, key, value, None)
    for row in range(2):
        scale = (tokens.position[row].double() + 3).log() / math.log(3)
        output, mass = by_hand(query[row], key[row], value[row], None, tokens.segment[row], scale)
        close(partial.output[row], output)
        close(partial.lse[row], mass)


def test_decay_between_near_pairs_is_exact_after_100000_tokens() -> None:
    """After 100,000 tokens of a steep gate, the decay between the last pairs is as exact in float32 as at the start."""
    part, steep = FADING, torch.full((1, 100_000, 1), -3.3)
    from blocks.memories.full import fading

    left = fading(torch.zeros(1, 0, 1), steep, counted(1, 100_000)).decay_to_end()
    assert left.dtype == torch.float32
    torch.testing.assert_close(left[0, -4:, 0], torch.tensor([-9.9, -6.6, -3.3, 0.0]), rtol=1e-6, atol=1e-6)
    assert part.fades


@pytest.mark.parametrize("gate", ["channel", "softplus_channel", "from_key"])
def test_gates_by_feature_are_refused(gate: str) -> None:
    with pytest.raises(GraphError, match="a `full` memory does not support; it supports `none`"):
        complete({"memory": [{"kind": "full", "gate": gate}]})


@pytest.mark.parametrize("options", [{"gate": "head"}, {"length_scale": 2.0}], ids=str)
def test_gates_and_length_scaling_are_refused_in_both_directions(options: dict[str, Any]) -> None:
    assert "is causal" in str(Full.model_validate(options).problem_both_ways())
    assert Full().problem_both_ways() is None
