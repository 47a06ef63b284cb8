"""Tensor parallelism: the share of a composed model that one of several processes runs.

Each group of heads is divided by its key heads, with its parameters and states. The projections around the heads and, where
transformers' own plan divides it, the MLP are divided as in transformers. Everything else is whole in every process.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from blocks.flow import Tokens
from composer.graph.lowering import AUTO
from composer.graph.program import HeadInputs
from composer.model.attention import ComposedAttention
from composer.model.head import Head, anatomy
from composer.model.heads import ComposedHeads, groups_of, regroup
from composer.model.hosts import attentions
from composer.model.modeling import ComposedForCausalLM
from composer.spec.layer_rules import key_heads_of

OPTION = "--tensor-parallel-size"
PROJECTIONS = {"q_proj": "colwise", "k_proj": "colwise", "v_proj": "colwise", "o_proj": "rowwise"}
"""The projections of an attention that can be divided, as transformers' plans have them."""
Reduce = Callable[[Tensor], Tensor]
"""Returns the sum of a tensor over all processes."""
TOKENS = 32
"""Tokens of the random text that compares heads in a part of their group with heads among all of it."""
CLOSE = 1e-3
"""The largest difference that is rounding in float32, as a share of the largest output."""


def check_divisible(config: Any, size: int) -> None:
    """Raise ValueError for a model that ``size`` processes cannot divide, before its weights are loaded."""
    for layer, groups in enumerate(config.read_spec().layers):
        for group in groups:
            if group.key_heads % size:
                raise ValueError(
                    f"{OPTION} {size}: the group {group.head!r} of layer {layer} has {group.key_heads} key heads, which {size} "
                    "processes cannot share evenly. Pass a size that divides the key heads of every group"
                )
    plan = _plan(config)
    if any(plan.get(f"layers.*.self_attn.{name}") != style for name, style in PROJECTIONS.items()):
        raise ValueError(
            f"{OPTION} {size}: transformers has no plan that divides the four projections of {config.model_type} by heads. "
            "Leave the option out"
        )


def divide(model: ComposedForCausalLM, rank: int, size: int, reduce: Reduce) -> None:
    """Keep one process's share of the model, in place. Raises ValueError if the outputs of a group's heads depend on each other."""
    for _, attention in attentions(model):
        _divide_attention(attention, rank, size, reduce)
    by_parent: dict[str, list[tuple[nn.Module, str | None]]] = {}
    plan = _plan(model.config)
    for name, module in model.base.named_modules():
        style = plan.get(re.sub(r"\.\d+\.", ".*.", name))
        if style is not None and ".self_attn." not in name:
            by_parent.setdefault(name.rpartition(".")[0], []).append((module, style))
    for modules in by_parent.values():
        linears = [(module, style) for module, style in modules if isinstance(module, nn.Linear) and style in PROJECTIONS.values()]
        inner = {module.out_features if style == "colwise" else module.in_features for module, style in linears}
        if len(linears) < len(modules) or len(inner) != 1 or inner.pop() % size:
            continue  # such as experts: whole in every process
        for linear, style in linears:
            _keep(linear, style, size, [rank], reduce)


def _plan(config: Any) -> dict[str, str]:
    return getattr(config.get_text_config(), "base_model_tp_plan", None) or {}


def _divide_attention(attention: ComposedAttention, rank: int, size: int, reduce: Reduce) -> None:
    """Keep one process's share of an attention, in place. Raises ValueError if it belongs to all heads together."""
    facts, heads = attention.facts, attention.composed
    for name, parameter in attention.named_parameters():
        is_projection = any(name.startswith(f"{projection}.") for projection in PROJECTIONS)
        if not is_projection and not name.startswith("composed.") and (facts.sinks or parameter.shape != (facts.head_dim,)):
            raise ValueError(
                f"{OPTION} {size}: {name} of layer {attention.layer} belongs to all heads together. Leave the option out"
            )
    shares = [numbers[rank * len(numbers) // size :][: len(numbers) // size] for numbers in key_heads_of(heads._groups)]
    keys, per_key = sorted(chain.from_iterable(shares)), facts.heads // facts.key_heads
    queries = _queries(keys, per_key)
    attention.composed = _divide_heads(heads, [[keys.index(key) for key in share] for share in shares], rank, size)
    attention.facts = replace(facts, heads=len(queries), key_heads=len(keys))
    for name, style in PROJECTIONS.items():
        of_queries = name in ("q_proj", "o_proj")
        count, blocks = (facts.heads, queries) if of_queries else (facts.key_heads, keys)
        linear = attention.get_submodule(name)
        assert isinstance(linear, nn.Linear), "adapters are folded into the weights"
        _keep(linear, style, count, blocks, reduce)


def _queries(keys: Sequence[int], per_key: int) -> list[int]:
    """Return the numbers of the query heads that read these key heads."""
    return [per_key * key + index for key in keys for index in range(per_key)]


def _divide_heads(heads: ComposedHeads, shares: list[list[int]], rank: int, size: int) -> ComposedHeads:
    """Return one process's heads of a layer. shares: the key heads of each group among those of the process."""
    groups, modules = [], {}
    for group, (name, head), share in zip(heads._groups, groups_of(heads), shares, strict=True):
        _check_shares(name, head, share, size)
        groups.append(group.model_copy(update={"heads": group.heads // size, "key_heads": len(share), "numbers": tuple(share)}))
        modules[name] = _divide_head(name, head, share, rank, size)
    return regroup(heads, groups, modules)


@torch.no_grad()
def _divide_head(name: str, head: Head, share: list[int], rank: int, size: int) -> Head:
    """Return one process's part of a group. A parameter is divided along its axis that is longer with all of the heads."""
    full_head = anatomy(head)
    count = full_head.shape.heads // size
    place = full_head.place[0], full_head.place[1] + rank * count
    part = Head(
        full_head.head, replace(full_head.shape, heads=count, key_heads=len(share)), place, _queries(share, count // len(share))
    )
    for full_name, parameter in head.named_parameters():
        module, _, parameter_name = full_name.rpartition(".")
        shape = part.get_parameter(full_name).shape
        axes = [axis for axis, (own_size, all_of) in enumerate(zip(shape, parameter.shape, strict=True)) if own_size != all_of]
        if len(axes) > 1:
            raise ValueError(
                f"{OPTION} {size}: {full_name} of the head {name!r} belongs to several heads at once. Leave the option out"
            )
        values = parameter.chunk(size, axes[0])[rank] if axes else parameter
        part.get_submodule(module).register_parameter(
            parameter_name, nn.Parameter(values.clone(), requires_grad=parameter.requires_grad)
        )
    return part.train(head.training)


@torch.no_grad()
def _check_shares(name: str, head: Head, share: list[int], size: int) -> None:
    """Raise ValueError if heads have other outputs in a process's part of their group than among all heads of the group."""
    head = copy.deepcopy(head).float()
    shape, random = anatomy(head).shape, torch.Generator().manual_seed(0)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(1, TOKENS, *sizes, generator=random)

    hidden, query, key = draw(shape.hidden_size), draw(shape.heads, shape.head_dim), draw(shape.key_heads, shape.head_dim)
    # Each head has values of its own size, so that a norm over all heads shows.
    value = draw(shape.key_heads, shape.value_dim) * torch.arange(1, shape.key_heads + 1)[:, None]
    tokens = Tokens(torch.arange(TOKENS)[None])

    def run(head: Head, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        state = head.empty_state(1, hidden.dtype, hidden.device)
        return head(HeadInputs(hidden, query, key, value, tokens), state, AUTO)[0]

    parts = zip(*(states.chunk(size, dim=2) for states in (query, key, value, run(head, query, key, value))), strict=True)
    for rank, (*inputs, wanted) in enumerate(parts):
        output = run(_divide_head(name, head, share, rank, size), *inputs)
        if not (output - wanted).abs().max() <= CLOSE * wanted.abs().max():
            raise ValueError(
                f"{OPTION} {size}: the heads {name!r} depend on all heads of their group, as `latents`, a norm over all heads and "
                "the decays of `gate: constant` and `gate: slopes` do. Leave the option out"
            )


@torch.no_grad()
def _keep(linear: nn.Linear, style: str | None, count: int, block_numbers: Sequence[int], reduce: Reduce) -> None:
    """Keep some of ``count`` equal blocks of a matrix's outputs (colwise), or of its inputs (rowwise): then products are summed."""
    axis = 0 if style == "colwise" else 1
    blocks, bias = linear.weight.unflatten(axis, (count, -1)), linear.bias
    linear.weight = nn.Parameter(
        blocks.index_select(axis, torch.tensor(block_numbers)).flatten(axis, axis + 1), requires_grad=False
    )
    linear.out_features, linear.in_features = linear.weight.shape
    if axis == 0:
        if bias is not None:
            linear.bias = nn.Parameter(bias.unflatten(0, (count, -1))[list(block_numbers)].flatten(), requires_grad=False)
        return
    if bias is not None and 0 not in block_numbers:
        linear.register_parameter("bias", None)  # the first process adds it

    def sum_up(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        return reduce(output)

    linear.register_forward_hook(sum_up)
