"""`compose diff` compares meanings: names and spelling do not count, every resolved head does, and the hashes agree."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from composer.spec.difference import differences_of_specs, differences_on_source
from composer.spec.loading import load_spec
from composer.spec.resolve import Dimensions, resolve
from tests.composer.cli.conftest import Compose
from tests.shipped import SHIPPED

SIZE = Dimensions(hidden_size=24, layers=3, heads=4, key_heads=2, head_dim=8, rope_theta=100.0)
LAWCAT_AGAIN = """\
compose: 1
name: again
heads:
  mine:
    conv: {kind: causal, share: none}
    feature_map: {kind: hedgehog, share: qk, two_sided: true}
    memory: [{kind: state, name: all, position: none, normalise: true, gate: {kind: channel, rank: 32, temperature: 16}}]
layers: [{at: "0:", use: mine}]
"""


def rows(compose: Compose, *arguments: object) -> list[list[str]]:
    """Return the table with split columns."""
    result = compose("diff", *arguments)
    assert result.exit_code == 0, result.stderr
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in result.stdout.splitlines()]


def test_two_specs_differ_exactly_where_their_hashes_do() -> None:
    """Each shipped spec is compared with a quarter of the others, and with all that have its hash."""
    specs = {name: load_spec(name, ["trunk=null"]) for name in SHIPPED}
    resolved = {name: resolve(spec, SIZE) for name, spec in specs.items()}
    hashes = {name: spec.hash for name, spec in resolved.items()}
    same = 0
    for (at, first_spec), (to, other) in combinations(enumerate(SHIPPED), 2):
        alike = hashes[first_spec] == hashes[other]
        if (at + to) % 4 and not alike:
            continue
        differences = differences_on_source(resolved[first_spec], resolved[other])
        assert (not differences) is alike, (first_spec, other)
        if not differences_of_specs(specs[first_spec], specs[other]):
            assert alike
            same += 1
    assert same


def test_specs_without_a_source_are_compared_by_head(compose: Compose) -> None:
    assert rows(compose, "lawcat", "gla") == [
        ["lawcat → gla"],
        ["head.conv", "causal → null"],
        ["head.feature_map", "{kind: hedgehog, share: qk} → identity"],
        ["head.memory[0].gate.rank", "32 → 16"],
        ["head.memory[0].normalise", "true → false"],
        ["head.memory[0].scale", "none → root"],
        ["head.output", "null → gated_norm"],
        ["Compared head by head, as for any source; layer by layer: --from SOURCE"],
    ]


def test_specs_on_a_source_are_compared_by_layer(compose: Compose, teacher: Path) -> None:
    Path("last.yaml").write_text(
        "compose: 1\nname: last\nextends: lawcat\nheads: {exact: {memory: [full]}}\nlayers: [{at: -1, use: exact}]\n"
    )
    rows_of = rows(compose, "lawcat", "last.yaml", "--from", teacher)
    assert rows_of[1:4] == [
        ["layer 1", "head.conv", "causal → null"],
        ["layer 1", "head.feature_map", "{kind: hedgehog, dim: 8, share: qk} → null"],
        ["layer 1", "head.memory", "[{kind: state, position: none, gate: {kind:"],
    ]
    rows_of = rows(compose, "lawcat", "ablations/lawcat-gate-rank:full", "--from", teacher)
    assert rows_of[1:] == [["layers 0 to 1", "head.memory[0].gate.rank", "32 → full"]]


def test_names_recipes_and_spelling_mean_nothing(compose: Compose, teacher: Path) -> None:
    Path("again.yaml").write_text(LAWCAT_AGAIN)
    Path("child.yaml").write_text("compose: 1\nname: child\nextends: lawcat\nrecipe: null\nhead: {conv: {kernel: 4}}\n")
    assert rows(compose, "lawcat", "child.yaml") == [["the same meaning on every source"]]
    result = compose("diff", "lawcat", "again.yaml", "--from", teacher)
    shown = json.loads(compose("show", "lawcat", "--from", teacher, "--json").stdout)["hash"]
    assert result.stdout == f"the same meaning on {teacher}: {shown[:12]}…\n"
    assert "head" in compose("diff", "lawcat", "again.yaml").stdout


def test_open_fields_are_equal_only_on_their_source(compose: Compose, teacher: Path) -> None:
    Path("eight.yaml").write_text("compose: 1\nname: eight\nextends: linear\nhead: {feature_map: {linear: true, dim: 8}}\n")
    Path("open.yaml").write_text("compose: 1\nname: open\nextends: linear\nhead: {feature_map: {linear: true}}\n")
    assert rows(compose, "eight.yaml", "open.yaml")[1] == ["head.feature_map.dim", "8 → null"]
    assert "the same meaning" in compose("diff", "eight.yaml", "open.yaml", "--from", teacher).stdout


def test_groups_inside_a_layer_are_compared(compose: Compose, teacher: Path) -> None:
    text = "compose: 1\nname: {0}\nextends: lolcats\nheads: {{{1}: {{memory: [full]}}}}\nlayers: [{{at: 0, use: {2}}}]\n"
    Path("one.yaml").write_text(text.format("one", "a", "[{head: a, heads: 2}, {head: head, heads: 2}]"))
    Path("other.yaml").write_text(text.format("other", "b", "[{head: b, heads: 2}, {head: head, heads: 2}]"))
    Path("swapped.yaml").write_text(text.format("swapped", "b", "[{head: head, heads: 2}, {head: b, heads: 2}]"))
    assert "the same meaning" in compose("diff", "one.yaml", "other.yaml").stdout
    assert "the same meaning" in compose("diff", "one.yaml", "other.yaml", "--from", teacher).stdout
    rows_of = rows(compose, "one.yaml", "swapped.yaml", "--from", teacher)
    assert rows_of[1] == ["layer 0", "groups[0].head.feature_map", "null → {kind: hedgehog, dim: 64}"]
    assert rows(compose, "one.yaml", "swapped.yaml")[1][0] == "layers[0].use[0].head.feature_map"
    paths = [row[0] for row in rows(compose, "one.yaml", "lolcats")[1:]]
    assert {"layers[0].at", "layers[0].use[0].head.memory", "layers[0].use[1].heads"} <= set(paths)


def test_json_lists_differences_and_on_a_source_layers_and_hashes(compose: Compose, teacher: Path) -> None:
    def differences_of(*arguments: object) -> Any:
        return json.loads(compose("diff", *arguments, "--json").stdout)

    names = ["lawcat", "ablations/lawcat-convolution:without"]
    change = {"path": "head.conv", "first": {"kind": "causal"}, "second": None}
    assert differences_of(*names) == {"specs": names, "same": False, "hashes": None, "differences": [change | {"layers": None}]}
    difference = differences_of(*names, "--from", teacher)
    assert difference["differences"] == [change | {"layers": [0, 1]}]
    assert len(set(difference["hashes"])) == 2
    same = differences_of("lawcat", "ablations/lawcat-convolution:complete", "--from", teacher)
    assert (same["same"], same["differences"], len(set(same["hashes"]))) == (True, [], 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("head: {memory: [windwo]}", "x.yaml:3:17  head.memory[0].kind: "),
        ("head: {memory: [window]}", "x.yaml:3:17  head.memory[0]: this memory holds 64 pairs and evicts the rest"),
        (
            "extends: lawcat\nlayers: [{at: 0, use: other}]",
            'x.yaml:4:23  layers[0].use: there is no head "other"; there are: head, source (its own attention)',
        ),
        ("extends: ablations/lawcat-rope", "vary: x is a sweep of 2 specs: rope, none"),
    ],
)
@pytest.mark.parametrize("on_source", [False, True])
def test_invalid_arguments_are_refused(compose: Compose, teacher: Path, text: str, message: str, on_source: bool) -> None:
    Path("x.yaml").write_text(f"compose: 1\nname: x\n{text}\n")
    for names in (("lawcat", "x.yaml"), ("x.yaml", "x.yaml")):
        result = compose("diff", *names, *(["--from", teacher] if on_source else []))
        assert result.exit_code == 2
        assert message in result.stderr
        assert result.stdout == ""


def test_the_second_may_be_changed(compose: Compose, teacher: Path) -> None:
    for source in ([], ["--from", teacher]):
        rows_of = rows(compose, "lolcats", "lolcats", "--set", "head.position=none", *source)
        assert rows_of[0][0].startswith("lolcats → lolcats --set head.position=none")
        assert sum("head.memory[0].position" in row for row in rows_of) == 1
    result = compose("diff", "lolcats", "lolcats", "--set", "head.positoin=none")
    assert result.exit_code == 2
    assert "--set head.positoin=none" in result.stderr


def test_trunks_and_shares_of_heads_are_compared(compose: Compose, teacher: Path) -> None:
    trunk = "trunk: {width: 32, layers: 2, heads: 4, vocabulary: 64"
    for name, more in (("one", "}"), ("same", ", head_dim: 8, norm: rms}"), ("other", ", mlp: plain, norm: layer}")):
        Path(f"{name}.yaml").write_text(f"compose: 1\nname: {name}\nextends: lawcat\n{trunk}{more}\n")
    assert "the same meaning on their own trunk: " in compose("diff", "one.yaml", "same.yaml").stdout
    assert rows(compose, "one.yaml", "other.yaml") == [
        ["one.yaml → other.yaml"],
        ["trunk.norm", "rms → layer"],
        ["trunk.mlp", "{kind: gated, width: 128} → {kind: plain, width: 128}"],
    ]
    assert rows(compose, "one.yaml", "lawcat")[1][0] == "trunk"
    assert compose("diff", "one.yaml", "same.yaml", "--from", teacher).exit_code == 2
    use = "use: [{head: lolcats, heads: 2/4}, {head: lawcat, heads: 4/8}]"
    Path("half.yaml").write_text(f"compose: 1\nname: half\nextends: mixed-heads\nlayers: [{{at: all, {use}}}]\n")
    assert rows(compose, "mixed-heads", "half.yaml") == [["the same meaning on every source"]]
