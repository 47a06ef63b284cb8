"""A typed text is untrusted: it opens only shipped specs, and its size is limited."""

from __future__ import annotations

import builtins
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from composer.drawing.picture import TYPICAL
from composer.errors import SpecError
from composer.spec.shipped import shipped_specs
from composer.viewing.reading import MOST_TEXT, TYPED, EditorContext, resolve_text

SIZES = tuple(getattr(TYPICAL, name) for name in TYPED)
MINE = "compose: 1\nname: mine\nextends: {}\n"


def test_a_shipped_spec_may_be_extended() -> None:
    for name in ("lolcats", "lola", "lolcats.yaml", "published/lolcats-llama"):
        assert resolve_text(MINE.format(name), EditorContext(), SIZES).name == "mine"


ELSEWHERE = ["/etc/passwd", "../pyproject.toml", "secret.yaml", "./lolcats.yaml", "lolcats/../lola", "/proc/self/environ", "~/x"]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_no_other_file_is_opened(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.yaml").write_text("compose: 1\nname: secret\nhead: {memory: [full]}\n")
    monkeypatch.chdir(tmp_path)
    opened: list[str] = []

    def watched(plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *rest: Any, **more: Any) -> Any:
            opened.append(str(path))
            return plain(path, *rest, **more)

        return call

    for module in (os, io, builtins):
        monkeypatch.setattr(module, "open", watched(module.open))
    with pytest.raises(SpecError) as refused:
        resolve_text(MINE.format(name), EditorContext(), SIZES)
    assert "spec.yaml:3" in str(refused.value)
    assert "extends shipped ones alone" in str(refused.value)
    assert not [path for path in opened if Path(path) not in shipped_specs().values() and not path.endswith(".py")]


def test_names_are_searched_beside_the_users_file(tmp_path: Path) -> None:
    (tmp_path / "parent.yaml").write_text("compose: 1\nname: parent\nhead: {memory: [full]}\n")
    resolved = resolve_text(MINE.format("parent.yaml"), EditorContext("mine.yaml", tmp_path), SIZES)
    assert resolved.heads["head"].memory[0].kind == "full"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# " + "x" * MOST_TEXT, "characters; this page reads"),
        ("", "empty"),
        ("compose: 1\nname: a\ntrunk: {width: 64, layers: 513, heads: 1, vocabulary: 9}\nhead: {memory: [full]}\n", "513 layers"),
        (
            "compose: 1\nname: a\nheads:\n"
            + "".join(f"  h{index}: {{memory: [full]}}\n" for index in range(13))
            + "layers:\n"
            + "".join(f"  - {{at: {index}, use: h{index}}}\n" for index in range(13))
            + "  - {at: '13:', use: h0}\n",
            "13 kinds of heads",
        ),
        ("compose: 1\nname: a\nextends: ablations/lawcat-rope\n", "is a sweep of 2 specs"),
        ("compose: 1\nname: a\nextends: [lolcats]\n", "expected a file, or the name of a shipped spec"),
        ("compose: 1\nname: a\nhead: {memory: [full]}\nlayers: [{at: 99, use: head}]\n", "layer 99 is not there"),
    ],
    ids=["long", "empty", "deep", "kinds", "sweep", "extends", "layer"],
)
def test_too_large_or_invalid_specs_are_reported(text: str, expected: str) -> None:
    with pytest.raises(SpecError, match=expected):
        resolve_text(text, EditorContext(), SIZES)
