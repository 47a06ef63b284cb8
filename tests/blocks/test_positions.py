"""Rope rotates pairs of coordinates as complex numbers and exactly as transformers' Llama, and logits depend on distances only."""

from __future__ import annotations

import cmath

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from blocks.positions import Llama3Scaling, NoPosition, Rope
from tests.blocks.support import close, random

LLAMA3 = Llama3Scaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_length=64)


def transformers_rotate(states: Tensor, position: Tensor, theta: float, scaling: Llama3Scaling | None) -> Tensor:
    parameters = {"rope_type": "default", "rope_theta": theta}
    if scaling is not None:
        parameters |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_frequency_factor,
            "high_freq_factor": scaling.high_frequency_factor,
            "original_max_position_embeddings": scaling.original_length,
        }
    config = LlamaConfig(hidden_size=states.shape[-1], num_attention_heads=1, head_dim=states.shape[-1], rope_parameters=parameters)
    cos, sin = LlamaRotaryEmbedding(config)(states, position)
    return apply_rotary_pos_emb(states, states, cos, sin, unsqueeze_dim=2)[0]


def test_rope_multiplies_by_complex_exponentials() -> None:
    states, position = random(2, 3, 2, 6), torch.tensor([[0, 1, 2], [7, 30, 4]])
    rotated = Rope(theta=50.0).rotate(states, position)
    for batch, token, head, index in torch.ones(2, 3, 2, 3).nonzero().tolist():
        first, second = states[batch, token, head, index], states[batch, token, head, index + 3]
        angle = int(position[batch, token]) * 50.0 ** (-2 * index / 6)
        wanted = complex(first, second) * cmath.exp(1j * angle)
        assert complex(rotated[batch, token, head, index], rotated[batch, token, head, index + 3]) == pytest.approx(
            wanted, abs=1e-5
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("theta", [1e4, 5e5])
@pytest.mark.parametrize("scaling", [None, LLAMA3], ids=["default", "llama3"])
def test_rope_equals_the_rotation_of_transformers(scaling: Llama3Scaling | None, theta: float, dtype: torch.dtype) -> None:
    states, position = random(2, 40, 3, 32, dtype=dtype), torch.randint(0, 20_000, (2, 40))
    rotated = Rope(theta=theta, scaling=scaling).rotate(states, position)
    assert rotated.dtype == dtype
    assert torch.equal(rotated, transformers_rotate(states, position, theta, scaling))


def test_llama3_scaling_keeps_fast_frequencies_and_divides_slow_frequencies() -> None:
    ratio = Rope(theta=1e4, scaling=LLAMA3).frequencies(32) / Rope(theta=1e4).frequencies(32)
    turns = 64 * Rope(theta=1e4).frequencies(32) / (2 * torch.pi)  # in the length of the training before the stretch
    assert torch.equal(ratio[turns > 4], torch.ones(int((turns > 4).sum())))
    close(ratio[turns < 1], torch.full_like(ratio[turns < 1], 1 / 8), 1e-6)
    between = (turns > 1) & (turns < 4)
    assert between.any()
    blend = (turns[between] - 1) / 3
    close(ratio[between], (1 - blend) / 8 + blend, 1e-6)


@pytest.mark.parametrize("scaling", [None, LLAMA3], ids=["default", "llama3"])
def test_logits_depend_on_the_distance_only(scaling: Llama3Scaling | None) -> None:
    rope = Rope(theta=100.0, scaling=scaling)
    query, key = random(1, 1, 1, 8), random(1, 1, 1, 8)

    def logit(at: int, of: int) -> Tensor:
        return (rope.rotate(query, torch.tensor([[at]])) * rope.rotate(key, torch.tensor([[of]]))).sum()

    for distance in range(5):
        close(logit(20 + distance, 20), logit(distance, 0), 1e-5)
    assert not torch.allclose(logit(3, 0), logit(4, 0), atol=1e-2)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 5e-7), (torch.bfloat16, 2**-7)])
def test_rotate_back_restores_the_input(dtype: torch.dtype, tolerance: float) -> None:
    """Rotating back restores the input within the rounding of the dtype, with a position per head and with rounded tables."""
    states, rope = random(2, 300, 3, 8, dtype=dtype), Rope(theta=100.0)
    for position in (torch.arange(300).expand(2, -1), torch.randint(-1, 9000, (2, 300, 3))):
        back = rope.rotate_back(rope.rotate(states, position), position)
        assert back.dtype == dtype
        error = (back.double() - states.double()).abs() / states.double().unflatten(3, (2, 4)).norm(dim=3).repeat(1, 1, 1, 2)
        assert error.max() < tolerance
        assert NoPosition().rotate_back(states, position) is states


def test_position_0_and_no_position_change_nothing() -> None:
    states, position = random(1, 3, 2, 4), torch.tensor([[0, 5, 9]])
    assert torch.equal(Rope(theta=10.0).rotate(states, position)[:, 0], states[:, 0])
    assert NoPosition().rotate(states, position) is states


def test_rotating_fake_tensors_caches_no_fake_tensor() -> None:
    rope, states, position = Rope(theta=4321.0), random(1, 3, 2, 8), torch.arange(3)[None]
    with FakeTensorMode() as fake:
        rope.rotate(fake.from_tensor(states), fake.from_tensor(position))
    assert type(rope.rotate(states, position)) is Tensor


def test_rope_needs_a_positive_theta() -> None:
    with pytest.raises(ValueError, match="resolve the spec"):
        Rope().frequencies(4)
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValidationError):
            Rope(theta=wrong)
