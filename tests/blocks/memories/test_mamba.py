"""A state whose pairs are scaled by their step, plus the token's own value, is Mamba-2's recurrence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from blocks.memories.state import StateMemory
from composer.errors import GraphError
from tests.blocks.support import close
from tests.laws.cases import SMALL, Inputs, build_head, complete, inputs, pieces, run

SHAPE = SMALL.shape(4)
MEMORY = {"kind": "state", "normalise": False, "gate": "softplus", "input_scale": "step", "skip": True}
HEAD = {"position": "none", "feature_map": "identity", "memory": [MEMORY]}


def by_hand(head: torch.nn.Module, data: Inputs) -> Tensor:
    """Compute h = exp(-exp(A) Δ) h + Δ B xᵀ and y = C h + D x token by token."""
    named = dict(head.named_parameters())
    weight, bias, rate = (named[f"state_gate.{name}"] for name in ("weight", "bias", "rate"))
    batch, length = data.hidden.shape[:2]
    output = torch.zeros_like(data.query)
    for row in range(batch):
        for head_index in range(4):
            held = torch.zeros(8, 8, dtype=torch.float64)
            for t in range(length):
                step = torch.log1p(torch.exp(weight[head_index] @ data.hidden[row, t] + bias[head_index]))
                value = data.value[row, t, head_index // 2]
                held = torch.exp(-torch.exp(rate[head_index]) * step) * held + step * data.key[row, t, head_index // 2].outer(value)
                output[row, t, head_index] = data.query[row, t, head_index] @ held + named["state.skip"][head_index] * value
    return output


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_outputs_equal_mamba_2(backend: str) -> None:
    head, data = build_head(complete(HEAD), SHAPE), inputs(SHAPE, 2, 19)
    actual, _ = run(head, data, backend=backend)
    close(actual, by_hand(head, data))
    outputs, state = [], None
    for piece in pieces(19, (1, 2, 11, 12)):
        output, state = run(head, data.cut(piece), state, backend)
        outputs.append(output)
    close(torch.cat(outputs, dim=1), actual)


def test_gradients_equal_those_of_the_recurrence() -> None:
    head, data = build_head(complete(HEAD), SHAPE).requires_grad_(), inputs(SHAPE, 1, 7)
    answers = []
    for compute in (lambda: run(head, data)[0], lambda: by_hand(head, data)):
        answers.append(torch.autograd.grad(compute().square().sum(), list(head.parameters())))
    for first, other in zip(*answers, strict=True):
        close(first, other, 1e-9)


@pytest.mark.parametrize("features", ["exp", "elu"])
def test_the_step_of_a_normalised_state_scales_the_mass(features: str) -> None:
    """In a normalised state, features times the step and logarithms plus the logarithm of the step give the same mean."""
    memory = {"kind": "state", "gate": "softplus", "input_scale": "step"}
    head, data = (
        build_head(complete({"position": "none", "feature_map": features, "memory": [memory]}), SHAPE),
        inputs(SHAPE, 2, 19),
    )
    output, _ = run(head, data)
    close(output, run(head, data, backend="reference")[0], 1e-9)
    (plain,) = ({name: value for name, value in memory.items() if name != "input_scale"},)
    other = build_head(complete({"position": "none", "feature_map": features, "memory": [plain]}), SHAPE)
    assert (run(other, data)[0] - output).abs().max() > 1e-3


def test_padding_and_other_documents_change_nothing() -> None:
    """Padding and other documents change nothing, with the skip connection included."""
    head, data = build_head(complete(HEAD), SHAPE), inputs(SHAPE, 2, 9)
    whole, _ = run(head, data)
    data.tokens.valid = torch.arange(9).expand(2, -1) < torch.tensor([[9], [5]])
    close(run(head, data)[0][1, :5], whole[1, :5])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"skip": True}, "set normalise: false"),
        ({"input_scale": "step", "gate": {"kind": "head"}}, "set `gate: softplus`"),
    ],
)
def test_conflicting_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        StateMemory.model_validate(options)


def test_steps_below_a_memory_that_evicts_are_refused() -> None:
    window = {"kind": "window", "size": 5}
    with pytest.raises(GraphError, match="another memory evicts later"):
        complete(HEAD | {"memory": [window, MEMORY], "read": "sum"})
    assert complete(HEAD | {"memory": [window, MEMORY], "read": "sum", "flow": "parallel"})
