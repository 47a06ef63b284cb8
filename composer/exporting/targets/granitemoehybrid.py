"""Granite 4 without experts: layers of Mamba-2 beside layers of softmax attention, on Llama's blocks without biases.

Both compute S_t = exp(-exp(A) Δ_t) S_{t-1} + Δ_t k_t v_tᵀ and o_t = S_tᵀ q_t + D v_t, with Δ_t = softplus(x_t W_Δ + b_Δ), behind a
convolution and SiLU. The class's C is the query, its B the key and its x the value, and each query head has its own of the three.
Both multiply each head by SiLU(x_t W_z + b_z), and norm it then. transformers adds biases of queries, keys and values to padding,
too, before the convolution, so sources with these biases do not fit.
"""

from __future__ import annotations

from typing import Any

from blocks.legend import torch
from composer.exporting.targets.qwen3_5 import NORMS_ONCE, joined_taps
from composer.exporting.targets.target import (
    LLAMAS,
    SOFTMAX,
    WITHOUT_BIAS,
    LayerType,
    NativeTarget,
    StudentModel,
    WeightTable,
    as_stored,
    each_head,
    each_head_rows,
    needs_softmax,
)
from composer.spec.dimensions import Dimensions

LARGEST_STEP = 1e9
"""The limit of Δ in the class's config, which no softplus reaches. JSON has no infinity."""


def joined_inputs(size: Dimensions, gate: Any, value: Any, key: Any, query: Any, step: Any) -> Any:
    """Return the rows of gate, x, B, C and Δ below each other."""
    return torch.cat([gate, *(each_head_rows(size, weight) for weight in (value, key, query)), each_head(size, step)])


def joined_bias(size: Dimensions, gate: Any) -> Any:
    """Return the bias of ``joined_inputs``, 0 but for the gate's; None without a gate's. The bias of Δ is another tensor."""
    return None if gate is None else torch.cat([gate, gate.new_zeros(3 * len(gate) + size.heads)])


def output_bias(size: Dimensions, gate: Any) -> Any:
    """Return a bias of 0 for the output projection, which has one where ``joined_inputs`` has."""
    return None if gate is None else gate.new_zeros(size.hidden_size)


def each_head_again(size: Dimensions, weight: Any) -> Any:
    """Return the weights of one head's norm for every head."""
    return weight.repeat(size.heads)


def gates_and_values(size: Dimensions, gate: Any, up: Any) -> Any:
    """Return the two input projections of the MLP below each other."""
    return torch.cat((gate, up))


MAMBA = LayerType(
    name="linear_attention",
    head={
        "position": "none",
        "conv": {"kernel": 4, "inputs": ["q", "k", "v"], "activation": "silu"},
        "feature_map": "identity",
        "memory": [{
            "kind": "state",
            "position": "none",
            "normalise": False,
            "gate": "softplus",
            "input_scale": "step",
            "skip": True,
        }],
        "output": {"kind": "gated_norm", "first": "gate", "epsilon": "$epsilon"},
    },
    formula="the class computes Mamba-2 here",
    reasons={"output.epsilon": NORMS_ONCE, "output.over": "the class norms each group of B and C by itself: here, each head"},
    any_value=frozenset({"conv.kernel", "conv.per", "feature_map.per", "memory.0.gate.per", "output.bias"}),
    one_value=frozenset({"conv.kernel", "output.bias"}),
    module="mamba",
    weights={
        "in_proj.weight": (
            joined_inputs, "output_norm.gate", "v_proj.weight", "k_proj.weight", "q_proj.weight", "memory_gate.weight",
        ),
        "in_proj.bias": (joined_bias, "output_norm.gate_bias"),
        "conv1d.weight": (joined_taps, "conv.value", "conv.key", "conv.query"),
        "dt_bias": (each_head, "memory_gate.bias"),
        "A_log": (each_head, "memory_gate.rate"),
        "D": (as_stored, "memory.skip"),
        "norm.weight": (each_head_again, "output_norm.weight"),
        "out_proj.weight": (as_stored, "o_proj.weight"),
        "out_proj.bias": (output_bias, "output_norm.gate_bias"),
    },
    identities={"output_norm.gate_bias": "without a bias of the output gate: no projection has a bias"},
)  # fmt: skip

ATTENTION = LayerType(
    name="full_attention",
    head=SOFTMAX,
    formula="the class computes softmax attention over all tokens here",
    weights={f"{name}_proj.weight": (as_stored, f"{name}_proj.weight") for name in "qkvo"},
)

BLOCKS: WeightTable = {
    "input_layernorm.weight": (as_stored, "input_layernorm.weight"),
    "post_attention_layernorm.weight": (as_stored, "post_attention_layernorm.weight"),
    "shared_mlp.input_linear.weight": (gates_and_values, "mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "shared_mlp.output_linear.weight": (as_stored, "mlp.down_proj.weight"),
}
ENDS: WeightTable = {name: (as_stored, name) for name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")}


def config_of(student: StudentModel, types: list[LayerType]) -> dict[str, Any]:
    size, names = student.size, [kind.name for kind in types]
    head = student.head_at(names.index(MAMBA.name))
    return {
        "layer_types": names,
        "attention_multiplier": size.head_dim**-0.5,
        "position_embedding_type": "rope",
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": student.config["intermediate_size"],
        "mamba_n_heads": size.heads,
        "mamba_n_groups": size.heads,
        "mamba_d_head": size.head_dim,
        "mamba_d_state": size.head_dim,
        "mamba_expand": 1,
        "mamba_d_conv": head.conv.kernel if head.conv else 0,
        "mamba_conv_bias": False,
        "mamba_proj_bias": bool(getattr(head.output, "bias", False)),
        "time_step_limit": [0.0, LARGEST_STEP],
    }


TARGET = NativeTarget(
    name="granitemoehybrid",
    architecture="GraniteMoeHybridForCausalLM",
    model_type="granitemoehybrid",
    spec="native/granitemoehybrid",
    layers=(MAMBA, ATTENTION),
    hosts=LLAMAS,
    fixed=WITHOUT_BIAS,
    is_square=True,
    arrangement=needs_softmax,
    config=config_of,
    blocks=BLOCKS,
    ends=ENDS,
)
