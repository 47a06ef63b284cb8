"""Combinations on fla's kernels: a mass beside another memory's, gaps in stored pairs, a window of the model.
``test_kernel_forms.py`` tests each form, and ``test_kernel_heads.py`` tests whole heads.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from blocks.flow import Tokens
from blocks.operation import Setting
from composer.graph.composition import HeadSpec
from composer.graph.lowering import lower
from composer.graph.wiring import build_graph
from composer.model.head import Head
from tests.interpreter import nothing_refused
from tests.laws.cases import SMALL, build_head, complete, inputs, run
from tests.laws.kernels import LENGTH, assert_on_kernels, packed_tokens

SHAPE = SMALL.shape(2)
ALONE = {"kind": "window", "size": 5, "evict": "drop"}
PARTS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "its mass beside a window's": (
        {"memory": [{"kind": "window", "size": 5, "weight": "learned"}, "state"], "feature_map": "hedgehog"}, {"chunk_simple_gla"}
    ),
    "a window": ({"memory": [ALONE], "position": "rope"}, {"parallel_attn"}),
    "pairs that fade": ({"memory": [{"kind": "full", "gate": "head"}]}, {"parallel_forgetting_attn"}),
    "all pairs": ({"memory": ["full"], "position": "rope"}, {"parallel_attn"}),
}  # fmt: skip


def kernels(spec: HeadSpec) -> set[str]:
    """Return the fla kernels of a head's program."""
    program = lower(build_graph(spec, SHAPE), "fla", Setting(documents=True))
    return {step.form.description for step in program.steps if step.form.backend == "fla"}


@pytest.mark.parametrize("name", ["its mass beside a window's", "all pairs"])
def test_gradients_match_the_definition(name: str) -> None:
    head, named = PARTS[name]
    spec = complete(head)
    assert kernels(spec) == named
    assert_on_kernels(spec, SHAPE, "fla", packed_tokens(), split=(9,), gradients=True)


@pytest.mark.parametrize("name", ["pairs that fade", "all pairs", "a window"])
def test_texts_continue_after_padding(name: str) -> None:
    """The pairs of the first call have gaps at different places in each row."""
    head, data = build_head(complete(PARTS[name][0]), SHAPE), inputs(SHAPE, 2, LENGTH)
    first, second = torch.arange(9), torch.arange(LENGTH - 9)
    tokens = (
        Tokens(first.repeat(2, 1), torch.tensor([[0] * 9, [1] * 9]), first < torch.tensor([[9], [4]])),
        Tokens(torch.stack((second + 9, second + 4)), torch.zeros(2, LENGTH - 9, dtype=torch.int64)),
    )

    def answer(module: Head, backend: str, dtype: torch.dtype) -> torch.Tensor:
        inputs, state, outputs = data.to(dtype), None, []
        for columns, of in zip((slice(0, 9), slice(9, LENGTH)), tokens, strict=True):
            output, state = run(module, replace(inputs.cut(columns), tokens=of), state, backend)
            outputs.append(output if of.valid is None else output * of.valid[..., None, None])
        return torch.cat(outputs, dim=1)

    wanted = answer(head, "reference", torch.float64)
    with nothing_refused():
        actual = answer(copy.deepcopy(head).float(), "fla", torch.float32)
    torch.testing.assert_close(actual.double(), wanted, rtol=0, atol=1e-5 * wanted.abs().max().item())


@pytest.mark.parametrize("name", ["pairs that fade", "all pairs"])
def test_the_window_of_the_host_is_applied(name: str) -> None:
    spec, around = complete(PARTS[name][0]), replace(SHAPE, window=4)
    assert_on_kernels(spec, around, "fla", packed_tokens(), split=(9,))
