"""Granite 4 without experts: layers of Mamba-2 beside layers of softmax attention, on Llama's blocks without biases.

Both compute S_t = exp(-exp(A) Δ_t) S_{t-1} + Δ_t k_t v_tᵀ and o_t = S_tᵀ q_t + D v_t, with Δ_t = softplus(x_t W_Δ + b_Δ), behind a
convolution and SiLU. The class's C is the query, its B the key and its x the value, and each query head has its own of the three.
Both multiply each head by SiLU(x_t W_z + b_z), and norm it then. transformers adds biases of queries, keys and values to padding,
too, before the convolution, so sources with these biases do not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blocks.legend import torch
from composer.exporting.targets.qwen3_5 import NORMS_ONCE, decay, joined_taps, taps_alone
from composer.exporting.targets.target import (
    LLAMAS,
    ROTATED,
    SOFTMAX,
    WITHOUT_BIAS,
    GgufClass,
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


def with_empty_heads(size: Dimensions, tensor: Any, *lengths: int) -> Any:
    """Return numbers of heads beside as many zeros. lengths: of the parts of the tensor that are by head; the last one fills it."""
    parts = tensor.split((*lengths, len(tensor) - sum(lengths)))
    return torch.cat([half for part in parts for half in (part, torch.zeros_like(part))])


def empty_inputs(size: Dimensions, weight: Any) -> Any:
    return with_empty_heads(size, weight, *[size.heads * size.head_dim] * 4)


def empty_taps(size: Dimensions, taps: Any) -> Any:
    return with_empty_heads(size, taps_alone(size, taps), *[size.heads * size.head_dim] * 2)


def no_bias_of_taps(size: Dimensions, taps: Any) -> Any:
    return torch.zeros(2 * len(taps))


def empty_decay(size: Dimensions, log_rate: Any) -> Any:
    return with_empty_heads(size, decay(size, log_rate))[:, None]


def empty_skip(size: Dimensions, weight: Any) -> Any:
    return with_empty_heads(size, weight)[:, None]


def empty_norms(size: Dimensions, weight: Any) -> Any:
    return with_empty_heads(size, weight.unflatten(0, (size.heads, -1)))


def empty_outputs(size: Dimensions, weight: Any) -> Any:
    return with_empty_heads(size, weight.T).T


def first_half(size: Dimensions, weight: Any) -> Any:
    return weight.chunk(2)[0]


def second_half(size: Dimensions, weight: Any) -> Any:
    return weight.chunk(2)[1]


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


def gguf(config: Mapping[str, Any]) -> GgufClass | str:
    """Return llama.cpp's class. It has twice as many numbers in Mamba-2 as in the hidden state, so half of the heads are empty."""
    if config["mamba_proj_bias"]:
        return "its class has no bias in the projections of Mamba-2. Train a student with --set head.output.bias=false"
    heads = 2 * config["mamba_n_heads"]
    return GgufClass(
        architecture="granitehybrid",
        names="GRANITE_HYBRID",
        fields={
            "attention.head_count_kv": [
                0 if kind == MAMBA.name else config["num_key_value_heads"] for kind in config["layer_types"]
            ],
            "ssm.conv_kernel": config["mamba_d_conv"],
            "ssm.state_size": config["mamba_d_state"],
            "ssm.group_count": heads,
            "ssm.time_step_rank": heads,
            "ssm.inner_size": heads * config["mamba_d_head"],
        },
        layer={
            **ROTATED,
            "ssm_in.weight": (empty_inputs, "mamba.in_proj.weight"),
            "ssm_conv1d.weight": (empty_taps, "mamba.conv1d.weight"),
            "ssm_conv1d.bias": (no_bias_of_taps, "mamba.conv1d.weight"),
            "ssm_dt.bias": (with_empty_heads, "mamba.dt_bias"),
            "ssm_a": (empty_decay, "mamba.A_log"),
            "ssm_d": (empty_skip, "mamba.D"),
            "ssm_norm.weight": (empty_norms, "mamba.norm.weight"),
            "ssm_out.weight": (empty_outputs, "mamba.out_proj.weight"),
            "ffn_gate.weight": (first_half, "shared_mlp.input_linear.weight"),
            "ffn_up.weight": (second_half, "shared_mlp.input_linear.weight"),
            "ffn_down.weight": (as_stored, "shared_mlp.output_linear.weight"),
        },
        stretches=True,
    )


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
    gguf=gguf,
)
