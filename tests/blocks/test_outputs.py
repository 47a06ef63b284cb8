"""The RMSNorm of each head or of all heads, and the output gate, equal their formulas. They start open, or at a given size."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from blocks.calibration import OutputSizes
from blocks.legend import Shape
from blocks.outputs import GatedNorm, Norm, Output, OutputGate

SHAPE = Shape(hidden_size=6, heads=3, key_heads=1, head_dim=4)


def tensors(part: Output, *, noise: float) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    filled = {}
    for name, fresh in part.parameters(SHAPE).items():
        filled[name] = torch.empty(fresh.shape, dtype=torch.float64)
        fresh.fill(filled[name], generator)
        filled[name] += noise * torch.randn(fresh.shape, generator=generator, dtype=torch.float64)
    return filled


def test_norm_per_head_divides_by_the_root_mean_square_of_the_head() -> None:
    output, hidden = torch.randn(2, 5, 3, 4, dtype=torch.float64), torch.randn(2, 5, 6, dtype=torch.float64)
    weights = tensors(Norm(), noise=0.5)
    actual = Norm().finish(weights, output, hidden)
    for head in range(3):
        vector = output[0, 2, head]
        expected = vector / ((vector**2).sum() / 4 + 1e-5) ** 0.5 * weights["weight"]
        torch.testing.assert_close(actual[0, 2, head], expected, rtol=0, atol=1e-12)


def test_norm_over_heads_divides_by_the_root_mean_square_of_all_heads() -> None:
    part = Norm(over="heads")
    output, hidden = torch.randn(2, 5, 3, 4, dtype=torch.float64), torch.randn(2, 5, 6, dtype=torch.float64)
    weights = tensors(part, noise=0.5)
    assert weights["weight"].shape == (12,)
    token = output[0, 2].flatten()
    expected = (token / ((token**2).sum() / 12 + 1e-5) ** 0.5 * weights["weight"]).view(3, 4)
    torch.testing.assert_close(part.finish(weights, output, hidden)[0, 2], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("over", ["head", "heads"])
def test_one_weight_for_each_head(over: Literal["head", "heads"]) -> None:
    part, coordinates = Norm(over=over, weights="head"), Norm(over=over)
    output, hidden = torch.randn(2, 5, 3, 4, dtype=torch.float64), torch.randn(2, 5, 6, dtype=torch.float64)
    weights = tensors(part, noise=0.5)
    assert weights["weight"].shape == (3,)
    expected = coordinates.finish(tensors(coordinates, noise=0.0), output, hidden) * weights["weight"][:, None]
    torch.testing.assert_close(part.finish(weights, output, hidden), expected, rtol=0, atol=1e-12)
    sizes = OutputSizes(torch.ones(3, 4), torch.tensor([1.0, 4.0, 9.0])[:, None].expand(3, 4))
    rescaled = part.rescale(tensors(part, noise=0.0), sizes, SHAPE)["weight"]
    torch.testing.assert_close(rescaled, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))


@pytest.mark.parametrize("rank", ["full", 2])
@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
def test_the_gate_is_an_activation_of_the_hidden_state(activation: str, rank: int | str) -> None:
    part = GatedNorm(activation=activation, rank=rank)
    output, hidden = torch.randn(1, 3, 3, 4, dtype=torch.float64), torch.randn(1, 3, 6, dtype=torch.float64)
    weights = tensors(part, noise=0.5)
    matrix = weights["gate"] if rank == "full" else weights["gate_up"] @ weights["gate_down"]
    logits = (hidden[0, 1] @ matrix.T + weights["gate_bias"]).view(3, 4)
    gate = logits / (1 + (-logits).exp()) if activation == "silu" else 1 / (1 + (-logits).exp())
    expected = Norm().finish(weights, output, hidden)[0, 1] * gate
    torch.testing.assert_close(part.finish(weights, output, hidden)[0, 1], expected, rtol=0, atol=1e-12)
    last = part.model_copy(update={"first": "gate"})
    expected = Norm().finish(weights, output[:, 1:2] * gate, hidden[:, 1:2])[0, 0]
    torch.testing.assert_close(last.finish(weights, output, hidden)[0, 1], expected, rtol=0, atol=1e-12)
    alone = OutputGate(activation=activation, rank=rank)
    assert tensors(alone, noise=0.0).keys() == weights.keys() - {"weight"}
    torch.testing.assert_close(alone.finish(weights, output, hidden)[0, 1], output[0, 1] * gate, rtol=0, atol=1e-12)


def test_output_gates_start_open() -> None:
    output, hidden = torch.randn(1, 3, 3, 4, dtype=torch.float64), torch.randn(1, 3, 6, dtype=torch.float64)
    norm = Norm().finish(tensors(Norm(), noise=0.0), output, hidden)
    for activation, nearness in (("silu", 1e-6), ("sigmoid", 0.02)):
        part = GatedNorm(activation=activation)
        torch.testing.assert_close(part.finish(tensors(part, noise=0.0), output, hidden), norm, rtol=nearness, atol=0)
        alone = OutputGate(activation=activation)
        torch.testing.assert_close(alone.finish(tensors(alone, noise=0.0), output, hidden), output, rtol=nearness, atol=0)


def test_operation_count_equals_a_count_by_hand() -> None:
    assert Norm().flops(SHAPE, 9) == Norm(over="heads").flops(SHAPE, 9) == 4 * 12
    assert OutputGate().flops(SHAPE, 9) == 2 * 6 * 12 + 2 * 12
    assert GatedNorm(rank=2).flops(SHAPE, 9) == 4 * 12 + 2 * 2 * (6 + 12) + 2 * 12


def test_the_norm_of_zeros_is_zero_with_a_finite_gradient() -> None:
    output = torch.zeros(1, 1, 3, 4, dtype=torch.float64, requires_grad=True)
    normed = Norm().finish(tensors(Norm(), noise=0.1), output, torch.zeros(1, 1, 6, dtype=torch.float64))
    normed.sum().backward()
    assert torch.equal(normed, torch.zeros_like(normed))
    assert output.grad is not None
    assert output.grad.isfinite().all()


@pytest.mark.parametrize(
    "part",
    [
        Norm(),
        Norm(over="heads"),
        GatedNorm(),
        GatedNorm(first="gate", over="heads"),
        GatedNorm(activation="sigmoid", rank=2),
        GatedNorm(activation="sigmoid", bias=False),
        OutputGate(activation="silu"),
        OutputGate(),
    ],
    ids=str,
)
def test_calibrated_outputs_have_the_size_of_the_teachers(part: Output) -> None:
    """Norms and gates of SiLU reach any size, coordinate by coordinate; a norm of each head reaches it for all heads together. A
    gate of sigmoid makes outputs smaller, not larger."""
    generator = torch.Generator().manual_seed(0)
    output, hidden = (torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in ((2, 50, 3, 4), (2, 50, 6)))
    weights = start = tensors(part, noise=0.0)

    def measure() -> torch.Tensor:
        return part.finish(weights, output.clone(), hidden).square().mean((0, 1))

    student = measure()
    teacher = student * torch.logspace(-4, 2, 12, dtype=torch.float64).view(3, 4)
    weights = start | part.rescale(start, OutputSizes(student, teacher), SHAPE)
    scaled = measure()
    if isinstance(part, Norm) and part.over == "head":
        scaled, teacher = scaled.mean(0), teacher.mean(0)
    if isinstance(part, OutputGate) and part.activation == "sigmoid":
        teacher = teacher.minimum(student)
    torch.testing.assert_close(scaled, teacher, rtol=1e-3, atol=0)


def test_output_gates_without_bias_are_not_calibrated() -> None:
    part = OutputGate(bias=False)
    assert part.rescale(tensors(part, noise=0.0), OutputSizes(torch.ones(3, 4), torch.ones(3, 4)), SHAPE) == {}


def test_coordinates_that_are_always_zero_keep_their_norm_weight() -> None:
    student, teacher = torch.zeros(3, 4), torch.ones(3, 4)
    weights = {"weight": torch.full((4,), 2.0)}
    for sizes in (OutputSizes(student, teacher), OutputSizes(teacher, student)):
        assert Norm().rescale(weights, sizes, SHAPE)["weight"].equal(weights["weight"])
