"""Every rule rejects its case with the place and the remedy, and accepts the nearest valid case."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from blocks.memories.state import StateMemory
from composer.errors import GraphError
from composer.graph.rules import RESERVED, check_graph
from composer.model.head import Head
from composer.spec.dimensions import Dimensions
from converters.config import LARGEST
from tests.composer.graph.heads import SIZE, resolved
from tests.composer.graph.refusals import Case, assert_refused, refused

WINDOW, STATE, FULL = {"kind": "window", "size": 4}, {"kind": "state"}, {"kind": "full"}
DROP, LATENTS = {**WINDOW, "evict": "drop"}, {"kind": "latents", "size": 8}
LOLCATS = {"feature_map": "elu", "memory": [WINDOW, STATE]}
ALONE = {"feature_map": "elu", "memory": [STATE]}

SPARSE = {"kind": "sparse", "size": 3}

CASES: dict[str, Case] = {
    "two of a name": (
        {**LOLCATS, "memory": [WINDOW, WINDOW, STATE]},
        (1,),
        'two memories of this head are called "window"; set another `name:` for this one, such as `name: window2`',
        {**LOLCATS, "memory": [WINDOW, {**WINDOW, "name": "far"}, STATE]},
    ),
    "a name that a gate has": (
        {**LOLCATS, "memory": [{**WINDOW, "name": "state_gate"}, {**STATE, "gate": "head"}]},
        (1,),
        '"state_gate"; set another',
        {**LOLCATS, "memory": [{**WINDOW, "name": "state_window"}, {**STATE, "gate": "head"}]},
    ),
    "a name that features have": (
        {**LOLCATS, "memory": [{**STATE, "name": "x"}, {**STATE, "name": "x_features"}], "flow": "parallel"},
        (1,),
        '"x_features"; set another',
        {**LOLCATS, "memory": [{**STATE, "name": "x"}, {**STATE, "name": "y"}], "flow": "parallel"},
    ),
    "a name of the graph": (
        {**LOLCATS, "memory": [{**WINDOW, "name": "pairs"}, STATE]},
        (0,),
        '"pairs" names all pairs of the text; set',
        {**LOLCATS, "memory": [{**WINDOW, "name": "pair"}, STATE]},
    ),
    "a name that a mixer has": (
        {"mix_input": "conv", "memory": [{**LATENTS, "name": "mix_input"}]},
        (0,),
        'two elements of this head have the name "mix_input"; set another `name:` for this memory',
        {"memory": [{**LATENTS, "name": "mix_input"}]},
    ),
    "a name that a memory's rate has": (
        {"feature_map": "elu", "memory": [{**WINDOW, "name": "delta_rate"}, {"kind": "delta"}], "read": "sum"},
        (0,),
        '"delta_rate"; set another',
        {"feature_map": "elu", "memory": [{**WINDOW, "name": "conv"}, {"kind": "delta"}], "read": "sum"},
    ),
    "a name of PyTorch's": (
        {**LOLCATS, "memory": [{**WINDOW, "name": "half"}, STATE]},
        (0, "name"),
        'attribute "half"; choose another name for this memory',
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
        "or set `inputs: [v]`",
        {"conv": {"kind": "causal", "inputs": ["v"]}, "memory": [FULL]},
    ),
    "a mixer that nobody looks at": (
        {"mix_input": "rglru", "memory": [{**WINDOW, "weight": "learned"}, FULL]},
        "mix_input",
        "a `latents` memory and a `weight: token` read `feeds: inputs`",
        {"mix_input": "rglru", "memory": [{**WINDOW, "weight": "token"}, FULL]},
    ),
    "a mixer of queries that latents have none of": (
        {"mix_input": {"kind": "conv", "feeds": "qk"}, "conv": {"kind": "causal", "inputs": ["v"]}, "memory": [LATENTS]},
        "mix_input",
        "queries and keys, which latents do not have, read `feeds: qk`",
        {"mix_input": "conv", "conv": {"kind": "causal", "inputs": ["v"]}, "memory": [LATENTS]},
    ),
    "weights of latents that are not shares": (
        {"memory": [DROP, {**LATENTS, "weight": None}], "flow": "parallel", "read": "gated"},
        (1,),
        "the shares of latents are probabilities, which only `read: mixture` weighs against others",
        {"memory": [DROP, LATENTS], "flow": "parallel", "read": "mixture"},
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
    "a weight among raw numerators": (
        {"feature_map": "elu", "memory": [{**WINDOW, "weight": 0.3}, {"kind": "delta"}], "read": "sum"},
        (0, "weight"),
        "this one alone has a mass; remove `weight`",
        {"feature_map": "elu", "memory": [WINDOW, {"kind": "delta", "weight": "learned"}], "read": "sum"},
    ),
    "one weight for all": (
        {"memory": [{**WINDOW, "weight": "learned"}, {**SPARSE, "weight": "same", "keep": "recent", "evict": "drop"}]},
        (0, "weight"),
        "all memories have this one weight, so it cancels; remove it from one of them",
        {"memory": [{**WINDOW, "weight": "learned"}, {**SPARSE, "keep": "recent", "evict": "drop"}]},
    ),
    "one number for all": (
        {"memory": [{**WINDOW, "weight": 0.3}, {**FULL, "weight": 0.3}], "flow": "parallel", "read": "mixture"},
        (0, "weight"),
        "so it cancels",
        {"memory": [{**WINDOW, "weight": 0.3}, {**FULL, "weight": 0.3}], "flow": "parallel", "read": "gated"},
    ),
    "a cache without room": (
        {"memory": [{**SPARSE, "size": 0, "keep": "recent", "evict": "drop"}]},
        (0, "size"),
        "it holds no pair, and no memory is below it; set `size`, or remove it",
        {"feature_map": "elu", "memory": [{**SPARSE, "size": 0}, {"kind": "state"}]},
    ),
    "learned pairs alone": (
        {"memory": [{"kind": "meta", "evict": "drop"}]},
        "memory",
        "no memory of this head sees the text; add one, such as `full`",
        {"memory": [{"kind": "meta"}, FULL]},
    ),
    "a norm of keys that nobody reads": (
        {"qk_norm": "rms", "memory": [{"kind": "meta"}, LATENTS], "flow": "parallel", "read": "mixture"},
        "qk_norm",
        "remove `qk_norm`",
        {"qk_norm": "rms", "memory": [{"kind": "meta"}, FULL]},
    ),
    "first pairs that another memory has kept": (
        {"memory": [{"kind": "first", "size": 4}, WINDOW, {"kind": "first", "size": 4, "name": "b"}, FULL]},
        (2, "size"),
        "the first 4 pairs are kept by another memory above, so this one is always empty; set `size` to more, or remove it",
        {"memory": [{"kind": "first", "size": 4}, WINDOW, {"kind": "first", "size": 5, "name": "b"}, FULL]},
    ),
    "parallel alone": ({"memory": [FULL], "flow": "parallel"}, "flow", "remove `flow`", {"memory": [FULL], "flow": "cascade"}),
    "below what never evicts": (
        {**LOLCATS, "memory": [STATE, WINDOW]},
        (0,),
        "put it last, or set `flow: parallel`",
        {**LOLCATS, "memory": [STATE, WINDOW], "flow": "parallel"},
    ),
    "below what never evicts, beside another such": (
        {"feature_map": "elu", "memory": [FULL, STATE]},
        (0,),
        "so the memory below it is always empty; set `flow: parallel`",
        {"feature_map": "elu", "memory": [FULL, STATE], "flow": "parallel"},
    ),
    "learned pairs into nothing": (
        {"memory": [WINDOW, {"kind": "meta"}]},
        (1,),
        "this memory evicts every pair, and no memory receives them; add a memory below it, such as `state`",
        {"memory": [WINDOW, {"kind": "meta"}, FULL]},
    ),
    "below what drops": ({**LOLCATS, "memory": [DROP, STATE]}, (0, "evict"), "remove `evict: drop`", LOLCATS),
    "a window into nothing": ({"memory": [WINDOW]}, (0,), "such as `state`, or set `evict: drop`", {"memory": [DROP]}),
    "windows into nothing": (
        {"memory": [WINDOW, {**WINDOW, "name": "far"}]},
        (1,),
        "set `evict: drop`",
        {"memory": [WINDOW, {**DROP, "name": "far"}]},
    ),
    "parallel windows into nothing": (
        {"memory": [DROP, {**WINDOW, "name": "far"}], "flow": "parallel"},
        (1,),
        "set `evict: drop`",
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
    "a raw numerator of signed features": (
        {"feature_map": "identity", "memory": [WINDOW, {**STATE, "normalise": False}]},
        (1,),
        "this `state` has no mass; set `read: sum` to add its raw numerator",
        {"feature_map": "identity", "memory": [WINDOW, {**STATE, "normalise": False}], "read": "sum"},
    ),
    "a raw numerator in one denominator": (
        {**LOLCATS, "memory": [WINDOW, {**STATE, "normalise": False}]},
        (1,),
        "set `normalise: true`, `read: sum` to add its raw numerator, or `read: mixture`",
        {**LOLCATS, "memory": [WINDOW, {**STATE, "normalise": False}], "read": "sum"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_rules_refuse_invalid_heads(case: str) -> None:
    assert_refused(CASES[case])


def test_rope_needs_pairs_of_coordinates() -> None:
    odd = Dimensions(hidden_size=12, layers=1, heads=2, key_heads=2, head_dim=3, rope_theta=100.0)
    error = refused({"memory": [FULL]}, odd)
    assert error.path == ("head", "memory", 0, "position")
    assert "the head dimension 3 is odd" in str(error)
    assert resolved({"memory": [FULL], "position": "none"}, odd)
    assert refused({"memory": [{**FULL, "position": "rope"}], "position": "none"}, odd).path == error.path


def test_decays_that_the_recurrence_does_not_support_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateMemory, "decay_ranks", frozenset({"none", "head"}))
    error = refused({**ALONE, "memory": [{**STATE, "gate": "channel"}]})
    assert error.path == ("head", "memory", 0, "gate")
    advice = str(error).partition("which a `state` memory does not support; it supports ")[2]
    assert {"`none`", "`head`"} <= set(advice.split(", "))
    assert "channel" not in advice
    assert resolved({**ALONE, "memory": [{**STATE, "gate": "head"}]})


@pytest.mark.parametrize(
    ("head", "path"),
    [
        ({**ALONE, "memory": [{**STATE, "gate": {"kind": "softplus", "fastest": 1e300}}]}, ("memory", 0, "gate", "fastest")),
        ({**ALONE, "memory": [{**STATE, "gate": {"kind": "head", "bias": -1e31}}]}, ("memory", 0, "gate", "bias")),
        ({"memory": [{**FULL, "gate": {"kind": "head", "temperature": 1e-310}}]}, ("memory", 0, "gate", "temperature")),
        ({"memory": [FULL], "position": {"kind": "rope", "theta": 1e-300}}, ("memory", 0, "position", "theta")),
    ],
)
def test_extreme_numbers_are_refused(head: dict[str, Any], path: tuple[str | int, ...]) -> None:
    """Such a number would overflow during the build, or give NaN."""
    error = refused(head)
    assert error.path == ("head", *path)
    assert "numbers reach from 1e-30 to 1e+30" in str(error)


@pytest.mark.parametrize(
    ("head", "path"),
    [
        ({**ALONE, "conv": {"kernel": LARGEST + 1}}, ("conv", "kernel")),
        ({"memory": [{**WINDOW, "size": 10**12, "evict": "drop"}]}, ("memory", 0, "size")),
        ({**ALONE, "conv": {"kernel": 2**31 + 1}}, ("conv", "kernel")),
        ({**ALONE, "memory": [{**STATE, "gate": {"kind": "channel", "rank": 10**10}}]}, ("memory", 0, "gate", "rank")),
    ],
)
def test_extreme_sizes_are_refused(head: dict[str, Any], path: tuple[str | int, ...]) -> None:
    error = refused(head)
    assert error.path == ("head", *path)
    assert str(error) == f"no size is larger than 2,147,483,648; lower `{path[-1]}`"


def test_large_seeds_are_accepted() -> None:
    sparse = {"kind": "sparse", "size": 3, "keep": {"kind": "random", "seed": 2**62}, "evict": "drop"}
    assert resolved({"memory": [WINDOW, sparse]})


def test_the_first_mistake_is_reported_first() -> None:
    head = {"memory": [{**WINDOW, "name": "half"}, {**WINDOW, "name": "half"}]}
    assert refused(head).path == ("head", "memory", 0, "name")


def test_paths_start_at_the_place_of_the_head() -> None:
    with pytest.raises(GraphError) as caught:
        check_graph(
            resolved({"memory": [DROP]}).heads["head"].model_copy(update={"flow": "parallel"}), SIZE.shape(4), ("heads", "x")
        )
    assert caught.value.path == ("heads", "x", "flow")


def test_attributes_of_modules_are_reserved_names() -> None:
    """A parameter with the name of an attribute of PyTorch's or our modules would end in a traceback."""
    owned = {name for name in (*dir(nn.Module()), *dir(Head)) if name[0].islower()}
    assert owned <= RESERVED
