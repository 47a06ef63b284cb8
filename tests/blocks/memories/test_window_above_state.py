"""A window and the state below it in one kernel equal both memories and their read, gradients included."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.flow import Tokens
from blocks.fused import joint
from blocks.legend import Shape
from blocks.operation import Setting
from composer.graph.lowering import list_forms, lower
from composer.graph.wiring import build_graph
from tests.blocks.fused.heads import ALIKE, GROUPED, assert_close, assert_defined
from tests.composer.graph.heads import graph_of
from tests.interpreter import nothing_refused
from tests.laws.cases import Inputs, build_head, complete, inputs, run

WINDOW = {"kind": "window", "size": 5, "weight": "learned"}
TERRACED = {"kind": "window", "size": 4, "shape": "terraced", "weight": "token"}
LOLCATS: dict[str, Any] = {"feature_map": "hedgehog", "memory": [WINDOW, {"kind": "state"}]}
CHANNEL = {"kind": "state", "gate": {"kind": "channel", "rank": 2}}
BY_FEATURE = {**LOLCATS, "memory": [WINDOW, CHANNEL]}
CHUNKS = [{"kind": "window", "size": 5, "shape": "terraced"}, CHANNEL]
"""Which do not fit into blocks: the entries of a block fall with tokens of several, and those of a chunk into two."""
ROW_MAX = {"kind": "shared", "scale": "row_max"}
SAYS = "blocks of queries against the state before them"
STEP = "one token against ring and state, which are written over, in one pass"
JOINT = {"window": SAYS, "state": SAYS}
LENGTH = 21
"""More than a block of 16, and not two of them."""
ON_GPU = Setting(device="cuda", dtype="bfloat16", gradients=True)


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint, "_block", lambda *_: 16)


def packed() -> Tokens:
    """Return a row of four documents. The first document continues the state."""
    lengths = [6, 1, 9, 5]
    position = torch.cat([torch.arange(length) for length in lengths])
    segment = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))
    return Tokens(position[None], segment[None])


def padded() -> Tokens:
    """Return two rows. The second row ends early."""
    position = torch.arange(LENGTH).expand(2, -1)
    return Tokens(position, None, position < torch.tensor([[LENGTH], [13]]))


@pytest.mark.parametrize(
    ("head", "shape", "bounds"),
    [
        (LOLCATS, GROUPED, ()),
        ({**LOLCATS, "read": ROW_MAX}, ALIKE, ()),
        ({**LOLCATS, "memory": [TERRACED, {"kind": "state", "weight": 0.3}]}, GROUPED, (3, 12)),
        ({**LOLCATS, "memory": [WINDOW, {"kind": "state", "gate": "head"}]}, GROUPED, (18,)),
        (BY_FEATURE, GROUPED, (18,)),
        ({**LOLCATS, "memory": [TERRACED, {"kind": "state", "gate": "head"}], "read": ROW_MAX}, GROUPED, (3, 12)),
        ({**LOLCATS, "memory": CHUNKS}, ALIKE, (2,)),
        ({**LOLCATS, "memory": [CHUNKS[0], {"kind": "state", "gate": "head"}]}, GROUPED, (2,)),
        ({**LOLCATS, "feature_map": "relu"}, GROUPED, ()),
        ({**LOLCATS, "conv": "causal", "position": "none"}, GROUPED, ()),
    ],
    ids=[
        "lolcats",
        "row_max",
        "terraced, split",
        "decay, split",
        "decay by the feature, split",
        "terraced, decay, split",
        "terraced, decay by the feature, split",
        "decay by the head, chunks that fit into no block, split",
        "masses of 0, one state head",
        "convolved",
    ],
)
def test_the_kernel_matches_the_definition(head: dict[str, Any], shape: Shape, bounds: tuple[int, ...]) -> None:
    assert_defined(head, shape, LENGTH, parts=JOINT, bounds=bounds)


@pytest.mark.parametrize(
    ("memory", "tokens", "rows"),
    [
        ([WINDOW, {"kind": "state", "gate": "head"}], packed(), 1),
        (BY_FEATURE["memory"], packed(), 1),
        ([TERRACED, {"kind": "state"}], packed(), 1),
        ([TERRACED, CHANNEL], packed(), 1),
        ([WINDOW, {"kind": "state", "gate": "head"}], padded(), 2),
        (BY_FEATURE["memory"], padded(), 2),
        ([TERRACED, {"kind": "state"}], padded(), 2),
        ([TERRACED, {"kind": "state", "gate": "head"}], padded(), 2),
    ],
    ids=[
        "documents, sliding",
        "documents, decay by the feature",
        "documents, terraced",
        "documents, terraced, decay by the feature",
        "padding, sliding",
        "padding, decay by the feature",
        "padding, terraced",
        "padding, terraced, decay",
    ],
)
def test_several_documents_and_rows_that_end_early_match_the_definition(memory: list[Any], tokens: Tokens, rows: int) -> None:
    assert_defined({**LOLCATS, "memory": memory}, GROUPED, LENGTH, parts=JOINT, rows=rows, tokens=tokens)


def test_padding_alone_returns_the_state_unchanged() -> None:
    """A row that ended in the previous call returns its state unchanged."""
    position = torch.arange(LENGTH).expand(2, -1)
    tokens = Tokens(position, None, position < torch.tensor([[LENGTH], [10]]))
    memory = [TERRACED, {"kind": "state", "gate": "head"}]
    assert_defined(
        {**LOLCATS, "memory": memory}, GROUPED, LENGTH, parts=JOINT, rows=2, tokens=tokens, bounds=(12,), gradients=False
    )


DECODED = [
    (LOLCATS, GROUPED),
    ({**LOLCATS, "read": ROW_MAX, "conv": "causal"}, ALIKE),
    ({**LOLCATS, "memory": [TERRACED, {"kind": "state", "weight": 0.3}]}, GROUPED),
    (BY_FEATURE, GROUPED),
    ({**LOLCATS, "memory": [TERRACED, CHANNEL]}, GROUPED),
    ({**LOLCATS, "memory": [WINDOW, {"kind": "state", "gate": "head"}], "feature_map": "relu"}, GROUPED),
    ({**LOLCATS, "feature_map": "exp"}, ALIKE),
]
DECODERS = ["lolcats", "row_max, convolved", "terraced", "channel", "terraced, channel", "decay, one state head", "exponential"]


@pytest.mark.parametrize(("head", "shape"), DECODED, ids=DECODERS)
def test_a_decode_step_matches_the_definition(head: dict[str, Any], shape: Shape) -> None:
    """Rows are at different positions, four tokens apart. The ring wraps around, two chunks are evicted, and the document is not
    the row's first.
    """
    spec, data = complete(head), inputs(shape, 2, 17)
    ends = torch.tensor([[9], [5]])
    position = torch.arange(9).expand(2, -1)
    calls = [Inputs(*(tensor[:, :9] for tensor in data.tensors), Tokens(position, None, position < ends, position + 3))]
    steps = [Tokens(ends + t - 9, index=ends + t - 9 + 3) for t in range(9, 17)]
    calls += [Inputs(*(tensor[:, t : t + 1] for tensor in data.tensors), tokens) for t, tokens in enumerate(steps, 9)]
    forms = {
        lowered_part.part: lowered_part.form
        for lowered_part in list_forms(build_graph(spec, shape), "triton", Setting(one_token=True))
    }
    assert {forms["window"], forms["state"]} == {STEP}
    answers = []
    with torch.no_grad(), nothing_refused():
        for backend, kind in (("reference", torch.float64), ("triton", torch.float32)):
            module, state, outputs = build_head(spec, shape).to(kind), None, []
            for number, call in enumerate(calls):
                output, state = run(module, call.to(kind), state, backend if number else "reference")
                outputs.append(output)
            answers.append((torch.cat(outputs[1:], dim=1), state))
    (expected, held), (actual, kept) = answers
    assert_close(actual, expected)
    for name in held if "state.maximum" not in held else ():  # which have another scale there
        assert_close(kept[name], held[name])


@pytest.mark.parametrize("in_place", [False, True])
def test_a_decode_step_overwrites_its_state_only_if_in_place(in_place: bool) -> None:
    spec, data = complete(LOLCATS), inputs(GROUPED, 1, 8).to(torch.float32)
    module = build_head(spec, GROUPED).float()
    with torch.no_grad(), nothing_refused():
        _, state = run(module, data.cut(slice(0, 7)), backend="torch")
        before, last = {name: value.clone() for name, value in state.items()}, data.cut(slice(7, 8))
        _, after = module(last.of_head(), state, "triton", in_place)
    same = {name: torch.equal(before[name], value) for name, value in state.items()}
    assert all(same.values()) is not in_place
    assert all((after[name] is value) is in_place for name, value in state.items())


def test_large_logits_match_the_definition() -> None:
    """The window's mass is e^50 times the state's mass, or negligible beside it."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, LENGTH, 1, 8, generator=generator) for _ in range(3))
    mapped = torch.rand(2, 1, LENGTH, 1, 8, generator=generator) + 0.1
    rows, empty = torch.tensor([[4, LENGTH, 0, LENGTH]], dtype=torch.int32), torch.zeros(1, 1, 8, 9)
    key, value = (torch.cat((torch.zeros(1, 4, 1, 8), states), dim=1) for states in (key, value))
    for size in (1.0, 30.0, -30.0):
        weight = torch.full((1, LENGTH, 1), size)
        result, _ = joint.attend_jointly(query * 20, key, value, *mapped, None, weight, empty, joint.Evictions(4, 1, LENGTH, rows))
        for token in (0, 6, 20):
            near = key[0, max(token + 1, 4) : token + 5, 0] @ query[0, token, 0] * 20 / math.sqrt(8) + size
            far = (mapped[1, 0, 4 : token + 1, 0] @ mapped[0, 0, token, 0]).log()
            shares = torch.cat((far, near)).double().softmax(0).float()
            torch.testing.assert_close(result[0, token, 0], shares @ value[0, 4 : token + 5, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 6])
@pytest.mark.parametrize("steepest", [1.0, 60.0])
def test_steep_decays_have_finite_outputs_and_gradients(steepest: float, chunk: int) -> None:
    """A decay per feature of up to e^-60 per token exceeds the range of float32 over a block, in either direction."""
    generator, held = torch.Generator().manual_seed(1), 4 if chunk == 1 else 2 * chunk
    query, key, value = (torch.randn(1, LENGTH, 1, 8, generator=generator) for _ in range(3))
    asking = torch.rand(1, LENGTH, 1, 8, generator=generator) + 0.1
    mapped = torch.rand(1, LENGTH + chunk - 1, 1, 8, generator=generator) + 0.1
    decay = -steepest * torch.rand(1, LENGTH, 1, 8, generator=generator) ** 4
    key, value = (torch.cat((torch.zeros(1, held, 1, 8), states), dim=1) for states in (key, value))
    evicted = torch.arange(LENGTH) // chunk * chunk + chunk
    evicting = torch.searchsorted(evicted, torch.arange(LENGTH + held), right=True).clamp(max=LENGTH - 1)

    def defined(query: Tensor, key: Tensor, value: Tensor, asking: Tensor, mapped: Tensor, decay: Tensor) -> Tensor:
        clock, outputs = decay[0, :, 0].cumsum(0), []
        for token, end in enumerate(evicted.tolist()):
            near, far = slice(max(end, held), held + token + 1), slice(held, max(end, held))
            weights = (key[0, near, 0] @ query[0, token, 0] / math.sqrt(8)).exp()
            left = mapped[0, far, 0] * (clock[token] - clock[evicting[far]]).exp()
            shares = torch.cat((left @ asking[0, token, 0], weights))
            outputs.append(shares / shares.sum() @ value[0, held : held + token + 1, 0])
        return torch.stack(outputs)[None, :, None]

    answers = []
    for kind in (torch.float64, torch.float32):
        leaves = [tensor.to(kind, copy=True).requires_grad_() for tensor in (query, key, value, asking, mapped, decay)]
        if kind is torch.float64:
            output = defined(*leaves)
        else:
            rows = torch.tensor([[held, evicted[-1], 0, LENGTH]], dtype=torch.int32)
            evictions = joint.Evictions(held, chunk, LENGTH + chunk - 1, rows, None if chunk == 1 else evicted[None].int())
            output, _ = joint.attend_jointly(*leaves, None, torch.zeros(1, 1, 8, 9), evictions)
        (output * torch.arange(8)).sum().backward()
        answers.append([output.detach(), *(leaf.grad for leaf in leaves)])
    for actual, expected in zip(answers[1], answers[0], strict=True):
        assert actual is not None
        assert expected is not None
        assert_close(actual, expected)


@pytest.mark.parametrize("chunk", [1, 6])
@pytest.mark.parametrize("own", [(), (8,)], ids=["head", "channel"])
def test_a_decay_of_minus_infinity_equals_a_very_steep_decay(own: tuple[int, ...], chunk: int) -> None:
    """A decay of -inf has the same outputs, states and gradients as e^-100, and later tokens are as exact as before."""
    generator, held = torch.Generator().manual_seed(1), 4 if chunk == 1 else 2 * chunk
    query = torch.randn(1, LENGTH, 1, 8, generator=generator)
    key, value = (torch.randn(1, LENGTH + held, 1, 8, generator=generator) for _ in range(2))
    asking, mapped = torch.rand(1, LENGTH, 1, 8, generator=generator), torch.rand(1, LENGTH + chunk - 1, 1, 8, generator=generator)
    evicted = torch.arange(LENGTH) // chunk * chunk + chunk
    rows = torch.tensor([[held, evicted[-1], 0, LENGTH]], dtype=torch.int32)
    evictions = joint.Evictions(held, chunk, LENGTH + chunk - 1, rows, None if chunk == 1 else evicted[None].int())
    answers = []
    for steepest in (-math.inf, -100.0):
        decay = torch.full((1, LENGTH, 1, *own), -0.1)
        decay[:, 12:14] = steepest
        leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value, asking, mapped, decay)]
        output, last = joint.attend_jointly(*leaves, None, torch.zeros(1, 1, 8, 9), evictions)
        answers.append([output, last, *torch.autograd.grad(output.sum() + last.sum(), leaves)])
    for actual, expected in zip(*answers, strict=True):
        assert expected.isfinite().all()
        assert_close(actual, expected)


@pytest.mark.parametrize(
    ("head", "setting", "why"),
    [
        (LOLCATS, ON_GPU._replace(one_token=True), "a step of decode has one"),
        (LOLCATS, ON_GPU._replace(one_token=True), "it has no gradient"),
        (LOLCATS, ON_GPU._replace(one_token=True, gradients=False, documents=True), "several documents"),
        ({**LOLCATS, "feature_map": "exp"}, ON_GPU, "running maximum"),
        (LOLCATS, ON_GPU._replace(dtype="float64"), "do not support float64"),
        ({**LOLCATS, "feature_map": {"kind": "hedgehog", "dim": 160}}, ON_GPU, "at most 256 features"),
    ],
    ids=["decode", "gradients", "documents", "exponential", "float64", "wide"],
)
def test_settings_that_do_not_fit_have_a_reason(head: dict[str, Any], setting: Setting, why: str) -> None:
    forms = {lowered_part.part: lowered_part for lowered_part in list_forms(graph_of(head), "triton", setting)}
    assert not forms["state"].form.startswith(SAYS)
    assert why in next(step.why for step in lower(graph_of(head), "triton", setting).steps if step.covers[0].node.name == "state")


def test_auto_selects_the_kernel_on_a_gpu_including_the_read() -> None:
    (step,) = (step for step in lower(graph_of(LOLCATS), "auto", ON_GPU).steps if step.form.description.startswith(SAYS))
    assert step.names == ("window", "keys", "state", "read")


@pytest.mark.parametrize(
    "head",
    [
        {**LOLCATS, "read": "mixture"},
        {**LOLCATS, "flow": "parallel"},
        {
            **LOLCATS,
            "memory": [WINDOW, {"kind": "state"}, {"kind": "window", "name": "other", "evict": "drop"}],
            "graph": ["pairs -> window", "window -> state", "pairs -> other"],
        },
        {
            **LOLCATS,
            "memory": [WINDOW, {"kind": "state", "name": "one"}, {"kind": "state", "name": "two"}],
            "graph": ["pairs -> window", "window -> one", "window -> two"],
        },
    ],
    ids=["mixture", "parallel", "a third memory", "two states"],
)
def test_the_pattern_does_not_match_if_other_memories_are_read_or_fed(head: dict[str, Any]) -> None:
    assert not any(step.form.description.startswith(SAYS) for step in lower(graph_of(head), "triton", ON_GPU).steps)
