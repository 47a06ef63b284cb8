"""Law 4: a part with a setting that reduces it to a simpler part equals the simpler part."""

from __future__ import annotations

import math

import pytest
import torch

from blocks.flow import Features, Tokens
from blocks.legend import Shape
from blocks.memories.state import StateMemory
from tests.blocks.support import recalled
from tests.laws.cases import SMALL, build_head, complete, inputs, run

SHAPE = SMALL.shape(4)


@pytest.mark.parametrize("gate", ["head", "channel"])
def test_gates_without_decay_equal_no_gate(gate: str) -> None:
    plain = complete({"position": "none", "feature_map": "elu", "memory": ["state"]})
    gated = complete({"position": "none", "feature_map": "elu", "memory": [{"kind": "state", "gate": {"kind": gate, "bias": 1e4}}]})
    data = inputs(SHAPE, 2, 70)
    torch.testing.assert_close(
        run(build_head(gated, SHAPE, noise=0.0), data)[0], run(build_head(plain, SHAPE), data)[0], rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_a_window_of_all_tokens_equals_softmax(backend: str) -> None:
    cascade = {"feature_map": "hedgehog", "memory": [{"kind": "window", "size": 70, "weight": "learned"}, "state"]}
    data = inputs(SHAPE, 2, 70)
    query, key = (complete({"memory": ["full"]}).memory[0].position.rotate(t, data.tokens.position) for t in (data.query, data.key))
    states = [states.transpose(1, 2) for states in (query, key, data.value)]
    softmax = torch.nn.functional.scaled_dot_product_attention(*states, is_causal=True, enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(run(build_head(complete(cascade), SHAPE), data, backend=backend)[0], softmax, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_window_equals_banded_softmax(size: int) -> None:
    data = inputs(SHAPE, 2, 90)
    spec = complete({"position": "none", "memory": [{"kind": "window", "size": size, "evict": "drop"}]})
    back = torch.arange(90)[:, None] - torch.arange(90)
    key, value = (states.repeat_interleave(2, dim=2) for states in (data.key, data.value))
    logits = torch.einsum("bthd,bshd->bhts", data.query, key) / math.sqrt(SHAPE.head_dim)
    weights = logits.masked_fill((back < 0) | (back >= size), -math.inf).softmax(-1)
    expected = torch.einsum("bhts,bshd->bthd", weights, value)
    torch.testing.assert_close(run(build_head(spec, SHAPE), data)[0], expected, rtol=0, atol=1e-12)


def test_parallel_memories_are_independent() -> None:
    """A mixture of two parallel windows is the mean of both alone."""
    windows = [{"kind": "window", "size": size, "name": f"w{size}", "evict": "drop"} for size in (3, 9)]
    both = complete({"memory": windows, "flow": "parallel", "read": "mixture"})
    data = inputs(SHAPE, 1, 40)
    alone = [run(build_head(complete({"memory": [window]}), SHAPE), data)[0] for window in windows]
    torch.testing.assert_close(run(build_head(both, SHAPE), data)[0], (alone[0] + alone[1]) / 2, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["torch", "reference"])
def test_a_state_recalls_up_to_d_orthonormal_keys(form: str) -> None:
    """d orthonormal keys return their values exactly, and one more does not."""
    size = 8
    memory, shape = (
        StateMemory(normalise=False),
        Shape(hidden_size=4, heads=1, key_heads=1, head_dim=size, features=size, state_heads=1),
    )
    generator = torch.Generator().manual_seed(0)
    keys = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64)).Q
    extra = torch.nn.functional.normalize(torch.randn(1, size, generator=generator, dtype=torch.float64), dim=-1)
    for stored, exact in ((keys, True), (torch.cat((keys, extra)), False)):
        count = len(stored)
        values = torch.randn(count, size, generator=generator, dtype=torch.float64)
        pairs = Features(stored.view(1, count, 1, size), values.view(1, count, 1, size), torch.ones(1, count, dtype=torch.bool))
        empty = {name: torch.zeros(1, *slot.shape, dtype=torch.float64) for name, slot in memory.state(shape).items()}
        _, full = recalled(memory, form, torch.zeros_like(pairs.key), pairs, None, Tokens(torch.arange(count)[None]), empty)
        features = Features(torch.zeros_like(pairs.key), pairs.value, torch.zeros_like(pairs.present))
        answer, _ = recalled(memory, form, pairs.key, features, None, Tokens(torch.arange(count)[None]), full)
        error = (answer.output[0, :, 0] - values).abs().amax(-1)
        assert (error < 1e-12).all() if exact else (error > 1e-3).any()
