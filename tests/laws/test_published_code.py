"""The references of the laws equal published code that runs on a CPU. The code computes in float32, so the tolerance is its
rounding. The references are compared with the heads to 1e-6 in float64.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from blocks.legend import Shape
from tests.laws.cases import SMALL, build_head
from tests.laws.published.compared import COMPARED
from tests.laws.published.layer import BLOCK, CHOSEN, Layer
from tests.laws.published.mathematics import (
    alibi_slopes,
    delta_rule,
    edited_state,
    linear_attention,
    log_sigmoid,
    regression,
    sigmoid,
    softmax_attention,
    unit,
)
from tests.laws.published.softmax import block_means, chosen_blocks
from tests.laws.test_published_layers import composed, head_of, layer_of, relative_difference, small

HEADS, WIDTH, TOKENS = 4, 8, 19
SHAPE = Shape(hidden_size=SMALL.hidden_size, heads=HEADS, key_heads=HEADS, head_dim=WIDTH)
"""Modules of transformers do not share keys among query heads."""
Filled = Callable[[Layer, Any], nn.Module]


def qwen3_next(layer: Layer, module: Any) -> nn.Module:
    config = module.Qwen3NextConfig(
        hidden_size=SHAPE.hidden_size,
        linear_num_key_heads=HEADS,
        linear_num_value_heads=HEADS,
        linear_key_head_dim=WIDTH,
        linear_value_head_dim=WIDTH,
        linear_conv_kernel_dim=4,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        rms_norm_eps=1e-5,
    )
    own = module.Qwen3NextGatedDeltaNet(config, 0)
    projections = [layer.projections[name].view(HEADS, WIDTH, -1) for name in ("query", "key", "value")]
    gate = layer["output_norm.gate"].view(HEADS, WIDTH, -1)
    rates = torch.stack((layer["delta_rate.weight"], layer["delta_gate.weight"]), dim=1)
    fill(own.in_proj_qkvz.weight, torch.cat((*projections, gate), dim=1).flatten(0, 1))
    fill(own.in_proj_ba.weight, rates.flatten(0, 1))
    fill(own.conv1d.weight, _taps(layer))
    fill(own.dt_bias, layer["delta_gate.bias"])
    fill(own.A_log, layer["delta_gate.rate"])
    fill(own.norm.weight, layer["output_norm.weight"])
    return own


def kimi_linear(layer: Layer, module: Any) -> nn.Module:
    config = module.KimiLinearConfig(
        hidden_size=SHAPE.hidden_size,
        linear_num_heads=HEADS,
        linear_head_dim=WIDTH,
        linear_conv_kernel_dim=4,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        rms_norm_eps=1e-5,
    )
    own = module.KimiLinearDeltaAttention(config, 0)
    for name, projection in (("query", own.q_proj), ("key", own.k_proj), ("value", own.v_proj)):
        fill(projection.weight, layer.projections[name])
    fill(own.conv1d.weight, _taps(layer))
    fill(own.b_proj.weight, layer["delta_rate.weight"])
    fill(own.forget_gate.f_a_proj.weight, layer["delta_gate.down"])
    fill(own.forget_gate.f_b_proj.weight, layer["delta_gate.up"])
    fill(own.forget_gate.dt_bias, layer["delta_gate.bias"])
    fill(own.forget_gate.A_log, layer["delta_gate.rate"])
    fill(own.g_a_proj.weight, layer["output_norm.gate_down"])
    fill(own.g_b_proj.weight, layer["output_norm.gate_up"])
    fill(own.o_norm.weight, layer["output_norm.weight"])
    return own


def fill(parameter: nn.Parameter, values: Tensor) -> None:
    parameter.data.copy_(values.reshape(parameter.shape))


def _taps(layer: Layer) -> Tensor:
    return torch.cat([layer[f"conv.{name}"].flatten(0, 1) for name in ("query", "key", "value")])


MODULES: dict[str, tuple[str, Filled, list[str]]] = {
    "gated-deltanet": ("qwen3_next", qwen3_next, []),
    "kda-hybrid": ("kimi_linear", kimi_linear, [f"head.memory.0.gate.rank={WIDTH}", f"head.output.rank={WIDTH}"]),
}


@pytest.mark.parametrize("size", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("name", MODULES)
def test_heads_equal_layers_of_transformers(name: str, size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer has the head's parameters, biases of 0 if the head has none, and no output projection."""
    family, filled, overrides = MODULES[name]
    module = pytest.importorskip(f"transformers.models.{family}.modeling_{family}")
    for function in ("torch_chunk_gated_delta_rule", "chunk_kimi_delta_attention", "causal_conv1d_fn"):
        # Its own code in PyTorch, not the kernels of packages that need a GPU.
        if hasattr(module, function):
            monkeypatch.setattr(module, function, inspect.unwrap(getattr(module, function)))
    spec, _ = head_of(small(name, overrides), "head")
    head = build_head(spec, SHAPE)
    for parameter in ("delta_rate.bias", "output_norm.gate_bias"):
        head.get_parameter(parameter).zero_()
    layer = layer_of(head, SHAPE, size)
    own = filled(layer, module).double()
    projection = "out_proj" if name == "gated-deltanet" else "o_proj"
    setattr(own, projection, nn.Identity())
    with torch.no_grad():
        wanted = own(layer.hidden[None])[0].double().view(-1, HEADS, WIDTH)
    assert relative_difference(composed(head, layer, "torch"), wanted) < 1e-4
    assert relative_difference(COMPARED[name].heads["head"](layer), wanted) < 1e-4


def drawn(seed: int, *sizes: int) -> Tensor:
    """Draw normal numbers T H … with a deviation of 0.3."""
    generator = torch.Generator().manual_seed(seed)
    return 0.3 * torch.randn(TOKENS, HEADS, *sizes, generator=generator, dtype=torch.float64)


QUERY, KEY, VALUE, OTHER_KEY, OTHER_VALUE, BY_FEATURE = (drawn(seed, WIDTH) for seed in range(6))
RATE, OTHER_RATE, BY_HEAD = (drawn(seed) for seed in range(6, 9))
ROOT = math.sqrt(WIDTH)


def fla_rows(*tensors: Tensor) -> list[Tensor]:
    """Return a batch of one row in flash-linear-attention's layout B T H …"""
    return [tensor[None] for tensor in tensors]


def fla_heads_first(*tensors: Tensor) -> list[Tensor]:
    """Return B H T …, the layout of flash-linear-attention's oldest references."""
    return [tensor.transpose(0, 1)[None] for tensor in tensors]


def delta_rules(naive: Any) -> tuple[Tensor, Tensor]:
    key, rate = unit(KEY), sigmoid(RATE)
    actual = naive.delta_rule_recurrence(*fla_heads_first(QUERY, key, VALUE, rate))[0][0].transpose(0, 1)
    return actual, delta_rule(QUERY, [(key, VALUE, rate)], None) / ROOT


def gated_delta_rules(naive: Any) -> tuple[Tensor, Tensor]:
    key, rate, decay = unit(KEY), sigmoid(RATE), log_sigmoid(BY_HEAD)
    actual = naive.naive_recurrent_gated_delta_rule(*fla_rows(QUERY, key, VALUE, rate, decay))[0][0]
    return actual, delta_rule(QUERY, [(key, VALUE, rate)], decay.exp()[..., None]) / ROOT


def kimi_delta_attention(naive: Any) -> tuple[Tensor, Tensor]:
    key, rate, decay = unit(KEY), sigmoid(RATE), log_sigmoid(BY_FEATURE)
    actual = naive.naive_recurrent_kda(*fla_rows(QUERY, key, VALUE, decay, rate))[0][0]
    return actual, delta_rule(QUERY, [(key, VALUE, rate)], decay.exp()) / ROOT


def gated_delta_product(naive: Any) -> tuple[Tensor, Tensor]:
    steps = [(unit(KEY), VALUE, 2 * sigmoid(RATE)), (unit(OTHER_KEY), OTHER_VALUE, 2 * sigmoid(OTHER_RATE))]
    keys, values, rates = (torch.stack(of, dim=1).flatten(0, 1) for of in zip(*steps, strict=True))
    decay = log_sigmoid(BY_HEAD).float()
    query, keys, values, decays, rates = fla_rows(QUERY, keys, values, decay, rates)
    actual = naive.naive_recurrent_gated_delta_product(query, keys, values, decays, rates, 1 / ROOT, num_householder=2)[0][0]
    return actual, delta_rule(QUERY, steps, decay.double().exp()[..., None]) / ROOT


def generalised_delta_rule(naive: Any) -> tuple[Tensor, Tensor]:
    removed, rate, decay = unit(KEY), sigmoid(OTHER_VALUE), log_sigmoid(BY_FEATURE)
    inputs = (QUERY, OTHER_KEY, VALUE, -removed, rate * removed, decay)
    actual = naive.dplr_recurrence(*fla_heads_first(*(states.float() for states in inputs)))[0][0].transpose(0, 1)
    wanted = edited_state(QUERY, zip(decay.exp(), rate * removed, removed, OTHER_KEY, VALUE, strict=True))
    return actual, wanted / ROOT


def gated_delta_rule_2(naive: Any) -> tuple[Tensor, Tensor]:
    key, erase, write, decay = unit(KEY), sigmoid(OTHER_KEY), sigmoid(OTHER_VALUE), log_sigmoid(BY_FEATURE)
    actual = naive.naive_recurrent_gdn2(*fla_rows(QUERY, key, VALUE, decay, erase, write))[0][0]
    wanted = edited_state(QUERY, zip(decay.exp(), key, erase * key * decay.exp(), key, write * VALUE, strict=True))
    return actual, wanted / ROOT


def mesa_net(naive: Any) -> tuple[Tensor, Tensor]:
    key, rate, decay = unit(KEY), sigmoid(RATE), log_sigmoid(BY_HEAD)
    penalty = 0.25 + sigmoid(OTHER_KEY[0])
    actual = naive.naive_mesa_net_exact(*fla_rows(QUERY, key, VALUE, decay), penalty, rate[None])[0][0]
    return actual, regression(QUERY, key, VALUE, rate, decay.exp(), penalty)


def gated_linear_attention(naive: Any) -> tuple[Tensor, Tensor]:
    decay = log_sigmoid(BY_FEATURE)
    actual = naive.naive_recurrent_gla(*fla_rows(QUERY, KEY, VALUE, decay))[0][0]
    return actual, linear_attention(QUERY, KEY, VALUE, decay.exp()) / ROOT


def lightning_attention(naive: Any) -> tuple[Tensor, Tensor]:
    decay = -torch.tensor(alibi_slopes(HEADS), dtype=torch.float64).expand(TOKENS, -1)
    actual = naive.naive_recurrent_simple_gla(*fla_rows(QUERY, KEY, VALUE, decay))[0][0]
    return actual, linear_attention(QUERY, KEY, VALUE, decay.exp()[..., None]) / ROOT


def retention(naive: Any) -> tuple[Tensor, Tensor]:
    decay = torch.tensor([1 - 2.0 ** (-5 - head) for head in range(HEADS)], dtype=torch.float64).expand(TOKENS, -1)
    actual = naive.naive_retention(*fla_heads_first(QUERY, KEY, VALUE))[0].transpose(0, 1)
    return actual, linear_attention(QUERY, KEY, VALUE, decay[..., None]) / ROOT


def forgetting_attention(naive: Any) -> tuple[Tensor, Tensor]:
    decay = log_sigmoid(BY_HEAD)
    actual = naive.naive_forgetting_attn(*fla_rows(QUERY, KEY, VALUE, decay))[0]
    evicted = decay.cumsum(0)
    return actual, softmax_attention(QUERY, KEY, VALUE, bias=evicted[:, None] - evicted[None])


def native_sparse_attention(naive: Any) -> tuple[Tensor, Tensor]:
    """Two key heads, of two query heads each. The count of flash-linear-attention includes the own block."""
    key, value = KEY[:, :2], VALUE[:, :2]
    inputs = fla_rows(QUERY, key, value)
    means = fla_rows(*(torch.stack([block.mean(0) for block in of.split(BLOCK)]) for of in (key, value)))
    coarse, _ = naive.naive_nsa_compression(inputs[0], *means, BLOCK, 1 / ROOT)
    chosen = naive.naive_nsa_topk(inputs[0], means[0], CHOSEN + 1, BLOCK, 1 / ROOT)
    actual = torch.cat((coarse, naive.naive_nsa_selection(*inputs, chosen, BLOCK)))
    return actual, torch.stack([branch(QUERY, key, value) for branch in (block_means, chosen_blocks)])


NAIVE = {
    "delta_rule": delta_rules,
    "gated_delta_rule": gated_delta_rules,
    "kda": kimi_delta_attention,
    "gated_delta_product": gated_delta_product,
    "generalized_delta_rule.dplr": generalised_delta_rule,
    "gdn2": gated_delta_rule_2,
    "mesa_net": mesa_net,
    "gla": gated_linear_attention,
    "simple_gla": lightning_attention,
    "retention": retention,
    "forgetting_attn": forgetting_attention,
    "nsa": native_sparse_attention,
}


@pytest.mark.parametrize("name", NAIVE)
def test_naive_recurrences_equal_flash_linear_attention(name: str) -> None:
    """The naive forms have their own scale of 1/√K."""
    pytest.importorskip("fla")
    naive = import_module(f"fla.ops.{name}.naive")
    actual, wanted = NAIVE[name](naive)
    assert relative_difference(actual.double(), wanted) < 1e-5
