"""Every rule refuses its case, says where it stands and what to write instead, and lets the nearest good case through."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

from blocks.catalogue import CATALOGUE
from blocks.memories.state import StateMemory
from composer.errors import GraphError
from composer.graph.composition import HeadSpec
from composer.graph.graph import build_graph
from composer.graph.rules import checked_graph, problems_of
from composer.graph.rules_of_spec import RESERVED, lines
from composer.model.head import Head
from composer.spec.dimensions import Dimensions
from composer.spec.resolve import complete_head
from tests.composer.graph.heads import SIZE, resolved
from tests.composer.graph.refusals import Case, assert_refused, refused

WINDOW, STATE, FULL = {"kind": "window", "size": 4}, {"kind": "state"}, {"kind": "full"}
DROP, LATENTS = {**WINDOW, "evict": "drop"}, {"kind": "latents", "size": 8}
LOLCATS = {"feature_map": "elu", "memory": [WINDOW, STATE]}
ALONE = {"feature_map": "elu", "memory": [STATE]}

SPARSE = {"kind": "sparse", "size": 3}
FIELDS = {kind: set(part.model_fields) for kind, part in CATALOGUE["memory"].items()}
KINDS = {"conv": "causal", "unshare": "copies", "mix_input": "conv"}

CASES: dict[str, Case] = {
    "two of a name": (
        {**LOLCATS, "memory": [WINDOW, WINDOW, STATE]},
        (1,),
        'two memories of this head are called "window"; give this one a `name:` of its own, such as `name: window2`',
        {**LOLCATS, "memory": [WINDOW, {**WINDOW, "name": "far"}, STATE]},
    ),
    "a name that a gate has": (
        {**LOLCATS, "memory": [{**WINDOW, "name": "state_gate"}, {**STATE, "gate": "head"}]},
        (1,),
        '"state_gate"; give',
        {**LOLCATS, "memory": [{**WINDOW, "name": "state_window"}, {**STATE, "gate": "head"}]},
    ),
    "a name that features have": (
        {**LOLCATS, "memory": [{**STATE, "name": "x"}, {**STATE, "name": "x_features"}], "flow": "parallel"},
        (1,),
        '"x_features"; give',
        {**LOLCATS, "memory": [{**STATE, "name": "x"}, {**STATE, "name": "y"}], "flow": "parallel"},
    ),
    "a name of the graph": (
        {**LOLCATS, "memory": [{**WINDOW, "name": "pairs"}, STATE]},
        (0,),
        '"pairs"; give',
        {**LOLCATS, "memory": [{**WINDOW, "name": "pair"}, STATE]},
    ),
    "a name of PyTorch's": (
        {**LOLCATS, "memory": [{**WINDOW, "name": "half"}, STATE]},
        (0, "name"),
        '"half" of their own; give this memory another name',
        {**LOLCATS, "memory": [{**WINDOW, "name": "halves"}, STATE]},
    ),
    "a state without features": ({"memory": [WINDOW, STATE]}, (1,), "add one, such as `feature_map: hedgehog`", LOLCATS),
    "features without a state": (
        {"feature_map": "elu", "memory": [FULL]},
        "feature_map",
        "remove `feature_map` (or set it to null)",
        {"feature_map": None, "memory": [FULL]},
    ),
    "a convolution without features": (
        {"conv": "causal", "memory": [FULL]},
        "conv",
        "remove `conv`",
        {"conv": None, "memory": [FULL]},
    ),
    "a convolution of which values alone are read": (
        {"conv": {"kind": "causal", "inputs": ["q", "v"]}, "memory": [FULL]},
        "conv",
        "or say `inputs: [v]`",
        {"conv": {"kind": "causal", "inputs": ["v"]}, "memory": [FULL]},
    ),
    "a mixer that nobody looks at": (
        {"mix_input": "rglru", "memory": [{**WINDOW, "weight": "learned"}, FULL]},
        "mix_input",
        "`feeds: inputs` is for a `latents` memory or a `weight: token` to look at",
        {"mix_input": "rglru", "memory": [{**WINDOW, "weight": "token"}, FULL]},
    ),
    "a mixer of queries that latents have none of": (
        {"mix_input": {"kind": "conv", "feeds": "qk"}, "conv": {"kind": "causal", "inputs": ["v"]}, "memory": [LATENTS]},
        "mix_input",
        "`feeds: qk` becomes queries and keys, which latents have none of",
        {"mix_input": "conv", "conv": {"kind": "causal", "inputs": ["v"]}, "memory": [LATENTS]},
    ),
    "a norm of queries that latents have none of": (
        {"qk_norm": "rms", "memory": [LATENTS]},
        "qk_norm",
        "remove `qk_norm` (or set it to null)",
        {"qk_norm": None, "memory": [LATENTS]},
    ),
    "tokens ahead of a causal head": (
        {"mix_input": {"kind": "conv", "both_ways": True}, "memory": [LATENTS]},
        ("mix_input", "both_ways"),
        "remove `both_ways`",
        {"mix_input": "conv", "memory": [LATENTS]},
    ),
    "a weight alone": (
        {"memory": [{**FULL, "weight": "learned"}]},
        (0, "weight"),
        "remove `weight`",
        {"memory": [{**WINDOW, "weight": "learned"}, FULL]},
    ),
    "parallel alone": ({"memory": [FULL], "flow": "parallel"}, "flow", "remove `flow`", {"memory": [FULL], "flow": "cascade"}),
    "below what never evicts": (
        {**LOLCATS, "memory": [STATE, WINDOW]},
        (0,),
        "put it last, or set `flow: parallel`",
        {**LOLCATS, "memory": [STATE, WINDOW], "flow": "parallel"},
    ),
    "below what drops": ({**LOLCATS, "memory": [DROP, STATE]}, (0, "evict"), "remove `evict: drop`", LOLCATS),
    "a window into nothing": ({"memory": [WINDOW]}, (0,), "such as `state`, or say `evict: drop`", {"memory": [DROP]}),
    "windows into nothing": (
        {"memory": [WINDOW, {**WINDOW, "name": "far"}]},
        (1,),
        "say `evict: drop`",
        {"memory": [WINDOW, {**DROP, "name": "far"}]},
    ),
    "parallel windows into nothing": (
        {"memory": [DROP, {**WINDOW, "name": "far"}], "flow": "parallel"},
        (1,),
        "say `evict: drop`",
        {"memory": [DROP, {**DROP, "name": "far"}], "flow": "parallel"},
    ),
    "a skip to another dimension": (
        {**ALONE, "feature_map": {"kind": "relu", "linear": True, "skip": True, "dim": 5}},
        ("feature_map", "dim"),
        "x has 8 numbers and xW has 5; set `dim: 8`",
        {**ALONE, "feature_map": {"kind": "relu", "linear": True, "skip": True, "dim": 8}},
    ),
    "a mass of signed features": (
        {**ALONE, "feature_map": "identity"},
        (0,),
        "choose a positive feature map, or set `normalise: false`",
        {"feature_map": "identity", "memory": [{**STATE, "normalise": False}]},
    ),
    "a raw numerator in one denominator": (
        {**LOLCATS, "memory": [WINDOW, {**STATE, "normalise": False}]},
        (1,),
        "set `normalise: true`, `read: sum` to add its raw numerator, or `read: mixture`",
        {**LOLCATS, "memory": [WINDOW, {**STATE, "normalise": False}], "read": "sum"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_rule(case: str) -> None:
    assert_refused(CASES[case])


HEADS = st.fixed_dictionaries(
    {
        "memory": st.lists(
            st.builds(
                lambda memory, more: memory | {name: said for name, said in more.items() if name in FIELDS[memory["kind"]]},
                st.sampled_from([WINDOW, DROP, {**WINDOW, "shape": "terraced"}, STATE, {"kind": "delta"}, FULL, LATENTS, SPARSE]),
                st.fixed_dictionaries(
                    {},
                    optional={
                        "weight": st.sampled_from(["learned", "token", 0.5]),
                        "keep": st.sampled_from(["recent", "squared_error", "overestimate"]),
                        "gate": st.sampled_from(["head", "from_key"]),
                        "normalise": st.just(False),
                    },
                ),
            ),
            min_size=1,
            max_size=4,
        )
    },
    optional={
        "feature_map": st.sampled_from(["elu", "identity"]),
        "conv": st.lists(st.sampled_from("qkv"), min_size=1, unique=True).map(lambda inputs: {"inputs": inputs}),
        "mix_input": st.sampled_from([{"kind": "conv"}, {"kind": "conv", "feeds": "qk"}, {"kind": "rglru", "both_ways": True}]),
        "unshare": st.sampled_from(["copies", {"inputs": ["v"]}]),
        "qk_norm": st.just("rms"),
        "flow": st.just("parallel"),
        "graph": st.lists(st.sampled_from(["pairs -> m0", "pairs -> m1", "m0 -> m1", "m1 -> m2", "m2 -> m3"]), min_size=1),
        "read": st.sampled_from(["sum", "mixture"]),
    },
)


@given(said=HEADS, both_ways=st.booleans())
@settings(deadline=None, max_examples=200)
def test_every_rule_comes_to_its_end_whatever_is_drawn(said: dict[str, Any], both_ways: bool) -> None:
    """Also on what another rule has refused; and a head is refused where one of them says something."""
    memories = [{**memory, "name": f"m{index}"} for index, memory in enumerate(said["memory"])]
    parts = {name: {"kind": kind, **said[name]} for name, kind in KINDS.items() if isinstance(said.get(name), dict)}
    try:
        whole = HeadSpec.model_validate({**said, **parts, "memory": memories})
    except ValidationError:
        return
    head, shape = complete_head(whole, SIZE), replace(SIZE.shape(4), both_ways=both_ways)
    if list(lines(head)):
        return
    graph = build_graph(head, shape)
    wrong = list(problems_of(graph))
    assert all(message and set(where) for message, where in wrong)
    if not wrong:
        assert checked_graph(head, shape, ()) is graph
        Head(head, shape)
        return
    with pytest.raises(GraphError) as caught:
        checked_graph(head, shape, ("head",))
    assert (str(caught.value), caught.value.path) == (wrong[0][0], ("head", *wrong[0][1]))


def test_rope_needs_pairs_of_coordinates() -> None:
    odd = Dimensions(hidden_size=12, layers=1, heads=2, key_heads=2, head_dim=3, rope_theta=100.0)
    error = refused({"memory": [FULL]}, odd)
    assert error.path == ("head", "memory", 0, "position")
    assert "the head dimension is 3" in str(error)
    assert resolved({"memory": [FULL], "position": "none"}, odd)
    assert refused({"memory": [{**FULL, "position": "rope"}], "position": "none"}, odd).path == error.path


def test_a_decay_that_the_recurrence_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateMemory, "decay_ranks", frozenset({"none", "head"}))
    error = refused({**ALONE, "memory": [{**STATE, "gate": "channel"}]})
    assert error.path == ("head", "memory", 0, "gate")
    advice = str(error).partition("which a `state` memory cannot; it takes ")[2]
    assert {"`none`", "`head`"} <= set(advice.split(", "))
    assert "channel" not in advice
    assert resolved({**ALONE, "memory": [{**STATE, "gate": "head"}]})


@pytest.mark.parametrize(
    ("head", "path"),
    [
        ({"memory": [{**WINDOW, "size": 10**12, "evict": "drop"}]}, ("memory", 0, "size")),
        ({**ALONE, "conv": {"kernel": 2**31 + 1}}, ("conv", "kernel")),
        ({**ALONE, "memory": [{**STATE, "gate": {"kind": "channel", "rank": 10**10}}]}, ("memory", 0, "gate", "rank")),
    ],
)
def test_a_size_that_cannot_be_meant(head: dict[str, Any], path: tuple[str | int, ...]) -> None:
    error = refused(head)
    assert error.path == ("head", *path)
    assert str(error) == f"no size is larger than 2,147,483,648; lower `{path[-1]}`"


def test_a_seed_is_no_size() -> None:
    sparse = {"kind": "sparse", "size": 3, "keep": {"kind": "random", "seed": 2**62}, "evict": "drop"}
    assert resolved({"memory": [WINDOW, sparse]})


def test_the_first_mistake_comes_first() -> None:
    head = {"memory": [{**WINDOW, "name": "half"}, {**WINDOW, "name": "half"}]}
    assert refused(head).path == ("head", "memory", 0, "name")


def test_a_path_starts_where_the_head_stands() -> None:
    with pytest.raises(GraphError) as caught:
        checked_graph(
            resolved({"memory": [DROP]}).heads["head"].model_copy(update={"flow": "parallel"}), SIZE.shape(4), ("heads", "x")
        )
    assert caught.value.path == ("heads", "x", "flow")


def test_names_that_modules_own_are_reserved() -> None:
    """In this version of PyTorch, and in our own modules: a parameter under such a name would end in a traceback."""
    owned = {name for name in (*dir(nn.ModuleDict()), *dir(Head)) if name[0].islower()}
    assert owned <= RESERVED
