"""The definition of the trapezoidal recurrence is a sum over pairs. Its forms equal it in float64, with documents and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.operation import REFERENCE, TORCH
from blocks.recurrences.additive.recurrent import naive as additive
from blocks.recurrences.trapezoid import FORMS, naive

FEATURES, WIDTH, HEADS, STATE_HEADS = 5, 3, 4, 2
CHUNKED, STEP = (next(form for form in FORMS if form.backend == TORCH and form.decode == decode).run for decode in (False, True))
TOKENS = ("query", "key", "value", "own_weight", "previous_weight", "log_decay")


def drawn(length: int) -> dict[str, Any]:
    """Return random arguments of two rows that continue a state and a last pair."""
    random = torch.Generator().manual_seed(length)

    def normal(*shape: int) -> Tensor:
        return torch.randn(2, *shape, generator=random, dtype=torch.float64)

    return {
        "query": normal(length, HEADS, FEATURES),
        "key": normal(length, STATE_HEADS, FEATURES),
        "value": normal(length, 1, WIDTH),
        "own_weight": normal(length, STATE_HEADS).sigmoid(),
        "previous_weight": normal(length, STATE_HEADS).sigmoid(),
        "log_decay": -normal(length, STATE_HEADS).abs() / 10,
        "segment": None,
        "state": normal(STATE_HEADS, FEATURES, WIDTH),
        "last_key": normal(STATE_HEADS, FEATURES),
        "last_value": normal(1, WIDTH),
    }


@pytest.mark.parametrize("form", [naive, CHUNKED])
def test_outputs_equal_a_sum_over_pairs(form: Any) -> None:
    """A pair s < t has the weight (a_s + b_{s+1}) α_{s+1} … α_t in the output at t, and the pair t has a_t."""
    arguments = drawn(70)
    arguments |= {name: torch.zeros_like(arguments[name]) for name in ("state", "last_key")}
    query, key, value, own_weight, previous_weight, decay = (arguments[name] for name in TOKENS)
    key, own_weight, previous_weight, decay = (of.repeat_interleave(2, 2) for of in (key, own_weight, previous_weight, decay))
    expected = []
    for t in range(70):
        weights = own_weight[:, : t + 1].clone()
        weights[:, :-1] += previous_weight[:, 1 : t + 1]
        for s in range(t):
            weights[:, s] *= decay[:, s + 1 : t + 1].sum(1).exp()
        weights *= torch.einsum("bhf,bshf->bsh", query[:, t], key[:, : t + 1])
        expected.append(torch.einsum("bsh,bsv->bhv", weights, value[:, : t + 1, 0]))
    torch.testing.assert_close(form(**arguments)[0], torch.stack(expected, dim=1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", [naive, CHUNKED])
def test_pairs_that_enter_once_are_the_additive_recurrence(form: Any) -> None:
    arguments = drawn(75)
    arguments["previous_weight"] = torch.zeros_like(arguments["previous_weight"])
    query, key, value, own_weight, _, decay = (arguments[name] for name in TOKENS)
    expected = additive(query, key * own_weight[..., None], value, decay, None, arguments["state"])
    torch.testing.assert_close(form(**arguments), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("decays", [True, False])
def test_chunks_equal_the_definition_with_their_gradients(decays: bool) -> None:
    """Three documents begin in a row, the first of which continues a state."""
    arguments = drawn(150)
    arguments["segment"] = torch.tensor([0] * 40 + [1] * 70 + [2] * 40).expand(2, -1)
    if not decays:
        arguments["log_decay"] = None
    answers = []
    for form in (naive, CHUNKED):
        leaves = {name: of.clone().requires_grad_() for name, of in arguments.items() if of is not None and name != "segment"}
        output, state = form(**arguments | leaves)
        answers.append((output, state, *torch.autograd.grad(output.square().sum() + state.square().sum(), list(leaves.values()))))
    for actual, expected in zip(*answers, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10 * expected.abs().max().item())


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("document", [0, 1])
def test_a_step_equals_the_definition(in_place: bool, document: int) -> None:
    arguments = drawn(1) | {"segment": torch.tensor([[0], [document]])}
    expected = naive(**arguments)
    torch.testing.assert_close(STEP(**arguments, in_place=in_place), expected, rtol=0, atol=1e-12)


def test_no_output_depends_on_a_later_token() -> None:
    arguments = drawn(70)
    output, _ = CHUNKED(**arguments)
    changed = {name: torch.cat((arguments[name][:, :50], arguments[name][:, 50:] * 3), dim=1) for name in TOKENS}
    assert torch.equal(CHUNKED(**arguments | changed)[0][:, :50], output[:, :50])


def test_every_form_but_the_definition_has_the_backend_of_an_additive_one() -> None:
    assert [form.backend for form in FORMS].count(REFERENCE) == 1
    assert {form.backend for form in FORMS} == {REFERENCE, TORCH, "fla"}
