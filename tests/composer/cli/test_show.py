"""`compose show` prints an equivalent self-contained spec, and on a source the fully resolved document."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from composer.spec.loading import expand, load_spec, resolve_spec
from composer.spec.places import plain
from composer.spec.reading import read_text
from composer.spec.shipped import shipped_specs
from composer.spec.writing import to_yaml
from composer.weights.config import dimensions
from composer.weights.sources import describe_model
from tests.composer.cli.conftest import Compose

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=12) | st.sampled_from(
    ["1e-3", "0o17", "0x1F", "on", "yes", "null", "~", ".5", "1_000", "-1.", "", "a: b", "# no", "2410.10254", "=", "<<"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["kind", "name", "size", "dim"]), inner, max_size=4)
    ),
    max_leaves=12,
)


def without_bare_words(value: object) -> object:
    """Replace bare words by {kind: word}, from the inside out."""
    if isinstance(value, dict):
        inner = {key: without_bare_words(item) for key, item in value.items()}
        return inner["kind"] if inner.keys() == {"kind"} and isinstance(inner["kind"], str) else inner
    return [without_bare_words(item) for item in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("name", shipped_specs())
def test_the_output_is_the_spec(compose: Compose, name: str) -> None:
    result = compose("show", name)
    assert result.exit_code == 0
    Path("shown.yaml").write_text(result.stdout)
    assert load_spec(Path("shown.yaml")) == load_spec(name)
    assert "extends" not in result.stdout


def test_overrides_change_the_printed_spec(compose: Compose) -> None:
    result = compose("show", "lolcats", "--set", "head.memory.0.size=32", "--set", "recipe=null")
    assert result.exit_code == 0
    shown = yaml.safe_load(result.stdout)
    assert shown["head"]["memory"] == [{"kind": "window", "size": 32, "weight": "learned"}, "state"]
    assert "recipe" not in shown or shown["recipe"] is None


def test_show_resolves_a_spec_on_a_source(compose: Compose, teacher: Path) -> None:
    result = compose("show", "lolcats", "--from", teacher)
    assert result.exit_code == 0
    resolved = resolve_spec("lolcats", dimensions(describe_model(teacher).trunk))
    assert result.stdout.splitlines()[0].endswith(resolved.hash)
    shown = yaml.safe_load(result.stdout)
    assert (shown["dimensions"]["layers"], shown["dimensions"]["heads"], shown["dimensions"]["key_heads"]) == (2, 4, 2)
    assert shown["head"]["memory"][0]["position"] == {"kind": "rope", "theta": 10000.0, "scaling": None}


def test_json_is_the_spec_or_the_resolved_spec(compose: Compose, teacher: Path) -> None:
    shown = json.loads(compose("show", "lawcat", "--set", "head.conv.kernel=3", "--json").stdout)
    assert load_spec(shown) == load_spec("lawcat", ["head.conv.kernel=3"])
    resolved = json.loads(compose("show", "lawcat", "--from", teacher, "--json").stdout)
    assert resolved.pop("hash") == resolve_spec("lawcat", dimensions(describe_model(teacher).trunk)).hash
    assert resolved["layers"] == [[{"head": "head", "heads": 4, "key_heads": 2}]] * 2
    assert list(resolved["heads"]) == ["head"]


@example(document={"head": {"kind": {"kind": ""}}})
@given(document=st.dictionaries(st.sampled_from(["head", "name", "paper"]), VALUES, min_size=1))
def test_printed_yaml_reads_back(document: dict[str, object]) -> None:
    assert without_bare_words(plain(read_text(to_yaml(document), "shown"))) == without_bare_words(document)


def test_a_sweep_is_shown_as_it_is_written_or_expanded(compose: Compose, teacher: Path) -> None:
    assert yaml.safe_load(compose("show", "ablations/lawcat-rope").stdout)["vary"] == {"grid": {"head.position": ["rope", "none"]}}
    result = compose("show", "ablations/lawcat-rope", "--expand", "--set", "head.conv.kernel=3")
    assert result.exit_code == 0
    assert [line for line in result.stdout.splitlines() if line[:1] in "#-"] == ["# lawcat-rope-rope", "---", "# lawcat-rope-none"]
    specs = expand("ablations/lawcat-rope", ["head.conv.kernel=3"])
    for name, text in zip(specs, result.stdout.split("---\n"), strict=True):
        assert load_spec(plain(read_text(text, "shown"))) == specs[name]
    shown = json.loads(compose("show", "ablations/lawcat-rope", "--expand", "--set", "head.conv.kernel=3", "--json").stdout)
    assert {name: load_spec(document) for name, document in shown.items()} == specs
    result = compose("show", "ablations/lawcat-rope", "--from", teacher)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "is a sweep of 2 specs" in result.stderr


def test_expanded_variants_have_their_hashes_on_a_source(compose: Compose, teacher: Path) -> None:
    size = dimensions(describe_model(teacher).trunk)
    hashes = {name: resolve_spec(f"ablations/lawcat-rope:{name}", size).hash for name in ("rope", "none")}
    on_source = json.loads(compose("show", "ablations/lawcat-rope", "--expand", "--from", teacher, "--json").stdout)
    assert {name: document["hash"] for name, document in on_source.items()} == hashes
    shown = compose("show", "ablations/lawcat-rope", "--expand", "--from", teacher).stdout
    assert [line.rpartition(" ")[2] for line in shown.splitlines() if line.startswith("#")] == list(hashes.values())
    assert shown.count("hash:") == 0


def test_variants_are_written_as_files(compose: Compose) -> None:
    result = compose("show", "ablations/lawcat-gate-rank", "--expand", "-o", "deep/folder")
    assert result.exit_code == 0
    files = [f"deep/folder/lawcat-gate-rank-{rank}.yaml" for rank in (16, 32, 64, 128, "full")]
    assert result.stdout.splitlines() == files
    assert [load_spec(file) for file in files] == list(expand("ablations/lawcat-gate-rank").values())
    Path(files[0]).unlink()
    Path(files[1]).write_text("precious")
    result = compose("show", "ablations/lawcat-gate-rank", "--expand", "-o", "deep/folder", "--json")
    assert result.exit_code == 2
    assert f"{files[1]}, {files[2]}" in result.stderr
    assert (Path(files[0]).exists(), Path(files[1]).read_text()) == (False, "precious")
    result = compose("show", "ablations/lawcat-gate-rank", "--expand", "-o", "other", "--json")
    assert json.loads(result.stdout) == [file.replace("deep/folder", "other") for file in files]


def test_invalid_uses_of_expand_are_refused(compose: Compose, teacher: Path) -> None:
    Path("file").touch()
    for arguments, message in (
        (["lawcat", "--expand"], "this is one spec, no sweep"),
        (["ablations/lawcat-rope", "-o", "x"], "it needs --expand"),
        (["ablations/lawcat-rope", "--expand", "--from", teacher, "-o", "x"], "excludes --from"),
        (["ablations/lawcat-rope", "--expand", "-o", "file/x"], "file/x cannot be written: Not a directory"),
    ):
        result = compose("show", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr


def test_show_resolves_a_spec_on_its_own_trunk(compose: Compose, teacher: Path) -> None:
    Path("whole.yaml").write_text(
        "compose: 1\nname: whole\nextends: lawcat\ntrunk: {width: 32, layers: 2, heads: 4, vocabulary: 64, mlp: plain}\n"
    )
    assert yaml.safe_load(compose("show", "whole.yaml").stdout)["trunk"]["mlp"] == "plain"
    resolved = resolve_spec("whole.yaml", None)
    result = compose("show", "whole.yaml", "--fresh")
    assert result.stdout.splitlines()[0] == f"# whole on its own trunk, resolved. Hash of what it means: {resolved.hash}"
    assert yaml.safe_load(result.stdout)["trunk"]["mlp"] == {"kind": "plain", "width": 128, "activation": "gelu"}
    assert json.loads(compose("show", "whole.yaml", "--fresh", "--json").stdout)["hash"] == resolved.hash
    for arguments, message in (
        (["lawcat", "--fresh"], "this spec has no `trunk`"),
        (["whole.yaml", "--from", teacher], "whole.yaml:4:8  trunk: this spec has its own trunk"),
        (["whole.yaml", "--from", teacher, "--fresh"], "not both"),
        (["ablations/lawcat-rope", "--expand", "--fresh", "-o", "x"], "excludes --from and --fresh"),
    ):
        result = compose("show", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr


def test_without_a_spec_shipped_specs_are_listed(compose: Compose) -> None:
    result = compose("show")
    assert result.exit_code == 0
    purposes = json.loads(compose("show", "--json").stdout)
    assert list(purposes) == list(shipped_specs())
    assert purposes["linear"] == "Linear attention with the first such feature map, 1 + ELU (arXiv:2006.16236)."
    lines = result.stdout.splitlines()
    assert [line.partition(" ")[0] for line in lines[: len(purposes)]] == list(purposes)
    assert "Gated DeltaNet in three layers of four." in lines[list(purposes).index("gdn-hybrid")]
    wrong = compose("show", "--fresh")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "no spec is named" in wrong.stderr


@pytest.mark.parametrize("command", ["build", "explain", "show"])
def test_help_refers_to_the_list_of_names(compose: Compose, command: str) -> None:
    words = " ".join(compose(command, "--help").stdout.split())
    assert "`compose show` lists them" in words
    assert "lawcat" not in words


def test_show_code_prints_the_functions_of_the_heads(compose: Compose, teacher: Path) -> None:
    result = compose("show", "lolcats", "--from", teacher, "--code")
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == f"# lolcats on {teacher}: backend auto on cpu, float32. Shapes: B rows, T tokens."
    assert "def head(parts, call, hidden, query, key, value):" in lines
    assert "# Without gradients, a long text in pieces, each from the state after the previous one." in lines
    one_token = result.stdout.partition("def head_one_token(")[2]
    assert "one query against the ring of pairs" in one_token
    assert "torch: one step of the recurrence" in one_token
    assert isinstance(ast.parse(result.stdout), ast.Module)
    slow = compose("show", "lolcats", "--from", teacher, "--code", "--backend", "reference", "--dtype", "bfloat16").stdout
    assert "backend reference on cpu, bfloat16" in slow
    assert "reference: all pairs of a call, masked" in slow
    assert "in pieces" not in slow, "the reference takes a text as a whole"
    (shown,) = json.loads(compose("show", "lolcats", "--from", teacher, "--code", "--json").stdout)
    assert all(text in result.stdout for text in shown["functions"])


def test_invalid_uses_of_code_are_refused(compose: Compose, teacher: Path) -> None:
    for arguments, message in (
        (["lolcats", "--code"], "lolcats has no sizes, which a program needs. Add a source: --from SOURCE"),
        (["ablations/lolcats", "--from", teacher, "--code", "--expand"], "name a variant, SWEEP:VARIANT, instead of --expand"),
        (["--code"], "no spec is named"),
        (["lolcats", "--from", teacher, "--backend", "torch"], "they need --code"),
        (
            ["lolcats", "--from", teacher, "--code", "--backend", "tritn"],
            'no backend "tritn"; there are auto, fla, reference, torch, triton',
        ),
    ):
        result = compose("show", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in " ".join(result.stderr.split())
