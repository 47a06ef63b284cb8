"""DeltaProduct makes several corrections per token, in every form and any split, as flash-linear-attention computes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.recurrences.delta import naive
from composer.errors import GraphError
from tests.blocks.recurrences.delta.problems import draw
from tests.blocks.support import close
from tests.laws.cases import SMALL, Inputs, build_head, complete, inputs, pieces, run

SHAPE = SMALL.shape(4)
MEMORY = {"kind": "delta", "gate": "softplus", "rate": {"kind": "learned", "largest": 2}, "steps": 3}
HEAD: dict[str, Any] = {"position": "none", "feature_map": "identity", "memory": [MEMORY]}


def by_hand(head: torch.nn.Module, data: Inputs) -> Tensor:
    """Decay once, then update the state by β k (v - k S) for each step. The last state gives the output."""
    named, output = dict(head.named_parameters()), torch.zeros_like(data.query)

    def unit(of: Tensor) -> Tensor:
        return of / of.norm()

    for row in range(data.query.shape[0]):
        for batch_row in range(4):
            held, own = torch.zeros(8, 8, dtype=torch.float64), slice(batch_row // 2 * 8, batch_row // 2 * 8 + 8)
            for t in range(data.query.shape[1]):
                hidden = data.hidden[row, t]
                step = torch.log1p(torch.exp(named["delta_gate.weight"][batch_row] @ hidden + named["delta_gate.bias"][batch_row]))
                held = held * torch.exp(-torch.exp(named["delta_gate.rate"][batch_row]) * step)
                keys = [data.key[row, t, batch_row // 2], *(named["delta.key"][more, own] @ hidden for more in range(2))]
                values = [data.value[row, t, batch_row // 2], *(named["delta.value"][more, own] @ hidden for more in range(2))]
                weights = [named["delta_rate.weight"][batch_row], *named["delta.rate_weight"][:, batch_row]]
                biases = [named["delta_rate.bias"][batch_row], *named["delta.rate_bias"][:, batch_row]]
                for key, value, weight, bias in zip(keys, values, weights, biases, strict=True):
                    rate = 2 / (1 + torch.exp(-(weight @ hidden + bias)))
                    held = held + rate * unit(key).outer(value - unit(key) @ held)
                output[row, t, batch_row] = unit(data.query[row, t, batch_row]) @ held
    return output


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_outputs_equal_the_recurrence(backend: str) -> None:
    head, data = build_head(complete(HEAD), SHAPE), inputs(SHAPE, 2, 13)
    actual, _ = run(head, data, backend=backend)
    close(actual, by_hand(head, data))
    outputs, state = [], None
    for piece in pieces(13, (1, 2, 9, 10)):
        output, state = run(head, data.cut(piece), state, backend)
        outputs.append(output)
    close(torch.cat(outputs, dim=1), actual)


def test_gradients_equal_those_of_the_recurrence() -> None:
    head, data = build_head(complete(HEAD), SHAPE).requires_grad_(), inputs(SHAPE, 1, 5)
    answers = []
    for compute in (lambda: run(head, data)[0], lambda: by_hand(head, data)):
        answers.append(torch.autograd.grad(compute().square().sum(), list(head.parameters())))
    for first, other in zip(*answers, strict=True):
        close(first, other, 1e-8)


def test_steps_equal_tokens_without_decay_between_them() -> None:
    """The result equals flash-linear-attention's loop in float32: two keys, values and rates for each query and decay."""
    others = pytest.importorskip("fla.ops.gated_delta_product.naive")
    problem = draw("head", (3, 3, 3), 24, features=8)
    assert problem.log_decay is not None
    first = torch.arange(24) % 2 == 0
    decay = problem.log_decay.masked_fill(~first[:, None], 0.0)
    output, state = naive(problem.query, problem.key, problem.value, problem.rate, decay, None, problem.state)
    inputs = (of.float() for of in (problem.query[:, ~first], problem.key, problem.value, decay[:, first], problem.rate))
    result, left = others.naive_recurrent_gated_delta_product(
        *inputs, scale=1.0, initial_state=problem.state.float(), output_final_state=True, num_householder=2
    )
    close(result, output[:, ~first], 2e-5)
    close(left, state, 2e-5)


def test_delta_product_below_a_memory_that_evicts_is_refused() -> None:
    window = {"kind": "window", "size": 5}
    with pytest.raises(GraphError, match="its further steps belong to the token"):
        complete(HEAD | {"memory": [window, MEMORY], "read": "sum"})
    assert complete(HEAD | {"memory": [window, MEMORY], "read": "sum", "flow": "parallel"})
