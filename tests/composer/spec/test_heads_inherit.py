"""A head of ``heads`` that extends another one equals the head with all fields written out."""

from __future__ import annotations

from typing import Any

import pytest

from composer.errors import GraphError
from composer.spec import Spec, load_spec
from composer.spec.inherit import MOST_HEADS
from composer.spec.loading import expand
from composer.spec.resolve import Dimensions, resolve
from tests.composer.spec.conftest import Write
from tests.composer.spec.error_messages import message_of

SIZE = Dimensions(hidden_size=64, layers=4, heads=4, key_heads=2, head_dim=16, rope_theta=1e4)
TEXT = """\
compose: 1
name: near-and-far
head:
  conv: {kernel: 3}
  feature_map: {kind: hedgehog, dim: 16}
  memory:
    - {kind: window, size: 8}
    - state
heads:
  far: {extends: head, conv: null, memory: [{kind: window, size: 64}, state]}
  farther: {extends: far, feature_map: {dim: 32}}
layers:
  - {at: 1, use: far}
  - {at: 2, use: farther}
"""
WRITTEN = """\
compose: 1
name: near-and-far
head: {conv: {kernel: 3}, feature_map: {kind: hedgehog, dim: 16}, memory: [{kind: window, size: 8}, state]}
heads:
  far: {feature_map: {kind: hedgehog, dim: 16}, memory: [{kind: window, size: 64}, state]}
  farther: {feature_map: {kind: hedgehog, dim: 32}, memory: [{kind: window, size: 64}, state]}
layers: [{at: 1, use: far}, {at: 2, use: farther}]
"""


@pytest.fixture
def spec(write: Write) -> str:
    return str(write("spec.yaml", TEXT))


def heads(spec: Spec) -> list[Any]:
    return [spec.head, *spec.heads.values()]


def test_extended_heads_equal_heads_written_in_full(spec: str, write: Write) -> None:
    inherited, other = load_spec(spec), load_spec(str(write("written.yaml", WRITTEN)))
    assert heads(inherited) == heads(other)
    assert resolve(inherited, SIZE).hash == resolve(other, SIZE).hash


def test_changes_of_a_head_apply_to_heads_that_extend_it(spec: str, write: Write) -> None:
    """The parent may be changed by an override, by a file that extends the file, and by a sweep."""
    kernel = {"head.feature_map.share": "qk", "heads.far.read": "mixture", "heads.farther.memory.0.size": 12}
    child = "compose: 1\nname: child\nextends: spec.yaml\nhead: {feature_map: {share: qk}}\nheads: {far: {read: mixture}}\n"
    child += "vary: {grid: {'heads.farther.memory[0].size': [12, 24]}}\n"
    (twelve, more) = expand(str(write("child.yaml", child))).values()
    assert heads(load_spec(spec, kernel)) == heads(twelve)
    near, far, farther = heads(more)
    assert [head.feature_map.share for head in (near, far, farther)] == ["qk"] * 3
    assert [head.memory[0].size for head in (near, far, farther)] == [8, 64, 24]
    assert (near.read, far.read.kind, farther.read.kind) == (None, "mixture", "mixture")


def test_removed_fields_are_not_inherited(spec: str) -> None:
    near, far, farther = heads(load_spec(spec, ["heads.far.feature_map=null", "heads.farther.extends=head"]))
    assert (near.conv.kernel, far.conv, farther.conv.kernel) == (3, None, 3)
    assert (near.feature_map.dim, far.feature_map, farther.feature_map.dim) == (16, None, 32)


def test_heads_that_are_only_extended_need_no_layer(write: Write) -> None:
    """A head that is only extended needs no layer. It must be complete, and is not part of the spec's meaning."""
    spec = load_spec(str(write("spec.yaml", TEXT.replace("  - {at: 1, use: far}\n", ""))))
    assert list(spec.heads) == ["farther"]
    assert load_spec(spec.model_dump(mode="json", exclude_unset=True)) == spec
    assert list(resolve(spec, SIZE).heads) == ["farther", "head"]
    part = TEXT.replace("  far: {extends: head, conv: null, memory: [{kind: window, size: 64}, state]}", "  far: {output: gate}")
    assert "heads.far.memory: missing" in message_of(write("part.yaml", part))
    with pytest.raises(GraphError, match="no layer uses this head"):
        resolve(load_spec(str(write("none.yaml", TEXT.replace("  - {at: 2, use: farther}\n", "")))), SIZE)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("extends: far,", "extends: fir,", 'spec.yaml:11:22  heads.farther.extends: expected the name of a head, got "fir"'),
        ("extends: far,", "extends: fir,", '; did you mean "far"? Heads: head, far, farther'),
        ("extends: far,", "extends: [far],", "expected the name of a head, got a list. Heads: head, far, farther"),
        ("extends: head,", "extends: farther,", "extends itself: far → farther → far"),
        ("extends: head,", "extend: head,", 'unknown key "extend"; did you mean "extends"?'),
        ("  conv: {kernel: 3}", "  extends: far", 'spec.yaml:4:3  head.extends: unknown key "extends"'),
    ],
)
def test_invalid_extends_are_refused(write: Write, before: str, after: str, message: str) -> None:
    assert message in message_of(write("spec.yaml", TEXT.replace(before, after)))


def test_inherited_mistakes_are_reported_once(write: Write) -> None:
    """A mistake that three heads inherit is reported once at its place."""
    (line,) = message_of(write("spec.yaml", TEXT.replace("kind: hedgehog", "kind: hedghog"))).splitlines()
    assert line.startswith('spec.yaml:5:23  head.feature_map.kind: unknown kind "hedghog"')


def test_chains_and_sizes_are_limited(write: Write) -> None:
    chain = "".join(f"  a{number}: {{extends: a{number + 1}}}\n" for number in range(MOST_HEADS + 1))
    long = TEXT.replace("layers:", f"{chain}  a{MOST_HEADS + 1}: {{extends: head}}\nlayers:")
    assert f"heads.a{MOST_HEADS}.extends: a chain of more than {MOST_HEADS} heads, which began with a0" in message_of(
        write("long.yaml", long)
    )
    many = "".join(f"  a{number}: {{extends: head}}\n" for number in range(1000))
    assert "heads: 1,002 heads that extend others" in message_of(write("many.yaml", TEXT.replace("layers:", f"{many}layers:")))
