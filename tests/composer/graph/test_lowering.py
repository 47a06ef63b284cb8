"""Every part says which form computes it, and the form that it says is the one that runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from blocks.flow import Tokens
from blocks.memories.full import Full
from composer.graph.graph import build_graph
from composer.graph.lowering import BACKENDS, lower
from composer.model.head import Head
from tests.composer.graph.heads import SIZE, graph_of, resolved, shipped
from tests.shipped import SHIPPED

WINDOW = {"kind": "window", "size": 4}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SHIPPED)
def test_every_part_of_every_spec_has_a_form_and_a_reason(name: str, backend: str) -> None:
    for head in shipped(name).heads.values():
        graph = graph_of(head.model_dump(mode="json"))
        lowered = lower(graph, backend, "cpu")
        assert {one.part for one in lowered} == {node for node, data in graph.nodes(data=True) if data["part"] is not None}
        for one in lowered:
            assert one.kind == graph.nodes[one.part]["part"].kind
            assert one.backend == backend
            assert one.form
            assert one.why_not_faster


@pytest.mark.parametrize(
    ("head", "form"),
    [
        ({"memory": ["full"]}, "scaled_dot_product_attention"),
        ({"memory": [WINDOW, "full"], "flow": "parallel", "read": "mixture"}, "scaled_dot_product_attention"),
        ({"memory": [WINDOW, "full"], "flow": "parallel"}, "blocks of 512 queries"),
        ({"memory": [WINDOW, "full"], "read": "mixture"}, "blocks of 512 queries"),
    ],
    ids=str,
)
def test_full_attention_says_which_of_its_two_forms_runs(head: dict, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(head)
    (full,) = [one for one in lower(graph, "torch", "cpu") if one.part == "full"]
    assert full.form == form
    (reference,) = [one for one in lower(graph, "reference", "cpu") if one.part == "full"]
    assert reference.form == Full.forms["reference"]

    calls, native = [], torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda *a, **k: (calls.append(1), native(*a, **k))[1])
    module = Head(resolved(head).heads["head"], SIZE.shape(4))
    start = module.empty_state(1, torch.float32, torch.device("cpu"))
    inputs = torch.randn(1, 6, 24), torch.randn(1, 6, 4, 8), torch.randn(1, 6, 2, 8), torch.randn(1, 6, 2, 8)
    module(*inputs, Tokens(torch.arange(6)[None]), start, "torch")
    assert bool(calls) is (form == "scaled_dot_product_attention")


def test_no_gpu_is_promised_where_none_would_help() -> None:
    by_part = {one.part: one.why_not_faster for one in lower(graph_of({"feature_map": "elu", "memory": ["state"]}), "torch", "cpu")}
    assert by_part["state"] == "of the forms that are built in, this is the fastest"


@pytest.mark.parametrize("memory", ["state", "full", {"kind": "latents", "size": 8}])
def test_both_ways_nothing_is_decoded(memory: Any) -> None:
    head = {"memory": [memory], "mix_input": {"kind": "rglru", "feeds": "inputs" if isinstance(memory, dict) else "qk"}}
    head |= {"feature_map": "elu"} if memory == "state" else {}
    graph = build_graph(resolved(head).heads["head"], replace(SIZE.shape(4), both_ways=True))
    forms = {one.part: one.form for one in lower(graph, "torch", "cpu")}
    assert not any("decode" in form or "scaled_dot" in form for form in forms.values())
    assert forms["mix_input"].startswith("a scan over chunks")


def test_a_gpu_is_told_what_is_missing() -> None:
    graph = graph_of({"feature_map": "elu", "memory": ["state"]})
    by_part = {one.part: one.why_not_faster for one in lower(graph, "torch", "cuda")}
    assert "no fla or triton form" in by_part["state"]
    assert by_part["state_features"] == "one form computes it everywhere"
    assert all("reference was asked for" in one.why_not_faster for one in lower(graph, "reference", "cuda"))
