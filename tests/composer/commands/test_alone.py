"""Where several may stand, one may stand alone, and a spec is named in each way everywhere: over all signatures, and by calls."""

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
from composer.numbers import Numbers
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
def test_signatures_let_one_stand_alone(name: str) -> None:
    for parameter in inspect.signature(inspect.unwrap(FUNCTIONS[name])).parameters.values():
        kinds = [one.strip() for one in re.split(r"\|(?![^\[]*\])", parameter.annotation)]
        several = [found for one in kinds if (found := re.fullmatch(r"Sequence\[(.*)\]", one))]
        for found in several:
            assert set(found[1].split(" | ")) <= set(kinds), f"{name}({parameter.name}: {parameter.annotation})"
        if parameter.name in ("overrides", "lengths", "length", "layers", "seeds", "prefill", "decode", "batch"):
            assert several or set(kinds) & OPEN.keys() or parameter.annotation in ("int", "TokenCount"), f"{name}({parameter.name})"


CALLS: dict[str, Callable[[Any], Any]] = {
    "ablate": lambda said: composer.ablate("lawcat", TEACHER, out="out", tasks="mqar", lengths=64, overrides=said),
    "build": lambda said: composer.build("lawcat", TEACHER, overrides=said),
    "build_folder": lambda said: composer.build_folder("lawcat", TEACHER, "out", overrides=said),
    "check": lambda said: composer.check("lawcat", overrides=said),
    "code": lambda said: composer.code("lawcat", TEACHER, overrides=said),
    "diff": lambda said: composer.diff("lawcat", "lawcat", overrides=said),
    "distill": lambda said: composer.distill("built", "texts.jsonl", overrides=said),
    "draw": lambda said: composer.draw("lawcat", overrides=said),
    "expand": lambda said: composer.expand("ablations/lawcat-rope", overrides=said),
    "explain": lambda said: composer.explain("lawcat", TEACHER, overrides=said),
    "load_spec": lambda said: composer.load_spec("lawcat", said),
    "lock": lambda said: composer.lock("lawcat", TEACHER, "out.lock.yaml", overrides=said),
    "select": lambda said: composer.select("lawcat", TEACHER, "texts.jsonl", "out", keep=1, overrides=said),
    "show": lambda said: composer.show("lawcat", overrides=said),
    "train": lambda said: composer.train("built", "texts.jsonl", overrides=said),
}


def test_these_are_all_that_take_overrides() -> None:
    assert sorted(CALLS) == [name for name in FUNCTIONS if "overrides" in inspect.signature(FUNCTIONS[name]).parameters]


def told(call: Callable[[Any], Any], said: Any) -> str:
    try:
        found = call(said)
    except composer.ComposerError as error:
        return str(error)
    return "\n".join(found.mistakes)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("students") / "built"
    composer.build_folder("lawcat", TEACHER, folder)
    return folder


@pytest.mark.parametrize("name", CALLS)
def test_an_override_may_stand_alone(name: str, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(built.parent)
    alone = told(CALLS[name], BAD)
    # Where a document is wrong, the place of an override is its text on the command line.
    assert (f"--set {BAD}" if name in ("check", "expand", "load_spec") else f'`overrides=["{BAD}"]`') in alone
    assert alone == told(CALLS[name], [BAD])


def test_layers_and_checkpoints(tmp_path: Path) -> None:
    for said, layers in ((0, [0]), ("0,-1", [0, 1]), ([-1], [1])):
        found = composer.inspect(TEACHER, layers=said, length=16, text="Once upon a time there was a cat.", queries=2)
        assert sorted({head.layer for head in found.heads}) == layers
    with pytest.raises(composer.ComposerError, match='layers: expected a whole number, such as 0,1,2, got "all"'):
        composer.inspect(TEACHER, layers="all")
    with pytest.raises(composer.ComposerError, match=r"model\.pt cannot be read"):
        composer.build_folder("lolcats", TEACHER, tmp_path / "out", lolcats=str(tmp_path / "model.pt"))


def test_a_task_may_stand_alone() -> None:
    report = composer.evaluate(TEACHER, Passkey(samples=1), 128)
    assert {cell.task for cell in report.cells} == {"passkey"}
    looked = [composer.inspect(TEACHER, tasks=said, length=[96], queries=2, layers=0) for said in ("passkey", [Passkey(samples=1)])]
    assert looked[0].tokens == looked[1].tokens
    assert looked[0].text == "passkey"


def test_a_spec_is_named_in_each_way_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file as text or as a path, what stands in it, and what is loaded; one, and several."""
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


def test_a_sweep_that_is_loaded_is_one(tmp_path: Path) -> None:
    document = DOCUMENT | {"vary": {"grid": {"head.position": ["rope", "none"]}}}
    sweep = composer.load_spec(document)
    assert composer.expand(sweep) == composer.expand(document)
    assert [one.name for one in read_variants([sweep])] == [one.name for one in read_variants([document])]
    assert len(read_variants([sweep])) == 2


def test_a_new_spec_by_its_path(tmp_path: Path) -> None:
    first = composer.new(tmp_path / "mine", like="lawcat")
    assert first == tmp_path / "mine.yaml"
    second = composer.new(tmp_path / "other.yaml", like=first)
    assert composer.load_spec(second).name == "other"


def test_labels_of_ones_own() -> None:
    """Of models that are timed or scored; a spec among them is built as ever."""
    timed = composer.bench({"before": TEACHER, "after": "lawcat"}, prefill=8, repeats=1, steps=1)
    assert [model.label for model in timed.setting.models] == ["before", "after"]
    scored = composer.evaluate({"mine": TEACHER}, "mqar,pairs=2", 16, samples=1)
    assert {cell.model for cell in scored.cells} == {"mine"}
