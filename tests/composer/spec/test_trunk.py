"""The fields of a spec's trunk, their defaults, and their part in the hash of a spec with a trunk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from composer.errors import GraphError
from composer.spec import load_spec, locate
from composer.spec.loading import expand
from composer.spec.resolve import Dimensions, Resolved, resolve
from composer.spec.trunk import GatedMLP, PlainMLP
from tests.composer.spec.error_messages import message_of
from tests.composer.spec.sources import EXACT, LOLCATS, SIZE, refused

TRUNK: dict[str, Any] = {"width": 24, "layers": 6, "heads": 8, "key_heads": 4, "head_dim": 8, "vocabulary": 50}


def spec(**trunk: Any) -> dict[str, Any]:
    return LOLCATS | {"trunk": TRUNK | trunk}


def alone(document: dict[str, Any]) -> Resolved:
    return resolve(load_spec(document))


def test_a_trunk_sets_the_dimensions() -> None:
    assert alone(spec()).dimensions == SIZE
    assert alone(spec(theta=500)).heads["head"].memory[0].position.theta == 500
    few = {"width": 96, "layers": 2, "heads": 4, "vocabulary": 50}
    assert alone(LOLCATS | {"trunk": few}).dimensions == Dimensions(
        hidden_size=96, layers=2, heads=4, key_heads=4, head_dim=24, rope_theta=1e4
    )


@pytest.mark.parametrize(
    ("mlp", "width", "complete"),
    [
        ("gated", 768, GatedMLP(width=2048)),
        ("gated", 24, GatedMLP(width=64)),
        ("gated", 25, GatedMLP(width=128)),
        ({"kind": "gated", "width": 7, "activation": "gelu"}, 24, GatedMLP(width=7, activation="gelu")),
        ("plain", 24, PlainMLP(width=96)),
        ({"kind": "plain", "activation": "relu"}, 24, PlainMLP(width=96, activation="relu")),
    ],
    ids=str,
)
def test_open_fields_of_an_mlp_get_defaults(mlp: Any, width: int, complete: GatedMLP | PlainMLP) -> None:
    trunk = alone(spec(mlp=mlp, width=width)).trunk
    assert trunk is not None
    assert trunk.mlp == complete


def test_defaults_are_pinned() -> None:
    """The defaults are pinned, since they are not part of the hash."""
    trunk = load_spec(spec()).trunk
    assert trunk is not None
    defaults = trunk.model_dump(mode="json", exclude=set(TRUNK))
    assert defaults == {
        "norm": "rms",
        "norm_epsilon": 1e-5,
        "mlp": {"kind": "gated", "width": None, "activation": "silu"},
        "tied": True,
        "embedding": "none",
        "length": None,
        "bias": False,
        "dropout": 0.0,
        "theta": 10000.0,
        "labels": None,
    }
    assert PlainMLP().activation == "gelu"


@pytest.mark.parametrize(
    ("trunk", "message"),
    [
        (
            {"head_dim": None, "width": 25},
            "trunk.width: width 25 does not divide by 8 heads: change one of them, or set `head_dim`",
        ),
        ({"key_heads": 3}, "trunk.key_heads: 8 query heads cannot share 3 key heads evenly"),
        ({"embedding": "learned"}, "trunk.embedding: `embedding: learned` needs `length`"),
        ({"length": 9}, "trunk.length: `length` is the number of learned positions, and none are"),
        ({"embedding": "sinusoidal", "length": 9}, "trunk.length: `length` is the number"),
        ({"labels": 3, "tied": False}, "trunk.tied: a classifier (`labels`) has no output matrix"),
        ({"dropout": 1.0}, "trunk.dropout: expected a number less than 1, got 1.0"),
        ({"layers": 10_001}, "trunk.layers: expected a number of at most 10000, got 10001"),
        ({"width": 10**10}, "trunk.width: expected a number of at most 2147483648"),
        ({"mlp": {"kind": "plain", "width": 10**10}}, "trunk.mlp.width: expected a number of at most 2147483648"),
        ({"layers": True}, "trunk.layers: expected a whole number, got true"),
        ({"width": 0}, "trunk.width: expected a number greater than 0"),
        ({"norm": "batch"}, 'trunk.norm: expected "rms" or "layer", got "batch"'),
        ({"mlp": "gatd"}, 'trunk.mlp.kind: unknown kind "gatd"; did you mean "gated"?'),
        ({"mlp": {"width": 3}}, "trunk.mlp.kind: missing. Known kinds: gated, plain"),
        ({"vocab": 3}, 'trunk.vocab: unknown key "vocab"; did you mean "vocabulary"?'),
    ],
    ids=str,
)
def test_invalid_values_are_refused(trunk: dict[str, Any], message: str) -> None:
    assert message_of(spec(**trunk)).startswith(message)


def test_missing_fields_are_refused() -> None:
    lines = message_of(LOLCATS | {"trunk": {}}).splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"trunk.{key}" for key in ("width", "layers", "heads", "vocabulary")]


def test_a_source_beside_a_trunk_is_refused() -> None:
    path, message = refused(spec())
    assert path == ("trunk",)
    assert "would contradict" in message
    assert "--set trunk=null" in message
    assert resolve(load_spec(spec(), ["trunk=null"]), SIZE).hash == resolve(load_spec(LOLCATS), SIZE).hash
    with pytest.raises(GraphError, match="no `trunk` to build from random weights"):
        alone(LOLCATS)


def test_resolved_documents_without_trunk_have_no_trunk_key() -> None:
    assert "trunk" not in resolve(load_spec(LOLCATS), SIZE).model_dump(mode="json")
    assert "trunk" not in json.loads(resolve(load_spec(LOLCATS), SIZE).model_dump_json())


def test_resolved_trunks_survive_json() -> None:
    once = alone(spec(mlp="plain", embedding="learned", length=30))
    assert Resolved.model_validate_json(once.model_dump_json()) == once


def test_the_trunk_is_part_of_the_hash() -> None:
    pinned = "af88148065fe78f73b8f32dd2d16e11f60eed1b318555a535070bb7d24ba4334"
    document = {"compose": 1, "name": "x", "trunk": TRUNK, "head": EXACT | {"position": "none"}}
    assert alone(document).hash == pinned
    assert alone(document).hash != resolve(load_spec(document, ["trunk=null"]), SIZE).hash


@pytest.mark.parametrize(
    "same",
    [
        {"mlp": {"kind": "gated", "width": 64}},
        {"norm": "rms", "tied": True, "dropout": 0},
        {"theta": 10000},
        {"head_dim": 8, "labels": None},
    ],
    ids=str,
)
def test_missing_fields_equal_their_default(same: dict[str, Any]) -> None:
    assert alone(spec(**same)).hash == alone(spec()).hash


@pytest.mark.parametrize(
    "other",
    [
        {"mlp": "plain"},
        {"mlp": {"kind": "gated", "width": 65}},
        {"norm": "layer"},
        {"norm_epsilon": 1e-6},
        {"vocabulary": 51},
        {"tied": False},
        {"embedding": "sinusoidal"},
        {"bias": True},
        {"dropout": 0.1},
        {"theta": 500},
        {"labels": 2},
        {"layers": 7},
    ],
    ids=str,
)
def test_different_trunks_have_different_hashes(other: dict[str, Any]) -> None:
    assert alone(spec(**other)).hash != alone(spec()).hash


def test_an_unused_theta_does_not_change_the_hash() -> None:
    document = {"compose": 1, "name": "x", "trunk": TRUNK, "head": EXACT | {"position": "none"}}
    assert alone(document).hash == alone(document | {"trunk": TRUNK | {"theta": 7}}).hash


def test_trunks_are_inherited_and_varied(write: Callable[[str, str], Path]) -> None:
    text = "{width: 24, layers: 6, heads: 4, vocabulary: 50, mlp: {kind: gated, width: 9}}"
    write("base.yaml", f"compose: 1\nname: base\nhead: {{memory: [full]}}\ntrunk: {text}\n")
    child = write("child.yaml", "compose: 1\nname: child\nextends: base.yaml\ntrunk: {layers: 2, mlp: plain}\n")
    trunk = load_spec(child).trunk
    assert trunk is not None
    assert (trunk.width, trunk.layers, trunk.mlp) == (24, 2, PlainMLP())
    sweep = write(
        "sweep.yaml",
        "compose: 1\nname: sweep\nextends: base.yaml\nvary: {grid: {trunk.norm: [rms, layer], trunk.mlp: [gated, plain]}}\n",
    )
    hashes = {name: resolve(variant).hash for name, variant in expand(sweep).items()}
    assert list(hashes) == ["rms-gated", "rms-plain", "layer-gated", "layer-plain"]
    assert len(set(hashes.values())) == 4


def test_mistakes_of_a_trunk_have_a_place(write: Callable[[str, str], Path]) -> None:
    path = write(
        "wrong.yaml", "compose: 1\nname: x\nhead: {memory: [full]}\ntrunk:\n  {width: 25, layers: 1, heads: 8, vocabulary: 9}\n"
    )
    assert message_of(path).startswith("wrong.yaml:5:11  trunk.width: width 25 does not divide")


@pytest.mark.parametrize(
    ("trunk", "place"),
    [
        ("{layers: 1, width: 12, heads: 4, vocabulary: 9}", "4:27  trunk.width"),
        ("{layers: 1, width: 12, heads: 4, head_dim: 5, vocabulary: 9}", "4:51  trunk.head_dim"),
    ],
)
def test_odd_head_dimensions_are_reported_at_the_trunk(write: Callable[[str, str], Path], trunk: str, place: str) -> None:
    """This holds for positions from any file of the chain."""
    spec = load_spec(write("odd.yaml", f"compose: 1\nname: x\nextends: lolcats\ntrunk: {trunk}\n"))
    with pytest.raises(GraphError) as caught:
        resolve(spec)
    message = str(locate(caught.value, spec))
    assert message.startswith(f"odd.yaml:{place}: positions rotate pairs of coordinates, and heads of this trunk have ")
    assert message.endswith("or, in the head, `position: none`")
    assert "even" in message
    assert resolve(load_spec("odd.yaml", ["head.position=none"]))
