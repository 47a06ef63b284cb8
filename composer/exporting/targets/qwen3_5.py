"""Qwen3.5: three layers of Gated DeltaNet, then one of gated softmax attention, on Llama's blocks without biases.

Both compute S_t = α_t (I - β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ and o_t = S_tᵀ q_t / √K, with
α_t = exp(-exp(A) · softplus(x_t W_a + b_a)), behind a convolution and SiLU, with queries and keys of length 1. Both close a head by
a norm times SiLU(x_t W_z). Norms around the heads, and of queries and keys, multiply by 1 + w: their weights are stored less 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from blocks.legend import torch
from composer.exporting.targets.target import (
    LLAMAS,
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
    less_one,
    needs_softmax,
    plus_one,
)
from composer.spec.dimensions import Dimensions


def joined_projections(size: Dimensions, *weights: Any) -> Any:
    """Return the projections of queries, keys and values below each other, each with the rows of all heads."""
    return torch.cat([each_head_rows(size, weight) for weight in weights])


def joined_taps(size: Dimensions, *taps: Any) -> Any:
    """Return the taps of queries, keys and values: channels, 1, taps."""
    return torch.cat([each_head(size, projection_taps).flatten(0, 1) for projection_taps in taps])[:, None]


def queries_and_gates(size: Dimensions, query: Any, gate: Any) -> Any:
    """Return for each head the rows of its query, then those of its gate. Without a gate, its rows are 0."""
    gate = torch.zeros_like(query) if gate is None else gate
    return torch.cat([weight.unflatten(0, (-1, size.head_dim)) for weight in (query, gate)], dim=1).flatten(0, 1)


def behind_gate(size: Dimensions, output: Any, gate: Any) -> Any:
    """Return the output projection: twice as large behind a gate that is always 1/2."""
    return 2 * output if gate is None else output


def decay(size: Dimensions, log_rate: Any) -> Any:
    """Return -exp(A), by which llama.cpp multiplies softplus(…)."""
    return -log_rate.exp()


def taps_alone(size: Dimensions, taps: Any) -> Any:
    """Return the taps of all channels without PyTorch's axis of 1."""
    return taps[:, 0]


NORMS_ONCE = "the class has one epsilon for all norms, the model's rms_norm_eps"
NO_BIAS = "the class has no bias there"

DELTA = LayerType(
    name="linear_attention",
    head={
        "position": "none",
        "conv": {"kernel": 4, "inputs": ["q", "k", "v"], "activation": "silu"},
        "feature_map": "identity",
        "memory": [{
            "kind": "delta",
            "position": "none",
            "gate": {"kind": "softplus", "slowest": 0},
            "rate": {"kind": "learned", "bias": False},
            "scale": "root",
            "epsilon": 1e-6,
        }],
        "output": {"kind": "gated_norm", "epsilon": "$epsilon", "bias": False},
    },
    formula="the class computes Gated DeltaNet here",
    reasons={"output.epsilon": NORMS_ONCE, "output.bias": NO_BIAS, "memory.0.rate.bias": NO_BIAS,
             "memory.0.epsilon": "the class adds 1e-6 to the squared length of queries and keys",
             "memory.0.scale": "the class divides by the root of the key's size"},
    any_value=frozenset({"conv.kernel", "conv.per", "feature_map.per", "memory.0.gate.per", "memory.0.rate.per"}),
    one_value=frozenset({"conv.kernel"}),
    module="linear_attn",
    weights={
        "in_proj_qkv.weight": (joined_projections, "q_proj.weight", "k_proj.weight", "v_proj.weight"),
        "in_proj_z.weight": (as_stored, "output_norm.gate"),
        "in_proj_b.weight": (each_head, "memory_rate.weight"),
        "in_proj_a.weight": (each_head, "memory_gate.weight"),
        "conv1d.weight": (joined_taps, "conv.query", "conv.key", "conv.value"),
        "dt_bias": (each_head, "memory_gate.bias"),
        "A_log": (each_head, "memory_gate.rate"),
        "norm.weight": (as_stored, "output_norm.weight"),
        "out_proj.weight": (as_stored, "o_proj.weight"),
    },
)  # fmt: skip

GATED_SOFTMAX = LayerType(
    name="full_attention",
    head={**SOFTMAX, "qk_norm": {"kind": "rms", "epsilon": "$epsilon"}},
    formula="the class computes softmax attention over all tokens here, with norms of queries and keys",
    reasons={"qk_norm": "the class norms queries and keys, and no weight of a norm undoes it", "qk_norm.epsilon": NORMS_ONCE,
             "output.bias": NO_BIAS},
    if_set={"output": {"kind": "gate", "bias": False}},
    weights={
        "q_proj.weight": (queries_and_gates, "q_proj.weight", "output_norm.gate"),
        "k_proj.weight": (as_stored, "k_proj.weight"),
        "v_proj.weight": (as_stored, "v_proj.weight"),
        "o_proj.weight": (behind_gate, "o_proj.weight", "output_norm.gate"),
        "q_norm.weight": (less_one, "qk_norm.query"),
        "k_norm.weight": (less_one, "qk_norm.key"),
    },
    identities={"output_norm.gate": "without an output gate: its weights are 0 and it is 1/2, before twice the output projection"},
)  # fmt: skip

BLOCKS: WeightTable = {
    "input_layernorm.weight": (less_one, "input_layernorm.weight"),
    "post_attention_layernorm.weight": (less_one, "post_attention_layernorm.weight"),
    "mlp.gate_proj.weight": (as_stored, "mlp.gate_proj.weight"),
    "mlp.up_proj.weight": (as_stored, "mlp.up_proj.weight"),
    "mlp.down_proj.weight": (as_stored, "mlp.down_proj.weight"),
}
ENDS: WeightTable = {
    "model.embed_tokens.weight": (as_stored, "model.embed_tokens.weight"),
    "model.norm.weight": (less_one, "model.norm.weight"),
    "lm_head.weight": (as_stored, "lm_head.weight"),
}
INTERVAL = 4
"""Layers from one with softmax attention to the next in published models."""


def every_last_layer(types: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the difference unless the layers with softmax attention are every n-th one: engines read n alone."""
    yield from needs_softmax(types)
    if "full_attention" in types and types != _every(len(types), types.index("full_attention") + 1):
        reason = "engines read one number n, and give every n-th layer softmax attention"
        yield reason, _every(len(types), min(INTERVAL, len(types)))


def _every(layers: int, interval: int) -> list[str]:
    return ["linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(layers)]


def config_of(student: StudentModel, types: list[LayerType]) -> dict[str, Any]:
    size, names = student.size, [kind.name for kind in types]
    head = student.head_at(names.index(DELTA.name))
    return {
        "layer_types": names,
        "full_attention_interval": names.index("full_attention") + 1,
        "linear_conv_kernel_dim": head.conv.kernel if head.conv else 0,
        "linear_num_key_heads": size.heads,
        "linear_num_value_heads": size.heads,
        "linear_key_head_dim": size.head_dim,
        "linear_value_head_dim": size.head_dim,
        "rope_parameters": {**student.config["rope_parameters"], "partial_rotary_factor": 1.0},
    }


def gguf(config: Mapping[str, Any]) -> GgufClass:
    heads, pairs = config["linear_num_value_heads"], config["head_dim"] // 2
    return GgufClass(
        architecture="qwen35",
        names="QWEN35",
        fields={
            "full_attention_interval": config["full_attention_interval"],
            "ssm.conv_kernel": config["linear_conv_kernel_dim"],
            "ssm.state_size": config["linear_key_head_dim"],
            "ssm.group_count": heads,
            "ssm.time_step_rank": heads,
            "ssm.inner_size": heads * config["linear_value_head_dim"],
            # Pairs that rotate by each of three positions of an image, which are one position in texts.
            "rope.dimension_sections": [-(-(pairs - axis) // 3) for axis in range(3)] + [0],
        },
        layer={
            "attn_norm.weight": (plus_one, "input_layernorm.weight"),
            "post_attention_norm.weight": (plus_one, "post_attention_layernorm.weight"),
            "attn_q_norm.weight": (plus_one, "self_attn.q_norm.weight"),
            "attn_k_norm.weight": (plus_one, "self_attn.k_norm.weight"),
            "ssm_a": (decay, "linear_attn.A_log"),
            "ssm_dt.bias": (as_stored, "linear_attn.dt_bias"),
            "ssm_conv1d.weight": (taps_alone, "linear_attn.conv1d.weight"),
        },
        ends={"output_norm.weight": (plus_one, "model.norm.weight")},
    )


TARGET = NativeTarget(
    name="qwen3_5",
    architecture="Qwen3_5ForCausalLM",
    model_type="qwen3_5_text",
    spec="native/qwen3_5",
    layers=(DELTA, GATED_SOFTMAX),
    hosts=LLAMAS,
    fixed=WITHOUT_BIAS,
    arrangement=every_last_layer,
    config=config_of,
    blocks=BLOCKS,
    ends=ENDS,
    gguf=gguf,
)


def by_head(size: Dimensions, *weights: Any) -> Any:
    """Return for each head the rows of its query, key, value and gate."""
    return torch.cat([each_head_rows(size, weight).unflatten(0, (size.heads, -1)) for weight in weights], dim=1).flatten(0, 1)


def numbers_by_head(size: Dimensions, *weights: Any) -> Any:
    """Return for each head the row of its rate, then that of its decay."""
    return torch.stack([each_head(size, weight) for weight in weights], dim=1).flatten(0, 1)


DELTA_OF_NEXT = replace(
    DELTA,
    weights={
        "in_proj_qkvz.weight": (by_head, "q_proj.weight", "k_proj.weight", "v_proj.weight", "output_norm.gate"),
        "in_proj_ba.weight": (numbers_by_head, "memory_rate.weight", "memory_gate.weight"),
        **{name: weights for name, weights in DELTA.weights.items() if not name.startswith("in_proj")},
    },
)


def config_of_next(student: StudentModel, types: list[LayerType]) -> dict[str, Any]:
    return {**config_of(student, types), "mlp_only_layers": list(range(len(types))), "num_experts": 0}


QWEN3_NEXT = replace(
    TARGET,
    name="qwen3_next",
    architecture="Qwen3NextForCausalLM",
    model_type="qwen3_next",
    layers=(DELTA_OF_NEXT, GATED_SOFTMAX),
    config=config_of_next,
    gguf=lambda config: "its class for Qwen3-Next needs experts. `--for qwen3_5` has the same formulas",
)
