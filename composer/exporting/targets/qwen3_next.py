"""Qwen3-Next without experts: the formulas of Qwen3.5, with rows of projections in another order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from blocks.legend import torch
from composer.exporting.targets import qwen3_5
from composer.exporting.targets.target import LayerType, StudentModel, each_head, each_head_rows
from composer.spec.dimensions import Dimensions


def by_head(size: Dimensions, *weights: Any) -> Any:
    """Return for each head the rows of its query, key, value and gate."""
    return torch.cat([each_head_rows(size, weight).unflatten(0, (size.heads, -1)) for weight in weights], dim=1).flatten(0, 1)


def numbers_by_head(size: Dimensions, *weights: Any) -> Any:
    """Return for each head the row of its rate, then that of its decay."""
    return torch.stack([each_head(size, weight) for weight in weights], dim=1).flatten(0, 1)


DELTA = replace(
    qwen3_5.DELTA,
    weights={
        "in_proj_qkvz.weight": (by_head, "q_proj.weight", "k_proj.weight", "v_proj.weight", "output_norm.gate"),
        "in_proj_ba.weight": (numbers_by_head, "memory_rate.weight", "memory_gate.weight"),
        **{name: weights for name, weights in qwen3_5.DELTA.weights.items() if not name.startswith("in_proj")},
    },
)


def config_of(student: StudentModel, types: list[LayerType]) -> dict[str, Any]:
    return {**qwen3_5.config_of(student, types), "mlp_only_layers": list(range(len(types))), "num_experts": 0}


TARGET = replace(
    qwen3_5.TARGET,
    name="qwen3_next",
    architecture="Qwen3NextForCausalLM",
    model_type="qwen3_next",
    layers=(DELTA, qwen3_5.GATED_SOFTMAX),
    config=config_of,
    gguf=lambda config: "its class for Qwen3-Next needs experts. `--for qwen3_5` has the same formulas",
)
