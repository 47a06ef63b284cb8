"""For specs with thousands of heads, rules and mistakes, messages stay short and time grows linearly."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from composer.errors import LONGEST_MESSAGE, LONGEST_MISTAKE, MOST_SHOWN, ComposerError, Mistake, SpecError
from composer.spec import layer_rules, places, problems, resolve
from composer.spec.dimensions import Dimensions
from composer.spec.document import Spec, Vary
from composer.spec.loading import load_spec
from composer.spec.sweep import variant_names
from tests.composer.cli.conftest import compose as compose  # noqa: PLC0414  a fixture

HEADS = 300


def size(layers: int) -> Dimensions:
    return Dimensions(hidden_size=64, layers=layers, heads=8, key_heads=4, head_dim=8, rope_theta=1e4)


def document(heads: int, at: str = "all", use: str = "h{}", head: str = "{memory: [full]}") -> str:
    """Return a document with this many heads and a rule for each."""
    own = "".join(f"  h{number}: {head}\n" for number in range(heads))
    rules = "".join(f"  - {{at: {at.format(number)}, use: {use.format(number)}}}\n" for number in range(heads))
    return f"compose: 1\nname: large\nheads:\n{own}layers:\n{rules}"


def load(folder: Path, text: str) -> Spec:
    (folder / "large.yaml").write_text(text)
    return load_spec(folder / "large.yaml")


WINDOWS = "{memory: [{kind: window, size: 4}, {kind: window, size: 4}]}"
MANY_MISTAKES = {
    "heads without a layer": (document(HEADS), 12),
    "heads that no rule names": (f"{document(HEADS, use='h0')}", 12),
    "unknown heads": (document(HEADS, at="{}", use="g{}"), HEADS),
    "wrong heads": (document(HEADS, at="{}", head=WINDOWS), HEADS),
    "missing layers": (document(HEADS, at="10{}"), 12),
}


@pytest.mark.parametrize("case", MANY_MISTAKES)
def test_only_the_first_of_many_mistakes_are_shown(tmp_path: Path, case: str) -> None:
    text, layers = MANY_MISTAKES[case]
    spec = load(tmp_path, text)
    problem_list = problems.problems(spec, size(layers))
    assert len(problem_list) == MOST_SHOWN + 1
    assert str(problem_list[-1]) == f"and more mistakes: only the first {MOST_SHOWN} are shown"
    assert all(0 < len(str(error)) < 1000 for error in problem_list)
    with pytest.raises(ComposerError) as caught:
        resolve.resolve(spec, size(layers))
    assert len(str(caught.value)) < 1000


def test_the_command_prints_the_first_mistakes_also_as_json(compose: Any, tmp_path: Path) -> None:
    (tmp_path / "large.yaml").write_text(document(HEADS, use="h0"))
    result = compose("check", "large.yaml", "--json")
    assert result.exit_code == 2
    assert len(result.stdout) < 2 * LONGEST_MESSAGE
    (report,) = json.loads(result.stdout)
    assert len(report["mistakes"]) == MOST_SHOWN + 1
    assert len(compose("check", "large.yaml").stderr) < 2 * LONGEST_MESSAGE


def test_errors_are_bounded_in_number_and_length_of_mistakes() -> None:
    few = SpecError(*(Mistake(f"mistake {number}") for number in range(MOST_SHOWN + 1)))
    assert len(few.mistakes) == MOST_SHOWN + 1
    many = SpecError(*(Mistake(f"mistake {number}") for number in range(3000)))
    assert len(many.mistakes) == MOST_SHOWN + 1
    assert str(many).endswith("\nmistake 99\nand 2,900 more mistakes")
    long = SpecError(*(Mistake("x" * 10**5, path="y" * 10**5) for _ in range(90)))
    assert len(long.mistakes[0].message) == LONGEST_MISTAKE + 1
    assert len(str(long)) < LONGEST_MESSAGE + 100
    assert str(long).endswith("more mistakes")
    assert len(str(SpecError("x" * 10**6))) == LONGEST_MISTAKE + 1


@pytest.mark.parametrize("heads", [100, 200])
def test_rules_are_read_a_few_times_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heads: int) -> None:
    calls: Counter[str] = Counter()
    for module in (layer_rules, problems, resolve):
        for name in ("layers_at", "names_in"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, _counted(calls, name, getattr(module, name)))
    for text in (document(heads), document(heads, at="{}")):
        calls.clear()
        spec = load(tmp_path, text)
        problems.problems(spec, size(heads))
        assert 0 < calls["layers_at"] <= 6 * heads
        assert 0 < calls["names_in"] <= 6 * heads


def _counted(calls: Counter[str], name: str, function: Any) -> Any:
    def counted(*arguments: Any) -> Any:
        calls[name] += 1
        return function(*arguments)

    return counted


def test_the_last_matching_rule_applies(tmp_path: Path) -> None:
    """The result equals rules applied one after the other."""
    rules = ["all", "0:9:2", "3", "[1, -1]", "5:2:-1", "-4:", "[7, 2, 7]"]
    text = "compose: 1\nname: x\nheads:\n" + "".join(f"  h{number}: {{memory: [full]}}\n" for number in range(len(rules)))
    text += "layers:\n" + "".join(
        f"  - {{at: {rule if rule[0] == '[' else json.dumps(rule)}, use: h{number}}}\n" for number, rule in enumerate(rules)
    )
    spec = load(tmp_path, text.replace('"3"', "3"))
    expected: list[int | None] = [None] * 12
    for number, rule in enumerate(spec.layers):
        for layer in layer_rules.layers_at(rule.at, 12, ()):
            expected[layer] = number
    assert layer_rules.last_rules(spec, 12) == expected
    assert set(expected) == {1, 3, 4, 5, 6}


def test_variants_with_equal_names_are_numbered() -> None:
    values = [f"x{''.join(ends)}" for ends in itertools.product(".!", repeat=9)]
    assert variant_names(Vary(grid={"paper": values})) == ["x", *(f"x-{number}" for number in range(2, len(values) + 1))]


def test_a_word_is_compared_with_a_bounded_number_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    close = places.difflib.get_close_matches
    monkeypatch.setattr(
        places.difflib, "get_close_matches", lambda word, known, **more: seen.append(len(known)) or close(word, known, **more)
    )
    assert places.nearest("headd", [f"{'x' * 50}{number}" for number in range(10**4)] + ["head"]) == '; did you mean "head"?'
    assert seen == [places.MOST_COMPARED]


def test_a_sweep_with_many_variants_names_the_first(tmp_path: Path) -> None:
    values = ", ".join(f"{number}" for number in range(2, 300))
    text = (
        f"compose: 1\nname: x\nhead: {{memory: [{{kind: window, size: 4}}]}}\nvary:\n  grid: {{head.memory.0.size: [{values}]}}\n"
    )
    with pytest.raises(ComposerError) as caught:
        resolve.resolve(load_document(tmp_path, text), size(2))
    assert len(str(caught.value)) < 2000
    assert "more" in str(caught.value)
    with pytest.raises(SpecError, match="there is no variant") as wrong:
        load_spec(f"{tmp_path / 'large.yaml'}:9999")
    assert len(str(wrong.value)) < 2000


def load_document(folder: Path, text: str) -> Spec:
    """Load a sweep as one document without its variants."""
    load(folder, text)
    return load_spec(folder / "large.yaml")
