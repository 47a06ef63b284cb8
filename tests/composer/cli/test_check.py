"""`compose check` finds every mistake of every spec with its place, and accepts valid specs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from composer.spec.shipped import shipped_specs
from tests.composer.cli.conftest import Compose
from tests.shipped import SHIPPED

BEFORE = "compose: 1\nname: wrong\n"


def test_shipped_specs_are_valid(compose: Compose) -> None:
    result = compose("check", *shipped_specs())
    assert result.exit_code == 0
    assert result.stdout.count("ok  ") == len(SHIPPED)
    assert result.stderr == ""


def test_check_on_a_source_prints_the_hash(compose: Compose, teacher: Path) -> None:
    result = compose("check", "lawcat", "--from", teacher)
    assert result.exit_code == 0
    assert re.fullmatch(r"ok  lawcat  [0-9a-f]{12}…  head: state\n", result.stdout)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("head: {memory: [windwo]}", "wrong.yaml:3:17  head.memory[0].kind: "),
        ("head: {memory: [window]}", "wrong.yaml:3:17  head.memory[0]: this memory holds 64 pairs"),
        ("heads:\n  one: {memory: [full], conv: causal}", "wrong.yaml:4:31  heads.one.conv: "),
        ("head: {feature_map: relu, memory: [{kind: state}, full]}", "head.memory[0]: a `state` memory never evicts pairs"),
    ],
)
def test_mistakes_have_a_place(compose: Compose, text: str, message: str) -> None:
    Path("wrong.yaml").write_text(BEFORE + text)
    result = compose("check", "wrong.yaml")
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_map_may_keep_any_dimension_until_there_is_a_source(compose: Compose, teacher: Path) -> None:
    head = "head: {feature_map: {kind: exp, linear: true, skip: true, dim: 96}, memory: [state]}"
    Path("skip.yaml").write_text(BEFORE + head)
    assert compose("check", "skip.yaml").exit_code == 0
    result = compose("check", "skip.yaml", "--from", teacher)
    assert result.exit_code == 2
    assert "head.feature_map.dim: xW + x needs W to keep the dimension: x has 8 numbers" in result.stderr


def test_heads_without_a_layer_are_noted(compose: Compose, teacher: Path) -> None:
    """A head that no layer of this source uses is a note and not an error: another source may have more layers."""
    Path("all.yaml").write_text(BEFORE + "extends: hybrid\nlayers: [{at: all, use: exact}]\n")
    assert compose("check", "all.yaml").stdout.splitlines()[0].endswith("head: window → state; exact: full")
    row, note = compose("check", "all.yaml", "--from", teacher).stdout.splitlines()
    assert row.endswith("head: window → state (in no layer); exact: full")
    assert note.startswith("Note: All layers have softmax attention, and no layer has the `head` of the spec")


SLIDING = ("lola", "--set", "head.memory.0.shape=sliding")


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (SLIDING, "`sparse` is slow with PyTorch's kernels: the memory above evicts one pair a token"),
        (("lola",), None),
        (("lolcats", "--set", "head.memory.0.size=1000000"), "It is smaller than the cache only above 1,0"),
        (("kept.yaml",), "Layer 0: softmax attention over the whole text in 1 of 2 key heads"),
    ],
)
def test_notes_warn_of_slow_forms_and_large_states(
    compose: Compose, teacher: Path, words: tuple[str, ...], note: str | None
) -> None:
    kept = "extends: streaming\nlayers: [{at: 0, use: [{head: source, heads: [1]}, {head: head, heads: rest}]}]\n"
    Path("kept.yaml").write_text("compose: 1\nname: kept\n" + kept)
    result = compose("check", *words, "--from", teacher)
    assert result.exit_code == 0, result.output
    assert (note or "ok") in " ".join(result.stdout.split())
    assert ("Note: " in result.stdout) == (note is not None)


def test_slow_forms_are_noted_without_a_source(compose: Compose) -> None:
    assert "Set `shape: terraced` on the window above" in " ".join(compose("check", *SLIDING).stdout.split())


def test_layers_are_checked_on_a_source(compose: Compose, teacher: Path) -> None:
    Path("layers.yaml").write_text(BEFORE + "extends: hybrid\nlayers: [{at: 7, use: exact}]\n")
    assert compose("check", "layers.yaml").exit_code == 0
    result = compose("check", "layers.yaml", "--from", teacher)
    assert result.exit_code == 2
    assert "layers.yaml:4:15  layers[0].at: layer 7 is not there: the model has 2 layers" in result.stderr


EVERYWHERE = {
    "an unknown head": (
        "extends: lolcats\nlayers: [{at: 0, use: haed}]",
        'layers[0].use: there is no head "haed"; did you mean "head"?',
    ),
    "a head twice": (
        "extends: lolcats\nlayers: [{at: 0, use: [{head: head, heads: 2}, {head: head, heads: 2}]}]",
        "names a head twice",
    ),
    "shares": (
        "extends: lolcats\nheads: {exact: {memory: [full]}}\n"
        "layers: [{at: 0, use: [{head: exact, heads: 1/4}, {head: head, heads: 1/2}]}]",
        "layers[0].use: these groups are 3/4 of the query heads together, and have to be all of them",
    ),
    "a step": ("extends: lolcats\nlayers: [{at: '0:2:0', use: head}]", "layers[0].at: a step of 0 never arrives"),
    "a name": ("heads: {half: {memory: [full]}}\nlayers: [{at: all, use: half}]", "heads.half: PyTorch's modules have"),
    "no head": ("paper: nothing", "layers: no layer has a head: add `head:`"),
    "a head that no layer of a source takes": (
        "head: {memory: [window]}\nheads: {exact: {memory: [full]}}\nlayers: [{at: all, use: exact}]",
        "head.memory[0]: this memory holds 64 pairs",
    ),
    "both ways": (
        "direction: bidirectional\nhead: {memory: [{kind: window, size: 4, shape: terraced, evict: drop}]}",
        "head.memory[0]: a terraced window evicts by chunks, so it is causal",
    ),
}


@pytest.mark.parametrize("case", EVERYWHERE)
def test_mistakes_on_every_source_are_reported_without_a_source(compose: Compose, teacher: Path, case: str) -> None:
    text, message = EVERYWHERE[case]
    Path("wrong.yaml").write_text(BEFORE + text + "\n")
    alone, on_source = compose("check", "wrong.yaml"), compose("check", "wrong.yaml", "--from", teacher)
    assert (alone.exit_code, on_source.exit_code) == (2, 2)
    assert message in alone.stderr
    assert alone.stderr == on_source.stderr


def test_all_mistakes_are_reported_at_once(compose: Compose, teacher: Path) -> None:
    """Two heads that are wrong on every source and two rules that are wrong for this source are each reported once."""
    Path("wrong.yaml").write_text(
        BEFORE + "head: {memory: [window]}\n"
        "heads:\n  one: {memory: [{kind: state}]}\n  two: {memory: [{kind: latents, size: 6}]}\n"
        "layers:\n  - {at: 7, use: one}\n  - {at: 1, use: [{head: one, heads: 1}, {head: two, heads: 3}]}\n  - {at: 0, use: two}\n"
    )
    alone = [line.partition("  ")[2].partition(": ")[0] for line in compose("check", "wrong.yaml").stderr.splitlines()[:-1]]
    assert alone == ["head.memory[0]", "heads.one.memory[0]"]
    on_source = compose("check", "wrong.yaml", "--from", teacher).stderr.splitlines()[:-1]
    paths = [line.partition("  ")[2].partition(": ")[0] for line in on_source]
    assert paths == [*alone, "layers[0].at", "layers[1].use"]


def test_shares_of_heads_need_the_number_of_heads(compose: Compose, teacher: Path) -> None:
    Path("x.yaml").write_text(BEFORE + "head: {memory: [{kind: latents, size: 6}]}\n")
    assert compose("check", "x.yaml").exit_code == 0
    assert "6 latents do not split evenly over 4 heads" in compose("check", "x.yaml", "--from", teacher).stderr


def test_edges_are_shown_as_edges(compose: Compose) -> None:
    window, graph = "{kind: window, size: 4}", "[pairs -> window, window->old, pairs -> fading]"
    states = "{kind: state, name: old}, {kind: state, name: fading, gate: head}"
    Path("x.yaml").write_text(BEFORE + f"head: {{feature_map: elu, memory: [{window}, {states}], graph: {graph}}}\n")
    result = compose("check", "x.yaml")
    assert result.stdout.startswith("ok  x.yaml  head: pairs → window, window → old, pairs → fading\n")
    latents = "{kind: window, size: 4, evict: drop}, {kind: latents, size: 32}"
    Path("x.yaml").write_text(BEFORE + f"head: {{memory: [{latents}], graph: [pairs -> window], read: mixture}}\n")
    assert "head: pairs → window + latents\n" in compose("check", "x.yaml").stdout


def test_trunks_with_too_many_layers_are_refused(compose: Compose) -> None:
    trunk = "trunk: {width: 64, layers: 1000000000, heads: 4, vocabulary: 512}"
    Path("deep.yaml").write_text(BEFORE + f"extends: lolcats\n{trunk}\n")
    result = compose("check", "deep.yaml")
    assert result.exit_code == 2
    assert "deep.yaml:4:28  trunk.layers: expected a number of at most 10000, got 1000000000" in result.stderr


def test_sources_with_too_many_layers_are_refused(compose: Compose) -> None:
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8}
    Path("source").mkdir()
    Path("source/config.json").write_text(json.dumps({"model_type": "llama", **sizes, "num_hidden_layers": 10**9}))
    result = compose("check", "lolcats", "--from", "source")
    assert result.exit_code == 2
    assert "num_hidden_layers: 1000000000; expected a positive whole number of at most 10,000" in result.stderr


def test_mistakes_of_all_specs_are_reported(compose: Compose) -> None:
    Path("one.yaml").write_text(BEFORE + "head: {memory: [full], colour: red}\n")
    result = compose("check", "one.yaml", "lawcat", "two.yaml")
    assert result.exit_code == 2
    assert result.stdout.startswith("ok  lawcat ")
    assert "one.yaml:3:24" in result.stderr
    assert '"two.yaml"' in result.stderr
    assert result.stderr.endswith("2 specs of 3 cannot be used\n")


def test_json_has_the_hash_or_the_mistakes_of_each_spec(compose: Compose, teacher: Path) -> None:
    Path("one.yaml").write_text(BEFORE + "head: {memory: [full], colour: red}\n")
    result = compose("check", "lawcat", "one.yaml", "--from", teacher, "--json")
    assert result.exit_code == 2
    good, wrong = json.loads(result.stdout)
    assert good == {"spec": "lawcat", "ok": True, "says": "head: state", "hash": good["hash"], "mistakes": [], "notes": []}
    assert good["hash"] == json.loads(compose("show", "lawcat", "--from", teacher, "--json").stdout)["hash"]
    assert (wrong["ok"], len(wrong["mistakes"])) == (False, 1)
    assert json.loads(compose("check", "lawcat", "--json").stdout)[0]["hash"] is None


def test_every_variant_of_a_sweep_is_checked(compose: Compose, teacher: Path) -> None:
    Path("x.yaml").write_text(
        BEFORE + "extends: lolcats\nvary:\n  grid:\n    head.memory.0.evict: [next, drop]\n    head.position: [rope, none]\n"
    )
    for arguments in ([], ["--from", teacher]):
        result = compose("check", "x.yaml", "lawcat", *arguments)
        assert result.exit_code == 2
        good = [re.split(" {2,}", line)[1] for line in result.stdout.splitlines() if line.startswith("ok ")]
        assert good == ["x.yaml, variant next-rope", "x.yaml, variant next-none", "lawcat"]
        mistakes = result.stderr.splitlines()
        assert [line.rpartition(" (")[2] for line in mistakes[:2]] == [
            f'in the variant "drop-{word}": head.memory.0.evict="drop", head.position="{word}")' for word in ("rope", "none")
        ]
        assert all(line.startswith("x.yaml:6:33  head.memory[0].evict: it drops its evicted pairs") for line in mistakes[:2])
        assert mistakes[2] == "2 specs of 5 cannot be used"
    Path("y.yaml").write_text(BEFORE + "extends: lolcats\nvary: {grid: {head.memory.0.size: [4, x, y]}}\n")
    result = compose("check", "y.yaml", "--json")
    (answer,) = json.loads(result.stdout)
    assert (answer["spec"], answer["ok"], len(answer["mistakes"])) == ("y.yaml", False, 2)
    assert answer["mistakes"][1].pop("message").endswith('got "y" (in the variant "y": head.memory.0.size="y")')
    assert answer["mistakes"][1] == {"file": "y.yaml", "line": 4, "column": 42, "path": "head.memory[0].size"}


def test_a_trunk_of_its_own_is_checked_without_a_source(compose: Compose, teacher: Path) -> None:
    trunk = "trunk: {width: 32, layers: 2, heads: 4, vocabulary: 64}\n"
    Path("whole.yaml").write_text(f"{BEFORE}extends: hybrid\n{trunk}")
    result = compose("check", "whole.yaml")
    assert result.exit_code == 0
    assert re.fullmatch(
        r"ok  whole.yaml  [0-9a-f]{12}…  head: window → state \(in no layer\); exact: full\nNote: All layers .*\n", result.stdout
    )
    assert "--from SOURCE" in compose("check", "whole.yaml", "lawcat").stdout
    Path("layers.yaml").write_text(f"{BEFORE}extends: hybrid\nlayers: [{{at: 7, use: exact}}]\n{trunk}")
    result = compose("check", "layers.yaml")
    assert result.exit_code == 2
    assert "layers.yaml:4:15  layers[0].at: layer 7 is not there: the model has 2 layers" in result.stderr
    result = compose("check", "whole.yaml", "--from", teacher)
    assert result.exit_code == 2
    assert "whole.yaml:4:8  trunk: this spec has its own trunk" in result.stderr


def test_mistakes_have_their_place_in_fields(compose: Compose) -> None:
    """The JSON fields together equal the printed message."""
    Path("wrong.yaml").write_text(BEFORE + "head: {memory: [{kind: window, sise: 3}], read: sharde}\n")
    (answer,) = json.loads(compose("check", "wrong.yaml", "--json").stdout)
    first, second = answer["mistakes"]
    assert first.pop("message").startswith('unknown key "sise"; did you mean "size"?')
    assert first == {"file": "wrong.yaml", "line": 3, "column": 32, "path": "head.memory[0].sise"}
    assert (second["line"], second["column"], second["path"]) == (3, 49, "head.read.kind")
    paths = compose("check", "wrong.yaml").stderr.splitlines()
    assert paths[1] == f"wrong.yaml:3:49  head.read.kind: {second['message']}"
    Path("tab.yaml").write_text(BEFORE + "head:\n\tmemory: [full]\n")
    (answer,) = json.loads(compose("check", "tab.yaml", "--json").stdout)
    assert answer["mistakes"] == [
        {"message": "not YAML: a tab may not indent; use spaces", "file": "tab.yaml", "line": 4, "column": 1, "path": None}
    ]


def test_unused_heads_are_noted_without_a_source(compose: Compose) -> None:
    Path("wrong.yaml").write_text(BEFORE + "head: {memory: [full]}\nheads: {exact: {memory: [full]}}\n")
    result = compose("check", "wrong.yaml")
    assert (result.exit_code, result.stderr.splitlines()[0]) == (
        2,
        "wrong.yaml:4:16  heads.exact: no layer uses this head; remove it, or name it in `layers`",
    )


def test_settings_apply_to_every_spec(compose: Compose, teacher: Path) -> None:
    (plain,) = json.loads(compose("check", "lolcats", "--from", teacher, "--json").stdout)
    (smaller,) = json.loads(compose("check", "lolcats", "--from", teacher, "--set", "head.memory.0.size=8", "--json").stdout)
    assert plain["hash"] != smaller["hash"]
    result = compose("check", "lolcats", "lawcat", "--set", "head.memory.0.sise=8")
    assert result.exit_code == 2
    assert result.stderr.count('--set head.memory.0.sise=8  head.memory[0].sise: unknown key "sise"') == 2
    (variant,) = json.loads(compose("check", "ablations/lawcat-rope", "--set", "head.conv.kernel=0", "--json").stdout)
    assert (variant["spec"], variant["ok"]) == ("ablations/lawcat-rope", False)


def test_specs_completed_by_settings_are_valid(compose: Compose) -> None:
    Path("x.yaml").write_text(
        "compose: 1\nname: x\nhead: {memory: [full]}\ntrunk: {width: 8, layers: 1, heads: 2, mlp: {kind: gated, width: 8}}\n"
    )
    Path("y.yaml").write_text(Path("x.yaml").read_text() + "vary: {grid: {trunk.layers: [1, 2]}}\n")
    overrides = ["--set", "trunk.vocabulary=100"]
    assert compose("show", "x.yaml", *overrides).exit_code == 0
    result = compose("check", "x.yaml", "y.yaml", *overrides)
    assert (result.exit_code, result.stdout.count("ok ")) == (0, 3), result.stdout
    result = compose("check", "x.yaml", "y.yaml")
    assert result.exit_code == 2
    assert "trunk.vocabulary: missing" in result.stdout + result.stderr


def test_quiet_prints_mistakes_alone(compose: Compose) -> None:
    Path("wrong.yaml").write_text(BEFORE + "head: {memory: [full], colour: red}\n")
    good = compose("check", "lolcats", "lawcat", "--quiet")
    assert (good.exit_code, good.output) == (0, "")
    result = compose("check", "lolcats", "wrong.yaml", "-q")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("wrong.yaml:3:24  head.colour: ")
    assert len(result.stderr.splitlines()) == 1
