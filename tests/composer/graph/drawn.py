"""Random heads for tests against the definition: fixed stacks of memories, and every other choice drawn."""

from __future__ import annotations

import random
from typing import Any

from blocks.scores import SCORES
from composer.errors import GraphError
from composer.graph.composition import HeadSpec
from composer.spec.dimensions import Dimensions
from tests.composer.graph.heads import resolved

STACKS = [
    ["state"],
    ["window", "state"],
    ["window", "window", "state"],
    ["window", "full"],
    ["full", "state"],
    ["state", "state"],
    ["window", "state", "full"],
    ["delta"],
    ["window", "delta"],
    ["window", "delta", "delta"],
    ["window", "sparse", "state"],
    ["window", "sparse", "state"],
    ["window", "sparse", "state"],
    ["window", "window", "sparse", "state"],
    ["sparse", "state"],
    ["window", "sparse", "delta"],
    ["window", "sparse", "delta", "state"],
    ["window", "sparse", "sparse", "state", "delta"],
    ["latents"],
    ["window", "latents"],
    ["window", "latents"],
]
MAPS = ["identity", "elu", "relu", "t2r", "exp", "hedgehog"]
HEAD_GATES = ["none", "constant", {"kind": "head", "temperature": 0.1}, {"kind": "head", "per": "key_head"}]
GATES = [
    *HEAD_GATES,
    {"kind": "channel", "rank": 2, "temperature": 0.02},
    {"kind": "channel", "rank": "full", "per": "key_head"},
    {"kind": "from_key", "temperature": 0.5},
]
MIXERS = [None, {"kind": "rglru", "blocks": 2}, {"kind": "conv", "kernel": 3}]
RATES = ["learned", {"kind": "learned", "largest": 2, "per": "key_head"}, {"kind": "fixed", "value": 0.7}]


def drawn(draw: random.Random, kinds: list[str]) -> dict[str, Any]:
    """Draw a head of these memories. Some heads are invalid, and the rules reject them."""
    kind = draw.choice(MAPS)
    memories = [_memory(draw, memory, f"m{index}", kind, len(kinds) > 1) for index, memory in enumerate(kinds)]
    head: dict[str, Any] = {"position": draw.choice(["none", "rope", "rope"]), "memory": memories}
    if {"state", "delta"} & set(kinds):
        matrix = {
            "linear": True,
            "init": "random",
            "share": draw.choice(["none", "qk"]),
            "per": draw.choice(["query_head", "key_head"]),
        }
        shape = draw.choice([{}, {"bias": True}, {"skip": True}, {"dim": 3}])
        head["feature_map"] = {"kind": kind, "two_sided": draw.random() < 0.5}
        if kind in {"exp", "hedgehog", "t2r"} or draw.random() < 0.3:
            head["feature_map"] |= matrix | shape
        if draw.random() < 0.5:
            inputs = draw.choice([["q"], ["k"], ["q", "k"]])
            per = draw.choice(["query_head", "key_head"] if "k" in inputs else ["query_head"])
            share = draw.choice(["none", "qk"] if len(inputs) > 1 else ["none"])
            head["conv"] = {"kind": "causal", "kernel": draw.choice([1, 2, 4]), "inputs": inputs, "per": per, "share": share}
    if "latents" in kinds:
        head |= {"mix_input": draw.choice(MIXERS)} | ({"flow": "parallel", "read": "mixture"} if len(kinds) > 1 else {})
    elif len(kinds) > 1:
        head["read"] = draw.choice(["shared", {"kind": "shared", "scale": "row_max"}, "mixture", "sum"])
        flow = draw.choice(["cascade", "cascade", "parallel", "graph", "graph"])
        head |= {"graph": _edges(draw, kinds)} if flow == "graph" else {"flow": flow}
    return head


def _memory(draw: random.Random, kind: str, name: str, mapping: str, beside: bool) -> dict[str, Any]:
    part: dict[str, Any] = {"kind": kind, "name": name}
    if kind == "latents":
        return part | {"size": 12}
    if draw.random() < 0.3:
        part["position"] = draw.choice(["none", "rope"])
    if beside and draw.random() < 0.6:
        part["weight"] = draw.choice(["learned", 0.3, "token", *["same"] * (kind == "sparse")])
    if kind == "window":
        part |= {"size": draw.choice([1, 2, 3, 4]), "shape": draw.choice(["sliding", "sliding", "terraced"])}
    if kind == "sparse":
        score = {"kind": draw.choice(list(SCORES))}
        part |= {"size": draw.choice([0, 1, 2, 3]), "keep": score | ({"seed": 2**63 - 1} if score["kind"] == "random" else {})}
    if kind == "state":
        part |= {"gate": draw.choice(GATES), "normalise": mapping != "identity" and draw.random() < 0.7}
        if not part["normalise"]:
            part["scale"] = draw.choice(["none", "root"])
    if kind == "delta":
        part |= {"gate": draw.choice(HEAD_GATES), "rate": draw.choice(RATES)}
    return part


def _edges(draw: random.Random, kinds: list[str]) -> list[str]:
    """Draw edges: each memory receives all pairs, or the pairs that one above it evicts."""
    edges = ["pairs -> m0"]
    for index in range(1, len(kinds)):
        above = [f"m{place}" for place, kind in enumerate(kinds[:index]) if kind in {"window", "sparse"}]
        edges.append(f"{draw.choice(['pairs', *above, *above])} -> m{index}")
    return edges


def meaningful(draw: random.Random, kinds: list[str]) -> tuple[HeadSpec, Dimensions]:
    """Draw a head that the rules accept, with its sizes."""
    while True:
        heads, key_heads = draw.choice([(4, 2), (2, 2), (3, 1)])
        size = Dimensions(hidden_size=6, layers=1, heads=heads, key_heads=key_heads, head_dim=4, rope_theta=100.0)
        try:
            return resolved(drawn(draw, kinds), size).heads["head"], size
        except GraphError:
            continue
