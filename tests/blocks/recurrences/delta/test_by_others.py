"""The definition equals flash-linear-attention's loops in plain PyTorch, run in float64 in place of float32."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.recurrences.delta import naive
from tests.blocks.recurrences.delta.problems import Problem, draw
from tests.blocks.support import close


class Wide:
    """The module torch with ``float`` and ``float32`` replaced by float64."""

    float = float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def of_fla(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = pytest.importorskip(f"fla.ops.{name}.naive")
    monkeypatch.setattr(module, "torch", Wide())
    return module


def agree(problem: Problem, run: Any, decay: Tensor | None) -> None:
    """Compare both for equal numbers of heads and without a scale."""
    inputs = {"q": problem.query, "k": problem.key, "v": problem.value, "beta": problem.rate, "g": decay}
    actual = run(**inputs, initial_state=problem.state, scale=1.0, output_final_state=True)
    for wanted, computed in zip(naive(*problem.arguments()), actual, strict=True):
        assert computed.dtype == torch.float64
        close(computed, wanted)


@pytest.mark.parametrize("fastest", [1.0, 2.0])
def test_recurrence_equals_kimi_delta_attention(fastest: float, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = draw("channel", (3, 3, 3), 40, features=8, fastest=fastest)
    agree(problem, of_fla("kda", monkeypatch).naive_recurrent_kda, problem.log_decay)


@pytest.mark.parametrize("fastest", [1.0, 2.0])
def test_recurrence_equals_the_gated_delta_rule(fastest: float, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = draw("head", (3, 3, 3), 40, features=8, fastest=fastest)
    agree(problem, of_fla("gated_delta_rule", monkeypatch).naive_recurrent_gated_delta_rule, problem.log_decay)
