"""Every command that accepts a model accepts ``OWNER/NAME@REVISION`` for a revision on the Hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import composer
from composer.weights import sources
from tests.composer.programs import ROOT

SAID = "owner/model@v2"
CALLS: dict[str, Callable[[Path], Any]] = {
    "bench": lambda _: composer.bench([SAID, "lolcats"], prefill=8, repeats=1, steps=1),
    "build": lambda _: composer.build("lolcats", SAID),
    "build_folder": lambda to: composer.build_folder("lolcats", SAID, to / "built"),
    "check": lambda _: composer.check("lolcats", SAID),
    "code": lambda _: composer.code("lolcats", SAID),
    "diff": lambda _: composer.diff("lolcats", "lola", SAID),
    "draw": lambda _: composer.draw("lolcats", SAID),
    "evaluate": lambda _: composer.evaluate(SAID, "passkey", 128, samples=1),
    "explain": lambda _: composer.explain("lolcats", SAID),
    "generate": lambda _: composer.generate(SAID, "Once upon", max_new_tokens=2),
    "inspect": lambda _: composer.inspect(SAID, text="Once upon a time", length=8, layers=0, queries=2),
    "sample": lambda to: composer.sample(SAID, to / "texts.jsonl", texts=1, length=4),
    "show": lambda _: composer.show("lolcats", SAID),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_requested_revision_is_fetched(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    revisions = set()

    def fetch(*place: object, **_: object) -> tuple[Path, str]:
        revisions.add(place)
        return ROOT / "examples" / "teacher", "c" * 40

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "fetch", fetch)
    answer = CALLS[name](tmp_path)
    assert revisions == {("owner/model", "v2")}
    if name == "build_folder":
        assert (answer.out / "composition.json").read_text().count('"revision": "v2"') == 1
    if name == "inspect":
        assert {head.layer for head in answer.heads} == {0}
