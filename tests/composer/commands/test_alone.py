"""Arguments that accept several values accept a single one, and specs are named in the same ways everywhere."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import composer
from composer.ablation.plan import read_variants
from composer.options.arguments import Numbers
from composer.spec.overrides import Overrides
from composer.tasks.passkey import Passkey
from tests.composer.programs import ROOT

TEACHER = ROOT / "examples" / "teacher"
FUNCTIONS = {name: getattr(composer, name) for name in dir(composer) if name != "ComposerError"}
OPEN = {"Numbers": Numbers, "Overrides": Overrides}
"""Names for one or several."""
BAD = "head.nothing=1"
DOCUMENT = {"compose": 1, "name": "own", "head": {"memory": ["full"]}}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_accept_single_values(name: str) -> None:
    for parameter in inspect.signature(inspect.unwrap(FUNCTIONS[name])).parameters.values():
        kinds = [word.strip() for word in re.split(r"\|(?![^\[]*\])", parameter.annotation)]
        several = [sequence for kind in kinds if (sequence := re.fullmatch(r"Sequence\[(.*)\]", kind))]
        for sequence in several:
            assert set(sequence[1].split(" | ")) <= set(kinds), f"{name}({parameter.name}: {parameter.annotation})"
        if parameter.name in ("overrides", "lengths", "length", "layers", "seeds", "prefill", "decode", "batch"):
            assert several or set(kinds) & OPEN.keys() or parameter.annotation in ("int", "int | None", "TokenCount"), (
                f"{name}({parameter.name})"
            )


CALLS: dict[str, Callable[[Any], Any]] = {
    "ablate": lambda overrides: composer.ablate("lawcat", TEACHER, out="out", tasks="mqar", lengths=64, overrides=overrides),
    "build": lambda overrides: composer.build("lawcat", TEACHER, overrides=overrides),
    "build_folder": lambda overrides: composer.build_folder("lawcat", TEACHER, "out", overrides=overrides),
    "calibrate": lambda overrides: composer.calibrate("built", "texts.jsonl", overrides=overrides),
    "check": lambda overrides: composer.check("lawcat", overrides=overrides),
    "code": lambda overrides: composer.code("lawcat", TEACHER, overrides=overrides),
    "diff": lambda overrides: composer.diff("lawcat", "lawcat", overrides=overrides),
    "distill": lambda overrides: composer.distill("built", "texts.jsonl", overrides=overrides),
    "draw": lambda overrides: composer.draw("lawcat", overrides=overrides),
    "expand": lambda overrides: composer.expand("ablations/lawcat-rope", overrides=overrides),
    "explain": lambda overrides: composer.explain("lawcat", TEACHER, overrides=overrides),
    "load_spec": lambda overrides: composer.load_spec("lawcat", overrides),
    "select": lambda overrides: composer.select("lawcat", TEACHER, "texts.jsonl", "out", keep=1, overrides=overrides),
    "show": lambda overrides: composer.show("lawcat", overrides=overrides),
    "train": lambda overrides: composer.train("built", "texts.jsonl", overrides=overrides),
}


def test_all_functions_with_overrides_are_tested() -> None:
    assert sorted(CALLS) == [name for name in FUNCTIONS if "overrides" in inspect.signature(FUNCTIONS[name]).parameters]


def messages_of(call: Callable[[Any], Any], overrides: Any) -> str:
    try:
        report = call(overrides)
    except composer.ComposerError as error:
        return str(error)
    return "\n".join(report.mistakes)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("students") / "built"
    composer.build_folder("lawcat", TEACHER, folder)
    return folder


@pytest.mark.parametrize("name", CALLS)
def test_a_single_override_is_accepted(name: str, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(built.parent)
    alone = messages_of(CALLS[name], BAD)
    # Where a document is wrong, the place of an override is its text on the command line.
    assert (f"--set {BAD}" if name in ("check", "expand", "load_spec") else f'`overrides=["{BAD}"]`') in alone
    assert alone == messages_of(CALLS[name], [BAD])


def test_layers_are_numbers_texts_or_lists(tmp_path: Path) -> None:
    for requested_layers, layers in ((0, [0]), ("0,-1", [0, 1]), ([-1], [1])):
        actual = composer.inspect(TEACHER, layers=requested_layers, length=16, text="Once upon a time there was a cat.", queries=2)
        assert sorted({head.layer for head in actual.heads}) == layers
    with pytest.raises(composer.ComposerError, match='layers: expected a whole number, such as 0,1,2, got "all"'):
        composer.inspect(TEACHER, layers="all")
    with pytest.raises(composer.ComposerError, match=r"model\.pt cannot be read"):
        composer.build_folder("lolcats", TEACHER, tmp_path / "out", lolcats=str(tmp_path / "model.pt"))


def test_a_single_task_is_accepted() -> None:
    report = composer.evaluate(TEACHER, Passkey(samples=1), 128)
    assert {cell.task for cell in report.cells} == {"passkey"}
    looked = [
        composer.inspect(TEACHER, tasks=tasks, length=[96], queries=2, layers=0) for tasks in ("passkey", [Passkey(samples=1)])
    ]
    assert looked[0].tokens == looked[1].tokens
    assert looked[0].text == "passkey"


def test_a_spec_is_named_in_each_way_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spec may be a file as text or as a path, its text, or a loaded spec; single or in a list."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump(DOCUMENT))
    ways = [str(file), file, DOCUMENT, composer.load_spec(DOCUMENT)]
    hashes = {composer.show(way, TEACHER).hash for way in ways}
    assert len(hashes) == 1
    for way in ways:
        assert composer.load_spec(way).name == "own"
        assert composer.check(way, TEACHER).ok
        assert [variant.name for variant in read_variants([way])] == ["own"]
        with pytest.raises(composer.ComposerError, match="no sweep"):
            composer.expand(way)
        with pytest.raises(composer.ComposerError, match="Two variants are called"):
            composer.ablate([way, file], TEACHER, out="out", tasks="mqar", lengths=64)
        with pytest.raises(composer.ComposerError, match="mqarr"):
            composer.ablate(way, TEACHER, out="out", tasks="mqarr", lengths=64)


def test_loaded_sweeps_are_accepted(tmp_path: Path) -> None:
    document = DOCUMENT | {"vary": {"grid": {"head.position": ["rope", "none"]}}}
    sweep = composer.load_spec(document)
    assert composer.expand(sweep) == composer.expand(document)
    assert [variant.name for variant in read_variants([sweep])] == [variant.name for variant in read_variants([document])]
    assert len(read_variants([sweep])) == 2


def test_new_accepts_and_returns_paths(tmp_path: Path) -> None:
    first = composer.new(tmp_path / "mine", like="lawcat")
    assert first == tmp_path / "mine.yaml"
    second = composer.new(tmp_path / "other.yaml", like=first)
    assert composer.load_spec(second).name == "other"


def test_models_may_have_custom_labels() -> None:
    """Models may have labels when they are timed or scored. A spec among them is built as usual."""
    timed = composer.bench({"before": TEACHER, "after": "lawcat"}, prefill=8, repeats=1, steps=1)
    assert [model.label for model in timed.setting.models] == ["before", "after"]
    scored = composer.evaluate({"mine": TEACHER}, "mqar,pairs=2", 16, samples=1)
    assert {cell.model for cell in scored.cells} == {"mine"}
