"""Whole heads on a kernel backend in float32 against the definition in float64: outputs, states and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from blocks.flow import Tokens
from blocks.legend import Shape
from blocks.operation import Setting, State
from composer.graph.lowering import list_forms
from composer.graph.wiring import build_graph
from tests.interpreter import nothing_refused
from tests.laws.cases import Inputs, build_head, complete, inputs, pieces, run

GROUPED = Shape(hidden_size=12, heads=2, key_heads=1, head_dim=8)
ALIKE = Shape(hidden_size=12, heads=2, key_heads=2, head_dim=12)
CLOSE = 1e-5
Answer = tuple[Tensor, State, list[Tensor]]


def assert_defined(
    head: Mapping[str, Any],
    shape: Shape,
    length: int,
    *,
    parts: Mapping[str, str],
    rows: int = 1,
    bounds: tuple[int, ...] = (),
    tokens: Tokens | None = None,
    gradients: bool = True,
    one_token: bool = False,
) -> None:
    """Check a head on triton against its definition. parts: for each part, the start of the name of its form. bounds: where the
    text is split into calls. one_token: use the forms of decode.
    """
    spec, data = complete(head), inputs(shape, rows, length)
    tokens = tokens or data.tokens
    data = Inputs(*data.tensors, tokens)
    setting = Setting(
        documents=tokens.segment is not None, padded=tokens.valid is not None, gradients=gradients, one_token=one_token
    )
    forms = {lowered_part.part: lowered_part for lowered_part in list_forms(build_graph(spec, shape), "triton", setting)}
    for part, expected_form in parts.items():
        assert (forms[part].backend, forms[part].form[: len(expected_form)]) == ("triton", expected_form), forms[part]

    def answer(backend: str, dtype: torch.dtype) -> Answer:
        module = build_head(spec, shape).to(dtype).requires_grad_(gradients)
        leaves = [tensor.to(dtype, copy=True).requires_grad_(gradients) for tensor in data.tensors]
        state, outputs = None, []
        with torch.set_grad_enabled(gradients):
            for piece in pieces(length, bounds):
                output, state = run(module, Inputs(*leaves, tokens).cut(piece), state, backend)
                outputs.append(output)
        output = torch.cat(outputs, dim=1)
        if tokens.valid is not None:
            output = output * tokens.valid[..., None, None]
        assert state is not None
        if not gradients:
            return output, state, []
        weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(dtype)
        (output * weight).sum().backward()
        wanted = [*leaves, *module.parameters()]
        return output.detach(), state, [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in wanted]

    expected, held, slopes = answer("reference", torch.float64)
    with nothing_refused():
        actual, kept, gave = answer("triton", torch.float32)
    assert_close(actual, expected)
    held, kept = unscaled(held), unscaled(kept)
    assert held.keys() == kept.keys()
    for name, entries in held.items():
        assert_close(kept[name], entries)
    for slope, other in zip(gave, slopes, strict=True):
        assert_close(slope, other)
    assert expected.abs().max() > 1e-3, "an output that is always zero proves nothing"


def unscaled(state: State) -> State:
    """Return the states without the factors by which a form has divided matrices of exponential features."""
    others = {name: entries for name, entries in state.items() if not name.endswith("maximum")}
    for name in state.keys() - others.keys():
        matrix = name.replace("maximum", "state")
        others[matrix] = state[matrix] * state[name].exp()[..., None]
    return others


def assert_close(actual: Tensor, expected: Tensor) -> None:
    """Compare two tensors up to a share of the largest number."""
    finite = expected.isfinite()
    assert torch.equal(actual.isfinite(), finite)
    scale = expected[finite].abs().max().item() if finite.any() else 0.0
    torch.testing.assert_close(actual.double()[finite], expected.double()[finite], rtol=0, atol=CLOSE * max(scale, 1e-3))
