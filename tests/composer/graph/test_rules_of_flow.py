"""Rules of the flow of pairs: edges in a spec, sparse caches and their neighbours, sizes, and masses."""

from __future__ import annotations

import pytest

from composer.errors import GraphError
from composer.spec.loading import load_spec
from composer.spec.resolve import Dimensions, resolve
from tests.composer.graph.heads import SIZE, resolved
from tests.composer.graph.refusals import Case, assert_refused, refused

WINDOW, STATE, SPARSE, DELTA = {"kind": "window", "size": 4}, {"kind": "state"}, {"kind": "sparse", "size": 3}, {"kind": "delta"}
CHUNKS = {**WINDOW, "shape": "terraced"}
DROP, LATENTS = {**WINDOW, "evict": "drop"}, {"kind": "latents", "size": 8}
LOLA = {"feature_map": "elu", "memory": [WINDOW, SPARSE, STATE]}
TWO = {"feature_map": "elu", "memory": [WINDOW, STATE]}
DOWN = ["pairs -> window", "window -> state"]
BESIDE = {"memory": [DROP, LATENTS], "flow": "parallel", "read": "mixture"}


def keeping(score: str, **more: object) -> dict[str, object]:
    return {**SPARSE, "keep": score, **more}


EDGES: dict[str, Case] = {
    "latents in a cascade": (
        {**BESIDE, "memory": [WINDOW, LATENTS], "flow": "cascade"},
        (1,),
        "a `latents` memory reads every token and no evicted pairs; set `flow: parallel`",
        BESIDE,
    ),
    "a flow beside the edges": (
        {**TWO, "graph": ["pairs -> window", "pairs -> state"], "flow": "parallel"},
        "flow",
        "both `graph` and `flow` define which pairs each memory receives; remove one of them",
        {**TWO, "graph": ["pairs -> window", "pairs -> state"]},
    ),
    "an edge to nowhere": (
        {**TWO, "graph": [*DOWN, "window -> stat"]},
        ("graph", 2),
        'there is no "stat" in this head; choose one of window, state, or `pairs` for all pairs',
        {**TWO, "graph": DOWN},
    ),
    "an edge from nowhere": (
        {**TWO, "graph": ["pairs -> window", "windw -> state"]},
        ("graph", 1),
        'there is no "windw" in this head',
        {**TWO, "graph": ["pairs->window", "window  ->state"]},
    ),
    "an edge into all pairs": (
        {**TWO, "graph": [*DOWN, "window -> pairs"]},
        ("graph", 2),
        "`pairs` cannot be the end of an edge: the projections compute them",
        {**TWO, "graph": DOWN},
    ),
    "an edge to latents": (
        {"memory": [DROP, LATENTS], "graph": ["pairs -> window", "pairs -> latents"], "read": "mixture"},
        ("graph", 1),
        "a `latents` memory reads every token and no pairs; leave this edge out",
        {"memory": [DROP, LATENTS], "graph": ["pairs -> window"], "read": "mixture"},
    ),
    "two sources": (
        {**TWO, "graph": [*DOWN, "pairs -> state"]},
        ("graph", 2),
        "`state` gets its pairs from `window` already; a memory has one source",
        {**TWO, "graph": DOWN},
    ),
    "an edge upwards": (
        {**TWO, "memory": [STATE, WINDOW], "graph": DOWN},
        ("graph", 1),
        "memories evict pairs downwards: list `state` below `window` in `memory`",
        {**TWO, "memory": [WINDOW, STATE], "graph": DOWN[::-1]},
    ),
    "an edge to itself": (
        {**TWO, "graph": ["pairs -> state", "window -> window"]},
        ("graph", 1),
        "a memory cannot feed itself; use `pairs -> window`, or an edge from a memory above",
        TWO,
    ),
    "a memory without an edge": (
        {**TWO, "graph": ["pairs -> window"]},
        (1,),
        "this memory receives no pairs; add an edge `pairs -> state`, or one from a memory above",
        {**TWO, "graph": ["pairs -> state", "pairs -> window"]},
    ),
    "an edge out of what never evicts": (
        {"feature_map": "elu", "memory": [STATE, {"kind": "full"}], "graph": ["pairs -> state", "state -> full"]},
        ("graph", 1),
        "a `state` memory never evicts pairs, so `full` would always be empty; use the edge `pairs -> full`",
        {"feature_map": "elu", "memory": [STATE, {"kind": "full"}], "graph": ["pairs -> state", "pairs -> full"]},
    ),
    "an edge out of what drops": (
        {**TWO, "memory": [DROP, STATE], "graph": DOWN},
        (0, "evict"),
        "remove `evict: drop`",
        {**TWO, "memory": [DROP, STATE], "graph": ["pairs -> window", "pairs -> state"]},
    ),
    "a state above a state": (
        {"feature_map": "elu", "memory": [STATE, {**STATE, "name": "b"}]},
        (0,),
        "so the memory below it is always empty; set `flow: parallel`",
        {"feature_map": "elu", "memory": [STATE, {**STATE, "name": "b"}], "flow": "parallel"},
    ),
    "a window whose edge leads to nobody": (
        {**TWO, "memory": [WINDOW, {**WINDOW, "name": "far"}, STATE], "graph": [*DOWN, "window -> far"]},
        (1,),
        "add an edge `far -> NAME` to a memory below it, or set `evict: drop`",
        {**TWO, "memory": [WINDOW, {**DROP, "name": "far"}, STATE], "graph": [*DOWN, "window -> far"]},
    ),
    "many pairs at a token into a window": (
        {**TWO, "memory": [CHUNKS, {**WINDOW, "name": "far"}, STATE]},
        (0, "shape"),
        "only a sparse cache or a state can receive; set `shape: sliding`",
        {**TWO, "memory": [WINDOW, {**CHUNKS, "name": "far"}, STATE]},
    ),
    "many pairs at a token along an edge": (
        {**TWO, "memory": [CHUNKS, {**DROP, "name": "far"}, STATE], "graph": [*DOWN, "window -> far"]},
        ("graph", 2),
        "only a sparse cache or a state can receive; set `shape: sliding`, or `pairs -> far`",
        {**TWO, "memory": [CHUNKS, {**DROP, "name": "far"}, STATE], "graph": [*DOWN, "pairs -> far"]},
    ),
    "many pairs at a token into all": (
        {"memory": [CHUNKS, "full"]},
        (0, "shape"),
        "only a sparse cache or a state can receive",
        {"feature_map": "elu", "memory": [CHUNKS, DELTA], "read": "sum"},
    ),
}

SPARSE_CASES: dict[str, Case] = {
    "a cache above a window": (
        {**LOLA, "memory": [SPARSE, WINDOW, STATE]},
        (0,),
        "a sparse cache can evict into one state only; put a `state` (or `delta`) memory below it",
        {**LOLA, "memory": [WINDOW, SPARSE, DELTA], "read": "sum"},
    ),
    "a cache above two states": (
        {
            **LOLA,
            "memory": [WINDOW, SPARSE, STATE, {**STATE, "name": "far"}],
            "graph": ["pairs -> window", "window -> sparse", "sparse -> state", "sparse -> far"],
        },
        ("graph", 3),
        "a sparse cache can evict into one state only; use the edge `pairs -> far`",
        {
            **LOLA,
            "memory": [WINDOW, SPARSE, STATE, {**STATE, "name": "far"}],
            "graph": ["pairs -> window", "window -> sparse", "sparse -> state", "window -> far"],
        },
    ),
    "a recall without a state": (
        {"memory": [WINDOW, {**SPARSE, "evict": "drop"}]},
        (1, "keep"),
        "`keep: self_recall` compares a pair with the state below, and there is none; add a `state` memory, or keep `recent` or",
        {"memory": [WINDOW, keeping("random", evict="drop")]},
    ),
    "a recall without an edge": (
        {**LOLA, "memory": [WINDOW, {**SPARSE, "evict": "drop"}, STATE], "graph": [*DOWN, "window -> sparse"]},
        (1, "keep"),
        "there is none; add an edge `sparse -> NAME` to a `state`, or keep `recent`",
        {**LOLA, "graph": ["pairs -> window", "window -> sparse", "sparse -> state"]},
    ),
    "an error along another edge": (
        {
            **LOLA,
            "memory": [DROP, keeping("squared_error"), STATE],
            "graph": ["pairs -> window", "pairs -> sparse", "sparse -> state"],
        },
        (1, "keep"),
        "there is none; let it get its pairs from a `window`, or choose another score",
        {
            **LOLA,
            "memory": [WINDOW, keeping("squared_error"), STATE],
            "graph": ["pairs -> window", "window -> sparse", "sparse -> state"],
        },
    ),
    "an error without a state": (
        {"memory": [WINDOW, keeping("overestimate", evict="drop")]},
        (1, "keep"),
        "`keep: overestimate` compares a pair with the state below, and there is none",
        {"memory": [WINDOW, keeping("recent", evict="drop")]},
    ),
    "an error without a window": (
        {**LOLA, "memory": [keeping("squared_error"), STATE]},
        (0, "keep"),
        "`keep: squared_error` sums over the queries that saw a pair in the window above, and there is none; put a `window` above",
        {**LOLA, "memory": [keeping("relative_recall"), STATE]},
    ),
    "a cache into nothing": (
        {"memory": [WINDOW, keeping("recent")]},
        (1,),
        "this memory holds 3 pairs and evicts the rest, and no memory receives them",
        {"memory": [WINDOW, keeping("recent", evict="drop")]},
    ),
    "the weight of nobody": (
        {**LOLA, "memory": [WINDOW, {**SPARSE, "weight": "same"}, STATE]},
        (1, "weight"),
        "`weight: same` uses the weight of the exact memory above, which has none; set `weight` on the memory above",
        {**LOLA, "memory": [{**WINDOW, "weight": "token"}, {**SPARSE, "weight": "same"}, STATE]},
    ),
    "the weight of what is beside": (
        {
            **LOLA,
            "memory": [{**DROP, "weight": 0.2}, {**SPARSE, "weight": "same"}, STATE],
            "graph": ["pairs -> window", "pairs -> sparse", "sparse -> state"],
        },
        (1, "weight"),
        "the exact memory above, which has none",
        {
            **LOLA,
            "memory": [{**WINDOW, "weight": 0.2}, {**SPARSE, "weight": "same"}, STATE],
            "graph": ["pairs -> window", "window -> sparse", "sparse -> state"],
        },
    ),
}

MASSES: dict[str, Case] = {
    "exact memories against none": (
        {"memory": [WINDOW, "full"], "read": {"kind": "shared", "scale": "row_max"}},
        ("read", "scale"),
        "`scale: row_max` rescales exact memories against others; this head has not both: remove it",
        {**LOLA, "read": {"kind": "shared", "scale": "row_max"}},
    ),
    "states against none": (
        {
            "feature_map": "elu",
            "memory": [STATE, {**STATE, "name": "far"}],
            "flow": "parallel",
            "read": {"kind": "shared", "scale": "row_max"},
        },
        ("read", "scale"),
        "this head has not both",
        {"feature_map": "elu", "memory": [STATE, {**STATE, "name": "far"}], "flow": "parallel"},
    ),
    "shares of latents in one denominator": (
        {**BESIDE, "read": "shared"},
        (1,),
        "the shares of latents are probabilities, which only `read: mixture` weighs against others",
        BESIDE,
    ),
    "shares of latents in a sum": ({**BESIDE, "read": "sum"}, (1,), "only `read: mixture`", BESIDE),
    "a delta rule in one denominator": (
        {**TWO, "memory": [WINDOW, DELTA]},
        (1,),
        "this `delta` has no mass; set `read: sum` to add its raw numerator, or `read: mixture`",
        {**TWO, "memory": [WINDOW, DELTA], "read": "mixture"},
    ),
    "latents that do not split": (
        {**BESIDE, "memory": [DROP, {**LATENTS, "size": 6}]},
        (1, "size"),
        "6 latents do not split evenly over 4 heads; set `size` to a multiple of 4, such as 8",
        BESIDE,
    ),
    "gates in blocks that do not split": (
        {**BESIDE, "mix_input": {"kind": "rglru", "blocks": 5}},
        ("mix_input", "blocks"),
        "24",
        {**BESIDE, "mix_input": {"kind": "rglru", "blocks": 6}},
    ),
}
CASES = EDGES | SPARSE_CASES | MASSES


@pytest.mark.parametrize("case", CASES)
def test_rules_refuse_invalid_flows(case: str) -> None:
    assert_refused(CASES[case])


def test_edges_in_bidirectional_specs_are_refused() -> None:
    head = {**TWO, "graph": ["pairs -> window", "pairs -> state"]}
    spec = load_spec({"compose": 1, "name": "x", "direction": "bidirectional", "head": head})
    with pytest.raises(GraphError, match="remove `graph`, and set `flow: parallel`") as caught:
        resolve(spec, SIZE)
    assert caught.value.path == ("head", "graph")


def test_value_rotation_needs_an_even_dimension() -> None:
    odd = Dimensions(hidden_size=12, layers=1, heads=2, key_heads=2, head_dim=3, rope_theta=100.0)
    head = {"memory": ["full"], "position": "none", "value_position": "vapor"}
    error = refused(head, odd)
    assert error.path == ("head", "value_position")
    assert "values have 3 coordinates; remove it" in str(error)
    assert resolved({**head, "value_position": None}, odd)
