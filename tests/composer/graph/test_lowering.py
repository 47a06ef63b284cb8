"""Every part reports its form, and this form runs. A backend may have a single form."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from blocks.flow import Tokens
from blocks.operation import EVERY, Setting
from composer.errors import BuildError
from composer.graph.lowering import AUTO, BACKENDS, FIRST, check_backend, list_forms, lower
from composer.graph.program import HeadInputs
from composer.graph.source import write_source
from composer.graph.wiring import build_graph
from composer.model.head import Head
from composer.spec.explain import explain_resolved
from composer.system.notices import FallsBack
from tests.composer.graph.backends import NAME, SAYS, own_backend
from tests.composer.graph.heads import SIZE, graph_of, resolved, shipped
from tests.laws.cases import build_head, inputs, run
from tests.shipped import FEW

WINDOW = {"kind": "window", "size": 4}
LINEAR = {"feature_map": "elu", "memory": ["state"]}
LOLCATS = {"feature_map": "hedgehog", "memory": [WINDOW, {"kind": "state", "gate": "head"}]}
LOLA = {"feature_map": "elu", "memory": [WINDOW, {"kind": "sparse", "size": 3}, "state"]}
CPU, GPU = Setting(), Setting(device="cuda")


def head_of(head: dict[str, Any]) -> Head:
    return build_head(resolved(head).heads["head"], SIZE.shape(4))


@pytest.mark.parametrize("name", FEW)
def test_every_part_of_every_spec_has_a_form_and_a_reason(name: str) -> None:
    for head in shipped(name).heads.values():
        graph = graph_of(head.model_dump(mode="json"))
        for backend in BACKENDS:
            explained = list_forms(graph, backend, CPU)
            assert {lowered_part.part for lowered_part in explained} == {node.name for node in graph.parts if node.path is not None}
            for lowered_part in explained:
                assert lowered_part.kind == graph.nodes[lowered_part.part].kind
                assert lowered_part.backend in {backend, "torch"}
                why = lowered_part.why_this_form
                assert backend in {lowered_part.backend, AUTO} or f"it has no {backend} form" in why or ": " in why
                assert lowered_part.form
                assert lowered_part.why_this_form


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
def test_full_attention_reports_its_form(head: dict, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(head)
    (full,) = [lowered_part for lowered_part in list_forms(graph, "torch", CPU) if lowered_part.part == "full"]
    assert full.form == form
    if form != "scaled_dot_product_attention":
        assert full.why_this_form.startswith("scaled_dot_product_attention: PyTorch's attention ")
    (reference,) = [lowered_part for lowered_part in list_forms(graph, "reference", CPU) if lowered_part.part == "full"]
    assert reference.form == "all pairs, masked"

    calls, native = [], torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda *a, **k: (calls.append(1), native(*a, **k))[1])
    module = Head(resolved(head).heads["head"], SIZE.shape(4))
    start = module.empty_state(1, torch.float32, torch.device("cpu"))
    tokens = Tokens(torch.arange(6)[None])
    data = HeadInputs(torch.randn(1, 6, 24), torch.randn(1, 6, 4, 8), torch.randn(1, 6, 2, 8), torch.randn(1, 6, 2, 8), tokens)
    module(data, start, "torch")
    assert bool(calls) is (form == "scaled_dot_product_attention")


def test_no_gpu_form_is_suggested_if_none_fits() -> None:
    by_part = {lowered_part.part: lowered_part.why_this_form for lowered_part in list_forms(graph_of(LINEAR), "torch", CPU)}
    assert by_part["state"] == FIRST


@pytest.mark.parametrize("memory", ["state", "full", {"kind": "latents", "size": 8}])
def test_bidirectional_heads_have_no_decode_forms(memory: Any) -> None:
    head = {"memory": [memory], "mix_input": {"kind": "rglru", "feeds": "inputs" if isinstance(memory, dict) else "qk"}}
    head |= {"feature_map": "elu"} if memory == "state" else {}
    graph = build_graph(resolved(head).heads["head"], replace(SIZE.shape(4), both_ways=True))
    forms = {lowered_part.part: lowered_part.form for lowered_part in list_forms(graph, "torch", CPU)}
    assert not any("decode" in form or "scaled_dot" in form for form in forms.values())
    assert forms["mix_input"].startswith("a scan over chunks")


def test_on_a_gpu_kernels_are_preferred_and_other_parts_have_a_reason() -> None:
    def explained(head: dict[str, Any], backend: str) -> dict[str, tuple[str, str]]:
        return {
            lowered_part.part: (lowered_part.backend, lowered_part.why_this_form)
            for lowered_part in list_forms(graph_of(head), backend, GPU)
        }

    assert explained(LINEAR, AUTO)["state"] == ("fla", FIRST)
    assert explained(LINEAR, "torch")["state"] == ("torch", "the backend is torch")
    assert explained(LINEAR, AUTO)["state_features"] == (AUTO, "one form computes it everywhere")
    why = explained({"memory": ["full"]}, AUTO)["full"][1]
    assert why.endswith("PyTorch selects FlashAttention's kernel or cuDNN's itself")
    assert explained({"memory": [{"kind": "full", "gate": "head"}]}, AUTO)["full"][0] == "fla"
    assert explained(LOLCATS, AUTO)["window"] == ("triton", FIRST)
    assert explained(LOLA, AUTO)["window"][0] == "triton"
    backend, why = explained(LOLA, "fla")["window"]
    assert backend == "torch"
    assert "parallel_attn: its attention returns no mass, and the read needs it" in why
    assert all(
        "the backend is reference" in lowered_part.why_this_form for lowered_part in list_forms(graph_of(LINEAR), "reference", GPU)
    )


def test_decode_has_a_separate_backend_and_reason() -> None:
    (state,) = [lowered_part for lowered_part in list_forms(graph_of(LINEAR), AUTO, GPU) if lowered_part.part == "state"]
    assert (state.backend, state.decode, state.decode_backend) == ("fla", "one step of the recurrence", "torch")
    assert state.decode_why_this_form is not None
    assert state.decode_why_this_form.startswith("fused_recurrent_simple_gla: its kernel would copy a state for each of the query")
    (full,) = [
        lowered_part for lowered_part in list_forms(graph_of({"memory": ["full"]}), AUTO, GPU) if lowered_part.part == "full"
    ]
    assert (full.decode, full.decode_backend, full.decode_why_this_form) == (None, None, None)


@pytest.mark.parametrize(
    ("head", "form"), [(LINEAR, SAYS), (LOLCATS, SAYS), (LOLA, f"one eviction after the other; {SAYS}")], ids=str
)
def test_external_forms_are_used_only_for_their_part(head: dict, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other parts fall back with a reason, and the results are the same in prefill and in decode."""
    data = inputs(SIZE.shape(4), 2, 12)
    expected, _ = run(head_of(head), data)
    with own_backend(monkeypatch) as calls:
        graph = graph_of(head)
        explained = {lowered_part.part: lowered_part for lowered_part in list_forms(graph, NAME, CPU)}
        for part, lowered_part in explained.items():
            everywhere = any(form.backend == EVERY for form in graph.nodes[part].operation.forms)
            own = part in {"state", "sparse"}
            assert lowered_part.backend == (NAME if own or everywhere else "torch")
            assert (SAYS in lowered_part.form) is own
            assert own or everywhere or lowered_part.why_this_form.startswith(f"it has no {NAME} form")
        assert explained["state"].form == form
        lines = [line for line in write_source(lower(graph, NAME)).text.splitlines() if SAYS in line]
        assert len(lines) == 1
        assert f"{NAME}: {form}" in lines[0]
        (group,) = explain_resolved(resolved(head), backend=NAME).groups
        assert {part.part: part for part in group.parts} == explained

        module = head_of(head)
        actual, state = run(module, data.cut(slice(0, 8)), backend=NAME)
        assert calls
        outputs, before = [actual], len(calls)
        for t in range(8, 12):
            actual, state = run(module, data.cut(slice(t, t + 1)), state, NAME)
            outputs.append(actual)
        assert len(calls) > before
        torch.testing.assert_close(torch.cat(outputs, dim=1), expected, rtol=1e-10, atol=1e-10)

        # Whoever does not ask for it is not given it.
        assert not any(SAYS in lowered_part.form for backend in BACKENDS for lowered_part in list_forms(graph, backend, CPU))
        calls.clear()
        for backend in BACKENDS:
            run(module, data, backend=backend)
        assert not calls


def test_forms_that_do_not_fit_are_skipped_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a form for single tokens only, prefill falls back with a reason, decode does not, and explain shows both."""
    data = inputs(SIZE.shape(4), 2, 6)
    with own_backend(monkeypatch, lambda setting: None if setting.one_token else "it takes one token") as calls:
        state_of = {lowered_part.part: lowered_part for lowered_part in list_forms(graph_of(LINEAR), NAME, CPU)}["state"]
        assert (state_of.backend, state_of.decode) == ("torch", SAYS)
        assert state_of.why_this_form == f"{SAYS}: it takes one token"
        module = head_of(LINEAR)
        _, state = run(module, data.cut(slice(0, 5)), backend=NAME)
        assert not calls
        run(module, data.cut(slice(5, 6)), state, NAME)
        assert calls == [(2, 1, 4, 8)]


FOUR, DOCUMENTS, REAL = torch.arange(4)[None], torch.tensor([[0, 0, 1, 1]]), torch.tensor([[True, True, True, False]])


@pytest.mark.parametrize(
    ("tokens", "dtype", "gradients", "wanted"),
    [
        (Tokens(FOUR), torch.float64, True, Setting(dtype="float64", gradients=True)),
        (Tokens(FOUR), torch.float32, False, Setting()),
        (Tokens(FOUR[:, :1]), torch.float32, False, Setting(one_token=True)),
        (Tokens(FOUR, DOCUMENTS), torch.bfloat16, False, Setting(dtype="bfloat16", documents=True)),
        (Tokens(FOUR, None, REAL), torch.float32, False, Setting(padded=True)),
    ],
    ids=["gradients", "plain", "one token", "documents", "padded"],
)
def test_obstacles_are_checked_for_the_setting_of_the_call(
    tokens: Tokens, dtype: torch.dtype, gradients: bool, wanted: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: list[Setting] = []
    with own_backend(monkeypatch, settings.append) as calls, torch.set_grad_enabled(gradients):
        data = inputs(SIZE.shape(4), 1, tokens.position.shape[1]).to(dtype)
        run(head_of(LINEAR).to(dtype), replace(data, tokens=tokens), backend=NAME)
        assert calls
    (shape,) = (node.shape for node in graph_of(LINEAR).parts if node.name == "state")
    assert set(settings) == {wanted._replace(every_pair=True, needs_mass=False, shape=shape)}


def test_unknown_backends_are_refused_with_the_existing_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BuildError, match=r'there is no backend "own"; there are auto, fla, reference, torch, triton$'):
        explain_resolved(shipped("lolcats"), backend=NAME)
    with own_backend(monkeypatch):
        graph = graph_of(LINEAR)
        assert check_backend(NAME, [graph]) == NAME
        with pytest.raises(BuildError, match=r'no backend "every"; there are auto, fla, own, reference, torch, triton$'):
            check_backend(EVERY, [graph])
        # A head without the recurrence has no form of that name.
        with pytest.raises(BuildError, match=r"there are auto, fla, reference, torch, triton$"):
            check_backend(NAME, [graph_of({"memory": ["full"]})])


def test_backends_without_a_fitting_form_give_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning is for a call of several tokens. There is none if some part runs on the backend, or without a chosen backend."""
    data, alone = inputs(SIZE.shape(4), 1, 6), head_of({"memory": [{**WINDOW, "evict": "drop"}]})
    here = "with several tokens at once (cpu, float64, with gradients)"
    why = f"backend {NAME} is set, but no part of a head (`window`) runs on it {here}. "
    with pytest.warns(FallsBack, match=re.escape(f"{why}Run `compose explain --backend {NAME}` for the reasons")) as caught:
        run(alone, data, backend=NAME)
    assert [warning.filename for warning in caught] == [__file__]  # the first that is no code of the package
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallsBack)
        run(alone, data, backend=NAME)
    with own_backend(monkeypatch) as calls, warnings.catch_warnings():
        warnings.simplefilter("error", FallsBack)
        run(head_of(LINEAR), data, backend=NAME)
        run(head_of(LOLCATS), data, backend="torch")
        run(head_of({"memory": ["full"]}), data.cut(slice(0, 1)), backend=NAME)
    assert calls


class OperationCounter(TorchDispatchMode):
    """Counts the operations of PyTorch in a block."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


SLIDING = {"kind": "window", "size": 64}
TOKEN_BY_TOKEN = {
    "lola": {"feature_map": "elu", "memory": [SLIDING, "sparse", "state"]},
    "recent": {"feature_map": "elu", "memory": [SLIDING, {"kind": "sparse", "keep": "recent"}, "state"]},
    "alone": {"memory": [SLIDING, {"kind": "sparse", "keep": "recent", "evict": "drop"}]},
    "delta": {"feature_map": "elu", "memory": [SLIDING, "sparse", "delta"], "read": "sum"},
}
FURTHER = 64


@pytest.mark.parametrize("name", [*TOKEN_BY_TOKEN, *FEW])
def test_only_memories_that_run_token_by_token_are_slow(name: str) -> None:
    """Such a memory executes dozens of operations for each further token, and one in chunks fewer than three."""
    own = TOKEN_BY_TOKEN.get(name)
    whole = shipped(name) if own is None else resolved(own)
    shape = replace(SIZE.shape(4), both_ways=whole.direction == "bidirectional")
    for head in whole.heads.values():
        module, counts = build_head(head, shape), list[int]()
        for length in (128, 128 + FURTHER):
            with OperationCounter() as counter:
                run(module, inputs(shape, 1, length))
            counts.append(counter.count)
        is_slow = any(memory.why_slow(node.shape) for node, memory in build_graph(head, shape).memories)
        assert is_slow == (counts[1] - counts[0] >= 10 * FURTHER) == (own is not None)
