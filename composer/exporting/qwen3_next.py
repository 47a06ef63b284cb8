"""Layers of Gated DeltaNet and of softmax attention on Llama's blocks, as the weights of transformers' Qwen3-Next.

Both compute S_t = α_t (I - β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ and o_t = S_tᵀ q_t / √K, with
α_t = exp(-exp(A) · softplus(x_t W_a + b_a)), behind a convolution and SiLU, with queries and keys of length 1. Both close a head by
a norm times SiLU(x_t W_z). The weights only change their places, with two exceptions. Norms are stored as w - 1, and 1 + (w - 1)
is w up to one rounding of float32. Where a softmax layer has no output gate, a gate of sigmoid(0) = 1/2 is put before an output
projection of twice the size, which is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from blocks.memories.delta import Delta
from blocks.positions import NoPosition
from composer.graph.composition import HeadSpec
from composer.model.hosts import attentions

if TYPE_CHECKING:
    from composer.exporting.native import LayerHead

LENGTH_EPSILON = 1e-6
"""What the class adds to the squared length of queries and keys."""
NORM_ROUNDING = 2.0**-24
"""The largest difference between a norm's weight w and 1 + (w - 1): half the distance between numbers of float32 below 2."""
MOST_NAMES = 3
"""The most tensors that a difference names."""


def delta_head(spec: HeadSpec, config: Any) -> HeadSpec:
    """Return the head of a layer of Gated DeltaNet in the class. Fields that the class leaves open are those of ``spec``."""
    free = spec.conv
    gate, rate = (getattr(spec.memory[0], name, None) for name in ("gate", "rate"))
    return HeadSpec.model_validate({
        "position": "none",
        "conv": {
            "kernel": free.kernel if free else 4,
            "inputs": ["q", "k", "v"],
            "activation": "silu",
            "per": free.per if free else "query_head",
        },
        "feature_map": {"kind": "identity", "per": getattr(spec.feature_map, "per", "query_head")},
        "memory": [{
            "kind": "delta",
            "name": "delta",
            "position": NoPosition(),
            "gate": {"kind": "softplus", "per": getattr(gate, "per", "query_head")},
            "rate": {"kind": "learned", "per": getattr(rate, "per", "query_head")},
            "scale": "root",
            "epsilon": LENGTH_EPSILON,
        }],
        "output": {"kind": "gated_norm", "epsilon": config.rms_norm_eps},
    })  # fmt: skip


def weight_differences(model: Any, heads: Sequence[LayerHead]) -> Iterator[str]:
    """Yield the weights that the class cannot hold, of a model whose heads are those of the class."""
    kernels = sorted({head.spec.conv.kernel for head in heads if head.spec.conv is not None})
    if len(kernels) > 1:
        yield f"convolutions have {' and '.join(map(str, kernels))} taps; expected the same number in all layers"
    parameters = dict(model.named_parameters())
    biases = [name for path, head in _delta_layers(model, heads) for name in _zero_biases(path, head)]
    if learned := [name for name in biases if name in parameters and bool((parameters[name] != 0).any())]:
        yield (
            f"{_list_first(learned)}: learned biases of the rate and of the output gate, which the class lacks; set `bias: false` "
            "there before training"
        )
    if inexact := [name for name in parameters if _is_norm(name) and not _survives_shift(parameters[name])]:
        yield f"{_list_first(inexact)}: the class stores w - 1 for a norm's weight w, which {model.dtype} rounds for these weights"
    narrowed = [name for name, tensor in parameters.items() if not torch.equal(tensor.to(model.dtype).to(tensor.dtype), tensor)]
    if narrowed:
        yield f"{_list_first(narrowed)}: kept in float32 here; the class loads all weights in {model.dtype}"


def convert(model: Any, heads: Sequence[LayerHead]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the fields of the class's config that Llama's lacks, and all weights by the class's names."""
    config, parameters = model.config, {name: parameter.detach() for name, parameter in model.named_parameters()}
    weights = {name: tensor for name, tensor in parameters.items() if ".self_attn." not in name}
    weights |= {name: tensor - 1 for name, tensor in weights.items() if _is_norm(name)}
    paths = {attention.layer: name for name, attention in attentions(model)}
    zero = {name for path, head in _delta_layers(model, heads) for name in _zero_biases(path, head)}
    has_bias = any(
        name.endswith(".output_norm.gate_bias") and name not in zero and bool((parameters[name] != 0).any()) for name in parameters
    )
    types = []
    for head in heads:
        path = paths[head.layer]
        inside = {name.removeprefix(f"{path}."): tensor for name, tensor in parameters.items() if name.startswith(f"{path}.")}
        fresh = {name.split(".", 2)[2]: tensor for name, tensor in inside.items()
                 if name.startswith("composed.") and f"{path}.{name}" not in zero}  # fmt: skip
        linear = isinstance(head.spec.memory[0], Delta)
        types.append("linear_attention" if linear else "full_attention")
        if linear:
            layer = _delta_layer(inside, fresh, config, head.spec.memory[0].called)
            weights |= {f"{path.replace('self_attn', 'linear_attn')}.{name}": tensor for name, tensor in layer.items()}
        else:
            layer = _softmax_layer(inside, fresh, config, has_bias)
            weights |= {f"{path}.{name}": tensor for name, tensor in layer.items()}
        assert not fresh, "every parameter of the heads has its place in the class"
    kernel = next(head.spec.conv.kernel for head in heads if head.spec.conv is not None)
    fields = {
        "layer_types": types,
        "attention_bias": has_bias,
        "mlp_only_layers": list(range(len(types))),
        "num_experts": 0,
        "linear_conv_kernel_dim": kernel,
        "linear_num_key_heads": config.num_attention_heads,
        "linear_num_value_heads": config.num_attention_heads,
        "linear_key_head_dim": config.head_dim,
        "linear_value_head_dim": config.head_dim,
        "rope_parameters": {**config.rope_parameters, "partial_rotary_factor": 1.0},
    }
    return fields, weights


def _delta_layers(model: Any, heads: Sequence[LayerHead]) -> Iterator[tuple[str, LayerHead]]:
    paths = {attention.layer: name for name, attention in attentions(model)}
    yield from ((paths[head.layer], head) for head in heads if isinstance(head.spec.memory[0], Delta))


def _zero_biases(path: str, head: LayerHead) -> tuple[str, str]:
    """Return the parameters of a layer of the delta rule that the class lacks."""
    prefix = f"{path}.composed.{head.name}"
    return f"{prefix}.{head.spec.memory[0].called}_rate.bias", f"{prefix}.output_norm.gate_bias"


def _delta_layer(parameters: Mapping[str, Tensor], fresh: dict[str, Tensor], config: Any, memory: str) -> dict[str, Tensor]:
    """Return the tensors of ``linear_attn``. memory: the name of the memory in its head.

    The class has as many key heads as query heads, so keys and values of a group are written once for each of its query heads.
    """
    heads, size = config.num_attention_heads, config.head_dim

    def each_head(tensor: Tensor) -> Tensor:  # n ... -> H ...
        return tensor.repeat_interleave(heads // tensor.shape[0], dim=0)

    def projection(name: str) -> Tensor:  # H D C
        return each_head(parameters[f"{name}.weight"].unflatten(0, (-1, size)))

    gate = fresh.pop("output_norm.gate").unflatten(0, (-1, size))
    rates = each_head(fresh.pop(f"{memory}_rate.weight")), each_head(fresh.pop(f"{memory}_gate.weight"))
    taps = [each_head(fresh.pop(f"conv.{name}")).flatten(0, 1) for name in ("query", "key", "value")]
    return {
        "in_proj_qkvz.weight": torch.cat((*map(projection, ("q_proj", "k_proj", "v_proj")), gate), dim=1).flatten(0, 1),
        "in_proj_ba.weight": torch.stack(rates, dim=1).flatten(0, 1),
        "conv1d.weight": torch.cat(taps)[:, None],
        "dt_bias": each_head(fresh.pop(f"{memory}_gate.bias")),
        "A_log": each_head(fresh.pop(f"{memory}_gate.rate")),
        "norm.weight": fresh.pop("output_norm.weight"),
        "out_proj.weight": parameters["o_proj.weight"],
    }


def _softmax_layer(parameters: Mapping[str, Tensor], fresh: dict[str, Tensor], config: Any, has_bias: bool) -> dict[str, Tensor]:
    """Return the tensors of ``self_attn``. A missing output gate is sigmoid(0) = 1/2, before twice the output projection."""
    query, size = parameters["q_proj.weight"], config.head_dim
    gate, gate_bias = fresh.pop("output_norm.gate", None), fresh.pop("output_norm.gate_bias", None)
    output = parameters["o_proj.weight"] if gate is not None else 2 * parameters["o_proj.weight"]
    gate = torch.zeros_like(query) if gate is None else gate
    both = torch.cat((query.unflatten(0, (-1, size)), gate.unflatten(0, (-1, size))), dim=1)  # H 2D C
    layer = {
        "q_proj.weight": both.flatten(0, 1),
        "k_proj.weight": parameters["k_proj.weight"],
        "v_proj.weight": parameters["v_proj.weight"],
        "o_proj.weight": output,
    }
    for name in ("query", "key"):
        weight = fresh.pop(f"qk_norm.{name}", None)
        layer[f"{name[0]}_norm.weight"] = query.new_zeros(size) if weight is None else weight - 1
    if has_bias:
        layer |= {f"{name.removesuffix('.weight')}.bias": tensor.new_zeros(len(tensor)) for name, tensor in layer.items()
                  if name.endswith("_proj.weight")}  # fmt: skip
        if gate_bias is not None:
            both = torch.stack((torch.zeros_like(gate_bias).view(-1, size), gate_bias.view(-1, size)), dim=1)
            layer["q_proj.bias"] = both.flatten()
    return layer


def _is_norm(name: str) -> bool:
    """True for the norms whose weight the class stores less 1."""
    return name.endswith(("layernorm.weight", "model.norm.weight", ".qk_norm.query", ".qk_norm.key"))


def _survives_shift(weight: Tensor) -> bool:
    """True if 1 + (w - 1) is w up to the rounding of float32, for w - 1 in the weight's dtype."""
    return bool((((weight - 1).double() + 1) - weight.double()).abs().max() <= NORM_ROUNDING)


def _list_first(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
