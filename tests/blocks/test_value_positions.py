"""Vapor rotates the value of s at token t by R^(t-s) for any weights, as eq. 20 with its matrix powers written out."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from blocks.flow import Tokens
from blocks.legend import Shape
from blocks.memories.latents import Latents
from blocks.positions import Rope
from blocks.value_positions import Vapor
from tests.blocks.support import (
    GROUPED,
    SHAPE_NAMES,
    SHAPES,
    assert_derivatives,
    close,
    computed,
    counted,
    documents,
    drawn,
    empty,
    owner,
    random,
    started,
)

LATENTS = Latents(size=12)
VAPOR = Vapor(theta=20.0)


def matrix(frequency: Tensor) -> Tensor:
    """Return R of one key head, D × D: a rotation of coordinates i and i + D/2 by the i-th frequency."""
    half = len(frequency)
    rotated = torch.zeros(2 * half, 2 * half, dtype=torch.float64)
    for index, angle in enumerate(frequency.double()):
        rotated[index, index] = rotated[index + half, index + half] = angle.cos()
        rotated[index, index + half], rotated[index + half, index] = -angle.sin(), angle.sin()
    return rotated


def rotated_latents(parameters: list[dict[str, Tensor]], inputs: Tensor, value: Tensor, tokens: Tokens, shape: Shape) -> Tensor:
    """Return latents whose values are rotated on input and whose outputs are rotated back."""
    latents, vapor = parameters
    entering = VAPOR.enter(vapor, value, tokens.position)
    state = empty(LATENTS, shape, inputs.shape[0], inputs.dtype)
    (partial,), _ = computed(LATENTS, "torch", shape, latents, tokens, state, hidden=inputs, value=entering)
    return VAPOR.leave(vapor, partial.output, tokens.position)


@pytest.mark.parametrize("shape", SHAPES, ids=SHAPE_NAMES)
def test_vapor_equals_lattes_equation_20(shape: Shape) -> None:
    """Σ_s p(s|t) R^(t-s) v_s for all pairs of tokens of a document, with one R per key head."""
    parameters = [drawn(LATENTS, shape), drawn(VAPOR, shape)]
    inputs, value, tokens = random(2, 9, 6), random(2, 9, shape.key_heads, 4), documents([9], [4, 5])
    assert tokens.segment is not None
    got = rotated_latents(parameters, inputs, value, tokens, shape)
    latents = LATENTS.size // shape.heads
    for head in range(shape.heads):
        own, key_head = slice(head * latents, (head + 1) * latents), owner(head, shape.heads, shape.key_heads)
        query, logits = (inputs @ parameters[0][name][own].T for name in ("query", "key"))
        turn = matrix(parameters[1]["frequency"][key_head])
        for row in range(2):
            for t in range(9):
                seen = [s for s in range(t + 1) if tokens.segment[row, s] == tokens.segment[row, t]]
                shares = logits[row, seen].softmax(0) @ query[row, t].softmax(0)
                wanted = torch.zeros(4, dtype=torch.float64)
                for share, s in zip(shares, seen, strict=True):
                    wanted = wanted + share * torch.linalg.matrix_power(turn, t - s) @ value[row, s, key_head]
                close(got[row, t, head], wanted)


@pytest.mark.parametrize("by", [1, 1000])
def test_vapor_depends_on_the_distance_only(by: int) -> None:
    parameters = [drawn(LATENTS, GROUPED), started(VAPOR, GROUPED)]
    inputs, value = random(1, 9, 6), random(1, 9, 2, 4)
    here = rotated_latents(parameters, inputs, value, counted(1, 9), GROUPED)
    moved = rotated_latents(parameters, inputs, value, counted(1, 9, start=by), GROUPED)
    close(moved, here, 1e-9)
    still = {"frequency": torch.zeros_like(parameters[1]["frequency"])}
    unrotated = rotated_latents([parameters[0], still], inputs, value, counted(1, 9), GROUPED)
    assert (unrotated - here).abs().max() > 0.1


def test_vapor_starts_with_ropes_frequencies_and_rotation() -> None:
    parameters, states, position = started(VAPOR, GROUPED), random(2, 5, 2, 4), torch.randint(0, 100, (2, 5))
    assert parameters["frequency"].shape == (2, 2)
    close(parameters["frequency"], Rope(theta=20.0).frequencies(4).expand(2, -1))
    close(VAPOR.leave(parameters, states, position), Rope(theta=20.0).rotate(states, position), 1e-5)
    close(VAPOR.enter(parameters, VAPOR.leave(parameters, states, position), position), states)
    assert Vapor().theta == 10000.0


def test_gradients_reach_values_and_frequencies() -> None:
    """Gradients pass through values and frequencies."""
    position, weights = torch.tensor([[0, 1, 5]]), random(1, 3, 4, 4)

    def run(frequency: Tensor, value: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
        parameters = {"frequency": frequency}
        return VAPOR.enter(parameters, value, position), weights * VAPOR.leave(parameters, output, position)

    assert_derivatives(run, (random(2, 2), random(1, 3, 2, 4), random(1, 3, 4, 4)))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 1e-2), (torch.float32, 1e-5), (torch.float64, 1e-11)])
def test_angles_are_computed_in_float32_or_better(dtype: torch.dtype, tolerance: float) -> None:
    states, position = random(1, 6, 2, 4, dtype=dtype), torch.tensor([[0, 1, 50, 300, 301, 4000]])
    frequency = torch.tensor([[0.25, 0.5], [0.125, 2**-6]], dtype=dtype)
    rotated = VAPOR.leave({"frequency": frequency}, states, position)
    assert rotated.dtype == dtype
    for head in range(2):
        for token, place in enumerate(position[0]):
            wanted = torch.linalg.matrix_power(matrix(frequency[head]), int(place)) @ states[0, token, head].double()
            close(rotated[0, token, head].double(), wanted, tolerance)


def test_odd_value_dimensions_and_invalid_theta_are_refused() -> None:
    assert VAPOR.misfit(GROUPED) is None
    message = VAPOR.misfit(Shape(hidden_size=6, heads=2, key_heads=2, head_dim=3))
    assert message is not None
    assert "values have 3 coordinates" in message[0]
    for wrong in (0.0, -1.0, float("inf")):
        with pytest.raises(ValidationError):
            Vapor(theta=wrong)


def test_operation_count_equals_a_count_by_hand() -> None:
    # Three for each coordinate that is turned, on the way in and on the way out.
    assert VAPOR.flops(GROUPED, 999) == 3 * (2 + 4) * 4
