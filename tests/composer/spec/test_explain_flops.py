"""FLOPs of explain follow the equations, and equal PyTorch's count of the executed forms."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from composer.model.head import Head
from composer.spec.explain import explain_resolved
from composer.spec.loading import load_spec
from composer.spec.resolve import Dimensions, resolve
from tests.laws.cases import Inputs, build_head, inputs, run

SIZE = Dimensions(hidden_size=64, layers=1, heads=4, key_heads=4, head_dim=16, rope_theta=100.0)
CHUNK = 32


def executed(head: Head, data: Inputs, state: dict[str, torch.Tensor] | None = None) -> tuple[int, dict[str, torch.Tensor]]:
    """Return the operations of one call on the torch backend, and its state."""
    with FlopCounterMode(display=False) as counter:
        _, state = run(head, data, state, backend="torch")
    return counter.get_total_flops(), state


@pytest.mark.parametrize("tokens", [64, 512])
def test_prefill_with_a_gate_also_computes_masked_pairs(tokens: int) -> None:
    """A token sees (T + 1) / 2 of T² / T pairs on average, which explain counts. It also counts the gate and the sums of its
    decays.
    """
    resolved = resolve(load_spec("forgetting"), SIZE)
    shape, gate = SIZE.shape(4), 2 * 64 * 4
    counted = explain_resolved(resolved, sequence=tokens).groups[0].prefill_flops_per_token
    seen = (tokens + 1) / 2 * 4
    assert counted == pytest.approx(gate + seen * (4 * 16 + 1), abs=1)
    total, _ = executed(build_head(resolved.heads["head"], shape), inputs(shape, 1, tokens))
    assert total / tokens == gate + tokens * 4 * 4 * 16
    assert 1.8 < total / tokens / counted < 2


def test_decode_operations_with_a_cache_are_averaged_over_a_chunk() -> None:
    sizes = [f"head.memory.0.size={CHUNK}", f"head.memory.1.size={CHUNK}"]
    resolved = resolve(load_spec("lola", sizes), SIZE)
    shape = SIZE.shape(4)
    counted = explain_resolved(resolved, sequence=4 * CHUNK).groups[0].decode_flops_per_token
    assert counted is not None
    head, data = build_head(resolved.heads["head"], shape), inputs(shape, 1, 5 * CHUNK)
    _, state = executed(head, data.cut(slice(0, 4 * CHUNK)))
    steps = []
    for token in range(4 * CHUNK, 5 * CHUNK):
        total, state = executed(head, data.cut(slice(token, token + 1)), state)
        steps.append(total)
    assert sum(steps) / CHUNK == pytest.approx(counted, rel=0.15)
    assert steps[0] > 15 * counted
    assert max(steps[1:]) < 0.7 * counted


def test_the_text_names_the_counted_operations() -> None:
    text = str(explain_resolved(resolve(load_spec("lola"), SIZE)))
    assert "means over tokens, without masked pairs and projections" in text
