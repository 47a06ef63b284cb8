"""A hash depends on the meaning of a spec alone, not on names, order, its chain of files, or explicit defaults."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blocks.catalogue import CATALOGUE
from blocks.gates.none import NoGate
from blocks.positions import Rope
from composer.graph.composition import HeadSpec, without_names
from composer.model.configuration import ComposedConfig
from composer.spec import load_spec
from composer.spec.difference import differences_on_source
from composer.spec.resolve import Dimensions, Resolved, resolve
from tests.composer.spec.sources import DROP, EXACT, LLAMA3, LOLCATS, SIZE, STRETCHED, changed, groups, resolved
from tests.shipped import FEW, on

PLAIN = {"linear": False, "dim": None, "bias": False, "skip": False, "two_sided": False}
PLAIN |= {"share": "none", "per": "query_head", "init": "identity"}
DECAY = {"temperature": 16.0, "bias": 0.0, "per": "query_head"}
DEFAULTS: dict[tuple[str, str], dict[str, Any]] = {
    ("position", "rope"): {"theta": None, "scaling": None},
    ("convolution", "causal"): {"kernel": 4, "inputs": ("q", "k"), "share": "none", "per": "query_head"},
    ("feature map", "identity"): PLAIN,
    ("feature map", "elu"): PLAIN,
    ("feature map", "relu"): PLAIN,
    ("feature map", "t2r"): PLAIN | {"linear": True, "bias": True},
    ("feature map", "exp"): PLAIN | {"linear": True, "two_sided": True},
    ("feature map", "hedgehog"): PLAIN | {"linear": True, "two_sided": True, "floor": 1e-12},
    ("gate", "constant"): {"exponent": 5.0},
    ("gate", "head"): DECAY,
    ("gate", "channel"): DECAY | {"rank": 16},
    ("memory", "full"): {"position": None, "weight": None},
    ("memory", "window"): {"position": None, "weight": None, "size": 64, "evict": "next"},
    ("memory", "state"): {"position": None, "weight": None, "gate": NoGate(), "normalise": True},
}


def reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reversed_keys(item) for key, item in reversed(value.items())}
    return [reversed_keys(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "same",
    [
        reversed_keys(LOLCATS),
        changed("name", "another"),
        LOLCATS | {"paper": "arXiv:0000.00000"},
        LOLCATS | {"recipe": {"transfer": {"lr": 1.0, "epochs": 1}}},
        changed("head.read", None),
        changed("head.read", {"kind": "shared"}),
        changed("head.conv", "causal"),
        changed("head.feature_map", "hedgehog"),
        changed("head.feature_map", {"kind": "hedgehog", "dim": 8}),
        changed("head.position", {"kind": "rope", "theta": 10000}),
        changed("head.flow", "cascade"),
        changed("head.memory.0.name", "near"),
        changed("head.memory.0.position", "rope"),
        changed("head.memory.0.evict", "next"),
        changed("head.memory.1.gate", {"kind": "channel", "rank": 16, "temperature": 16, "bias": 0, "per": "query_head"}),
        changed("head.memory.1.normalise", True),
        {**LOLCATS, "layers": [{"at": "all", "use": "head"}]},
        {"compose": 1, "name": "x", "heads": {"b": LOLCATS["head"]}, "layers": [{"at": "0:", "use": "b"}]},
        {"compose": 1, "name": "x", "heads": {"b": LOLCATS["head"]}, "layers": [{"at": "all", "use": groups(b=8)}]},
    ],
    ids=lambda document: json.dumps(document)[:300],
)
def test_equal_meanings_have_equal_hashes(same: dict[str, Any]) -> None:
    assert resolved(same).hash == resolved(LOLCATS).hash


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("head.position", "none"),
        ("head.position", {"kind": "rope", "theta": 500.0}),
        ("head.position", {"kind": "rope", "scaling": json.loads(LLAMA3.model_dump_json())}),
        ("head.conv", None),
        ("head.conv.kernel", 5),
        ("head.conv.inputs", ["k"]),
        ("head.conv.share", "qk"),
        ("head.conv.per", "key_head"),
        ("head.feature_map", {"kind": "exp"}),
        ("head.feature_map.dim", 7),
        ("head.feature_map.floor", 1e-6),
        ("head.feature_map.two_sided", False),
        ("head.feature_map.share", "qk"),
        ("head.feature_map.per", "key_head"),
        ("head.feature_map.bias", True),
        ("head.feature_map.init", "random"),
        ("head.memory.0.size", 63),
        ("head.memory.0.weight", None),
        ("head.memory.0.weight", 0.5),
        ("head.memory.0.position", "none"),
        ("head.memory.1.weight", "learned"),
        ("head.memory.1.gate", "none"),
        ("head.memory.1.gate", "head"),
        ("head.memory.1.gate.rank", 8),
        ("head.memory.1.gate.rank", "full"),
        ("head.memory.1.gate.temperature", 8.0),
        ("head.memory.1.gate.bias", 4.0),
        ("head.memory.1.gate.per", "key_head"),
        ("head.memory", [LOLCATS["head"]["memory"][1]]),
        ("head.flow", "parallel"),
        ("head.read", "mixture"),
        ("heads", {"exact": EXACT}),
    ],
    ids=str,
)
def test_different_meanings_have_different_hashes(path: str, value: Any) -> None:
    document = changed(path, value)
    if path == "heads":
        document["layers"] = [{"at": 3, "use": "exact"}]
    if path == "head.memory":
        document["head"]["read"] = None
    assert resolved(document).hash != resolved(LOLCATS).hash


@pytest.mark.parametrize("key", ["hidden_size", "layers", "heads", "head_dim", "key_heads", "rope_theta", "rope_scaling"])
def test_different_sources_have_different_hashes(key: str) -> None:
    bigger = {"key_heads": 2, "rope_theta": 5e5, "rope_scaling": LLAMA3}
    other = Dimensions.model_validate(SIZE.model_dump() | {key: bigger.get(key, 2 * (getattr(SIZE, key) or 1))})
    assert resolved(LOLCATS, other).hash != resolved(LOLCATS).hash


def test_without_positions_the_sources_rope_does_not_change_the_hash() -> None:
    document = changed("head.position", "none")
    assert resolved(document, STRETCHED).hash == resolved(document).hash


def test_extending_does_not_change_the_hash(write: Callable[[str, str], Path]) -> None:
    write("base.yaml", "compose: 1\nname: base\nhead: {feature_map: elu, memory: [{kind: window, size: 9}, state], read: sum}\n")
    write("middle.yaml", "compose: 1\nname: middle\nextends: base.yaml\nhead: {position: none, memory: [window, state]}\n")
    leaf = write("leaf.yaml", "compose: 1\nname: leaf\nextends: middle.yaml\nhead: {feature_map: relu, read: null}\n")
    flat = write("flat.yaml", "compose: 1\nname: flat\nhead: {position: none, feature_map: relu, memory: [window, state]}\n")
    assert resolve(load_spec(leaf), SIZE).hash == resolve(load_spec(flat), SIZE).hash


def branched(first: str, second: str, third: str, fourth: str, *edges: str) -> Resolved:
    """Two windows and two states, each window above a state."""
    memory = [
        {"kind": "window", "size": 4, "name": first},
        {"kind": "window", "size": 16, "name": second},
        {"kind": "state", "name": third},
        {"kind": "state", "gate": "slopes", "name": fourth},
    ]
    return resolved({"compose": 1, "name": "x", "head": {"feature_map": "elu", "memory": memory, "graph": list(edges)}})


def test_edges_are_compared_by_the_memories_at_their_ends() -> None:
    edges = "pairs -> a", "pairs -> b", "a -> c", "b -> d"
    first_spec = branched("a", "b", "c", "d", *edges)
    for same in (
        branched("a", "b", "c", "d", *reversed(edges)),
        branched("a", "b", "c", "d", *(edge.replace(" ", "") for edge in edges)),
        branched("b", "a", "d", "c", "pairs -> a", "pairs -> b", "b -> d", "a -> c"),
        branched("near", "far", "old", "older", "pairs -> near", "pairs -> far", "near -> old", "far -> older"),
    ):
        assert same.hash == first_spec.hash
        assert not differences_on_source(same, first_spec)
    other = branched("b", "a", "c", "d", *edges)
    assert other.hash != first_spec.hash
    ((path, first, second),) = (
        (difference.path, difference.first, difference.second) for difference in differences_on_source(first_spec, other)
    )
    assert path == ("head", "graph")
    assert first[:2] == second[:2] == ["pairs -> window_1", "pairs -> window_2"]
    assert (first[2:], second[2:]) == (
        ["window_1 -> state_1", "window_2 -> state_2"],
        ["window_2 -> state_1", "window_1 -> state_2"],
    )


@pytest.mark.parametrize("flow", ["cascade", "parallel"])
def test_edges_equal_to_a_flow_have_the_hash_of_the_flow(flow: str) -> None:
    memory = [{"kind": "window", "evict": "drop"} if flow == "parallel" else {"kind": "window"}, {"kind": "state"}]
    edges = [f"{'pairs' if flow == 'parallel' else 'window'} -> state", "pairs -> window"]
    head = {"feature_map": "elu", "memory": memory}
    drawn, by_flow = (resolved({"compose": 1, "name": "x", "head": head | how}) for how in ({"graph": edges}, {"flow": flow}))
    assert drawn.hash == by_flow.hash
    assert without_names(without_names(drawn.heads["head"])) == without_names(drawn.heads["head"])


def test_hashes_of_models_built_with_named_edges_are_still_valid() -> None:
    """The hash of an already built folder is pinned. The folder loads."""
    former = "eef0ac4a7333915d11bce9445d9b73b6f11a574660052a1d8c9edd20659615ac"
    spec = branched("a", "b", "c", "d", "pairs -> a", "pairs -> b", "a -> c", "b -> d")
    assert spec.hash != former
    assert spec.has_hash(former)
    document = spec.model_dump(mode="json")
    assert ComposedConfig(spec=document, spec_hash=former).read_spec() == spec
    with pytest.raises(ValueError, match="has the hash"):
        ComposedConfig(spec=document, spec_hash=former.replace("e", "f")).read_spec()


def test_hashes_of_version_1_are_pinned() -> None:
    """The hash is pinned: models store it, so new fields of a part must not change it."""
    pinned = "11a5aef9407d7ad4a052b0803f4aaea9c45ae5aaa4d5904367ac9e63e3648004"
    assert resolved({"compose": 1, "name": "x", "head": DROP | {"position": "none"}}).hash == pinned


def test_defaults_of_version_1_are_pinned() -> None:
    """Defaults are not part of the hash, so a changed default would change a spec's meaning silently. New parts and fields are
    allowed.
    """
    for (role, kind), defaults in DEFAULTS.items():
        fields = CATALOGUE[role][kind].model_fields
        assert {name: fields[name].get_default(call_default_factory=True) for name in defaults} == defaults, (role, kind)
    fields = HeadSpec.model_fields
    assert {name: fields[name].default for name in ("position", "conv", "feature_map", "flow", "read")} == {
        "position": Rope(),
        "conv": None,
        "feature_map": None,
        "flow": "cascade",
        "read": None,
    }


@pytest.mark.parametrize("name", FEW)
def test_resolved_documents_are_complete_and_survive_json(name: str) -> None:
    once = on(name, STRETCHED)
    again = Resolved.model_validate_json(once.model_dump_json())
    assert again == once
    assert again.hash == once.hash
    # Resolved again, as a separate spec, against any source's rope, it says the same.
    spec = {"compose": 1, "name": "y", "direction": once.direction, "heads": json.loads(once.model_dump_json())["heads"]}
    taken = [groups(**{group.head: group.heads for group in layer}) for layer in once.layers]
    spec["layers"] = [{"at": index, "use": use} for index, use in enumerate(taken)]
    assert resolved(spec, SIZE).hash == once.hash
