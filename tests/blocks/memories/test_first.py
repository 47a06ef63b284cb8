"""The memory keeps the first pairs and evicts all others. With a window below it, the head is softmax over the first and last
pairs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.flow import Tokens
from blocks.memories import first
from blocks.operation import Setting
from blocks.softmax import dense
from composer.graph.lowering import list_forms
from composer.graph.wiring import build_graph
from tests.laws.cases import SMALL, Inputs, build_head, complete, inputs, pieces, run

SHAPE, KEPT, LAST = SMALL.shape(4), 2, 3
FIRST = {"kind": "first", "size": KEPT}
WINDOW = {"kind": "window", "size": LAST, "evict": "drop"}
SINKS = {"position": "none", "memory": [FIRST, WINDOW]}


def by_hand(data: Inputs, seen: list[list[int]]) -> Tensor:
    """Compute the softmax of each token over the places in ``seen``."""
    output = torch.zeros_like(data.query)
    for row in range(data.query.shape[0]):
        for token, places in enumerate(seen):
            for head in range(4):
                logits = data.key[row, places, head // 2] @ data.query[row, token, head] / math.sqrt(8)
                output[row, token, head] = logits.softmax(0) @ data.value[row, places, head // 2]
    return output


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize("shape", ["sliding", "terraced"])
def test_a_window_with_sinks_sees_the_first_and_the_last_tokens(shape: str, backend: str) -> None:
    data = inputs(SHAPE, 2, 17)
    head = build_head(complete(SINKS | {"memory": [FIRST, {**WINDOW, "shape": shape}]}), SHAPE)
    near = [range(t - LAST + 1 if shape == "sliding" else t - t % LAST - LAST, t + 1) for t in range(17)]
    seen = [sorted({*range(min(KEPT, t + 1)), *(s for s in near[t] if s >= 0)}) for t in range(17)]
    actual, state = run(head, data, backend=backend)
    torch.testing.assert_close(actual, by_hand(data, seen), rtol=1e-12, atol=1e-12)
    assert state["first.position"].tolist() == [[0, 1]] * 2
    outputs, state = [], None
    for piece in pieces(17, (1, 2, 3, 11)):
        output, state = run(head, data.cut(piece), state, backend)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, dim=1), actual, rtol=1e-12, atol=1e-12)


def test_kept_pairs_are_not_in_the_state_below() -> None:
    memory = [FIRST, {"kind": "window", "size": LAST}, {"kind": "state", "normalise": False}]
    head: dict[str, Any] = {"position": "none", "feature_map": "elu", "memory": memory, "read": "sum"}
    data = inputs(SHAPE, 1, 17)
    _, state = run(build_head(complete(head), SHAPE), data)
    evicted = list(range(KEPT, 17 - LAST))
    wanted = torch.einsum("bekf,bekd->bkfd", torch.nn.functional.elu(data.key[:, evicted]) + 1, data.value[:, evicted])
    torch.testing.assert_close(state["state.state"], wanted, rtol=1e-10, atol=1e-10)


def test_kernels_for_windows_without_gaps_do_not_run_below_kept_pairs() -> None:
    lolcats = {"feature_map": "hedgehog", "memory": [{"kind": "window", "size": LAST}, "state"]}
    for backend, kernel, memory, plain in (
        ("triton", "blocks of queries against the state", {**lolcats, "memory": [FIRST, *lolcats["memory"]]}, lolcats),
        ("fla", "parallel_attn", {**SINKS, "read": "mixture"}, {"position": "none", "memory": [WINDOW]}),
    ):
        alone, below = (
            next(
                lowered_part
                for lowered_part in list_forms(build_graph(complete(head), SHAPE), backend, Setting("cuda"))
                if lowered_part.part == "window"
            )
            for head in (plain, memory)
        )
        assert (alone.backend, alone.form[: len(kernel)]) == (backend, kernel)
        assert not below.form.startswith(kernel)
        assert backend == "triton" or "keeps some pairs for good, and its window has no gaps" in below.why_this_form


def test_the_kernel_that_supports_gaps_runs() -> None:
    (window,) = [
        lowered_part
        for lowered_part in list_forms(build_graph(complete(SINKS), SHAPE), "triton", Setting("cuda"))
        if lowered_part.part == "window"
    ]
    assert (window.backend, window.form) == ("triton", "blocks of queries against their window, with its mass, in one pass")


def test_queries_of_packed_documents_see_only_the_kept_pairs_of_their_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four documents in a row give the outputs of four rows. The softmax has columns for their kept pairs alone."""
    columns: list[int] = []

    def counted(query: Tensor, key: Tensor, *others: Any) -> Any:
        columns.append(key.shape[1])
        return dense(query, key, *others)

    monkeypatch.setattr(first, "dense", counted)
    data, head = inputs(SHAPE, 1, 40), build_head(complete({"position": "none", "memory": [FIRST, WINDOW]}), SHAPE)
    position = (torch.arange(40) % 10)[None]
    packed, state = run(head, replace(data, tokens=Tokens(position, torch.arange(40)[None] // 10 + 1)))
    assert columns == [4 * KEPT]
    for number in range(4):
        apart = data.cut(slice(10 * number, 10 * number + 10))
        output, last = run(head, replace(apart, tokens=Tokens(position[:, :10])))
        torch.testing.assert_close(packed[:, 10 * number : 10 * number + 10], output, rtol=1e-12, atol=1e-12)
    assert torch.equal(state["first.key"], last["first.key"])
