"""The RG-LRU equals Griffin's equations, starts with the stated memory, and is finite if a is 0 or 1."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from blocks.legend import Shape
from blocks.mixers.rglru import RGLRU
from tests.blocks.support import GROUPED, assert_derivatives, close, counted, documents, drawn, empty, mixed, random, started

LENGTHS = [[3, 1, 4], [8]]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def by_hand(document: list[list[float]], parameters: dict[str, Tensor], blocks: int) -> list[list[float]]:
    """Compute equations 1 to 4 number by number over one document ``T C``."""
    width = len(document[0])
    side = width // blocks
    held, answer = [0.0] * width, []
    for x in document:
        now = []
        for channel in range(width):
            block, out = divmod(channel, side)
            logits = {}
            for gate in ("recurrence", "input"):
                weight, logits[gate] = parameters[f"{gate}_weight"], parameters[f"{gate}_bias"][channel].item()
                for other in range(side):
                    logits[gate] += weight[block, out, other].item() * x[block * side + other]
            a = sigmoid(parameters["decay"][channel].item()) ** (8 * sigmoid(logits["recurrence"]))
            now.append(a * held[channel] + math.sqrt(1 - a**2) * sigmoid(logits["input"]) * x[channel])
        held = now
        answer.append(now)
    return answer


@pytest.mark.parametrize("form", ["reference", "torch"])
@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("blocks", [1, 2, 6])
def test_rglru_matches_the_equations_of_griffin(blocks: int, both_ways: bool, form: str) -> None:
    part = RGLRU(blocks=blocks, both_ways=both_ways)
    parameters, hidden = drawn(part, GROUPED), random(2, 8, 6)
    back = {name.removeprefix("backward_"): tensor for name, tensor in parameters.items() if name.startswith("backward_")}
    got, _ = mixed(part, form, parameters, hidden, documents(*LENGTHS), empty(part, GROUPED, 2))
    for row, lengths in enumerate(LENGTHS):
        first = 0
        for length in lengths:
            document = hidden[row, first : first + length].tolist()
            wanted = torch.tensor(by_hand(document, parameters, blocks), dtype=torch.float64)
            if both_ways:
                wanted += torch.tensor(by_hand(document[::-1], back, blocks)[::-1], dtype=torch.float64)
            close(got[row, first : first + length], wanted)
            first += length


def test_the_state_holds_the_last_output() -> None:
    part, hidden = RGLRU(), random(2, 5, 6)
    output, state = mixed(part, "torch", drawn(part, GROUPED), hidden, counted(2, 5), empty(part, GROUPED, 2))
    close(state["hidden"], output[:, -1])


def test_blocks_set_the_shapes_of_the_parameters() -> None:
    def shapes(part: RGLRU) -> dict[str, tuple[int, ...]]:
        return {name: fresh.shape for name, fresh in part.parameters(GROUPED).items()}

    rest = {"recurrence_bias": (6,), "input_bias": (6,), "decay": (6,)}
    assert shapes(RGLRU()) == {"recurrence_weight": (1, 6, 6), "input_weight": (1, 6, 6)} | rest
    assert shapes(RGLRU(blocks=3)) == {"recurrence_weight": (3, 2, 2), "input_weight": (3, 2, 2)} | rest


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_decays_start_between_0_9_and_0_999(dtype: torch.dtype) -> None:
    """a^c, the decay of a token with an open recurrence gate, is uniform (section 2.4)."""
    shape = Shape(hidden_size=4096, heads=1, key_heads=1, head_dim=4)
    part = RGLRU(blocks=4096)
    parameters = started(part, shape, dtype)
    left = parameters["decay"].double().sigmoid() ** 8
    slack = 2e-3 if dtype == torch.bfloat16 else 1e-5
    assert 0.9 - slack < left.min() < 0.902
    assert 0.997 < left.max() < 0.999 + slack
    assert left.mean().item() == pytest.approx(0.9495, abs=2e-3)
    assert ((left < 0.925).double().mean() - 25 / 99).abs() < 0.03
    assert not parameters["recurrence_bias"].any()
    assert not parameters["input_bias"].any()


def test_gates_start_with_unit_logits() -> None:
    shape = Shape(hidden_size=64, heads=1, key_heads=1, head_dim=4)
    for blocks in (1, 8):
        weight = started(RGLRU(blocks=blocks), shape)["input_weight"]
        assert (weight.std() * math.sqrt(64 / blocks)).item() == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("form", ["reference", "torch"])
@pytest.mark.parametrize("decay", [-200.0, 0.0, 20.0, 90.0, 1e4])
@pytest.mark.parametrize("logit", [-1e4, -95.0, 0.0, 1e4])
def test_outputs_and_gradients_are_finite_for_decays_of_0_and_1(logit: float, decay: float, form: str) -> None:
    """In float32, a_t rounds to 1 long before its logarithm is 0. For smaller values the logarithm rounds to 0, too."""
    part = RGLRU()
    parameters = drawn(part, GROUPED, torch.float32)
    parameters["decay"].fill_(decay)
    parameters["recurrence_bias"].fill_(logit)
    leaves = {name: tensor.requires_grad_() for name, tensor in parameters.items()}
    hidden = random(1, 12, 6, dtype=torch.float32).requires_grad_()
    output, _ = mixed(part, form, leaves, hidden, counted(1, 12), empty(part, GROUPED, 1, torch.float32))
    gradients = torch.autograd.grad(output.square().sum(), [hidden, *leaves.values()])
    assert output.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_gradients_are_accurate_for_decays_near_1() -> None:
    """The gradient of √(1 - a²) in float32 is as good as in float64 from log a = -1e-12 on."""
    part, hidden = RGLRU(), random(1, 6, 6)
    parameters = drawn(part, GROUPED)
    parameters["decay"].fill_(30.0)
    answers = []
    for dtype in (torch.float32, torch.float64):
        leaves = {name: tensor.to(dtype).requires_grad_() for name, tensor in parameters.items()}
        output, _ = mixed(part, "reference", leaves, hidden.to(dtype), counted(1, 6), empty(part, GROUPED, 1, dtype))
        answers.append([output, *torch.autograd.grad(1e6 * output.sum(), list(leaves.values()))])
    for got, wanted in zip(*answers, strict=True):
        close(got.double(), wanted, 1e-4)
    assert answers[1][-1].abs().max() > 1e-3


def test_gradients_match_numerical_gradients() -> None:
    part = RGLRU(blocks=2)
    names, hidden = list(part.parameters(GROUPED)), random(1, 5, 6)

    def run(hidden: Tensor, *tensors: Tensor) -> Tensor:
        parameters = dict(zip(names, tensors, strict=True))
        return mixed(part, "torch", parameters, hidden, documents([2, 3]), empty(part, GROUPED, 1))[0]

    assert_derivatives(run, (hidden, *drawn(part, GROUPED).values()))


def test_float32_is_close_to_float64_over_131072_tokens() -> None:
    shape, part, length = Shape(hidden_size=4, heads=1, key_heads=1, head_dim=4), RGLRU(), 131_072
    parameters = drawn(part, shape, torch.float32) | {"decay": torch.tensor([2.0, 6.0, 9.0, 14.0])}
    hidden = random(1, length, 4, dtype=torch.float32)
    got, _ = mixed(part, "torch", parameters, hidden, counted(1, length), empty(part, shape, 1, torch.float32))
    exact = {name: tensor.double() for name, tensor in parameters.items()}
    wanted, _ = mixed(part, "reference", exact, hidden.double(), counted(1, length), empty(part, shape, 1))
    close(got.double(), wanted, 1e-5)


def test_blocks_must_divide_the_channels() -> None:
    assert RGLRU(blocks=3).misfit(GROUPED) is None
    assert RGLRU().misfit(GROUPED) is None
    problem = RGLRU(blocks=4).misfit(GROUPED)
    assert problem == ("4 equal blocks cannot hold the 6 channels of the hidden state; set `blocks` to a divisor of 6", ("blocks",))


def test_operation_count_equals_a_count_by_hand() -> None:
    # Two matrices, a multiply-add an entry; then two products and a multiply-add a channel.
    assert RGLRU().flops(GROUPED, 100) == 2 * 2 * 6 * 6 + 4 * 6
    assert RGLRU(blocks=3).flops(GROUPED, 100) == 2 * 2 * 6 * 2 + 4 * 6
