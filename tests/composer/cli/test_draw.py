"""`compose draw` and `compose diff --draw` write pictures of specs and of built models, and report mistakes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

import composer
from composer.errors import BuildError
from composer.spec.loading import load_spec
from tests.composer.cli.conftest import Compose
from tests.composer.drawing.looked_at import SVG, assert_legible
from tests.shipped import SHIPPED


def words(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_spec_is_drawn_to_stdout_or_to_a_file(compose: Compose, teacher: Path) -> None:
    result = compose("draw", "lolcats", "--from", teacher)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == composer.draw("lolcats", teacher).svg
    assert any(word.startswith(f"on {teacher}"[:12]) for word in words(result.stdout))
    written = compose("draw", "lolcats", "--from", teacher, "-o", "pictures/lolcats.svg")
    assert written.exit_code == 0, written.stderr
    assert Path("pictures/lolcats.svg").read_text(encoding="utf-8") == result.stdout
    assert "pixels" in written.stdout


def test_settings_change_the_picture(compose: Compose, teacher: Path) -> None:
    small, large = (words(compose("draw", "lolcats", "--set", f"head.memory.0.size={size}").stdout) for size in (16, 128))
    assert any("size 16" in word for word in small)
    assert {word for word in small if word.startswith("State")} != {word for word in large if word.startswith("State")}


def test_without_a_source_the_assumed_sizes_are_printed(compose: Compose) -> None:
    shown = words(compose("draw", "lawcat").stdout)
    assert "on the sizes of Llama-3.2-1B · 16 layers" in shown[1]
    own = next(name for name in SHIPPED if load_spec(name).trunk is not None)
    assert not [word for word in words(compose("draw", own).stdout) if "Llama" in word]


def test_built_models_are_drawn(compose: Compose, student: Path) -> None:
    result = compose("draw", student)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == composer.draw(student).svg == (student / "composition.svg").read_text(encoding="utf-8")
    model = composer.load(student)
    assert composer.draw(model).svg == result.stdout
    card = (student / "README.md").read_text(encoding="utf-8")
    assert "](composition.svg)" in card
    assert compose("verify", student).exit_code == 0
    with pytest.raises(BuildError, match="drawn as it is"):
        composer.draw(model, overrides=["head.memory.0.size=3"])


def test_invalid_arguments_are_refused(compose: Compose, teacher: Path) -> None:
    for arguments, expected in (
        (["draw", teacher], "no model that was built here: name a spec"),
        (["draw", "lolcats", "-o", "lolcats.png"], "pictures are SVG"),
        (["draw", "nothing"], "no shipped spec of that name"),
        (["draw", "ablations/lawcat-rope"], "is a sweep of 2 specs"),
        (["draw", "lolcats", "--set", "head.memory.0.size=none"], "head.memory.0.size"),
        (["diff", "lolcats", "lola", "--draw", "both.pdf"], "pictures are SVG"),
        (["diff", "lolcats", "lola", "--force"], "none is named"),
        (["draw", "lola", "--force"], "none is named"),
    ):
        result = compose(*arguments)
        assert result.exit_code == 2, arguments
        assert expected in result.stderr
        assert "Traceback" not in result.stderr
    assert not list(Path().iterdir())


def test_rules_for_missing_layers_are_reported(compose: Compose) -> None:
    Path("deep.yaml").write_text("compose: 1\nname: deep\nhead: {memory: [full]}\nlayers: [{at: 20, use: head}]\n")
    result = compose("draw", "deep.yaml")
    assert result.exit_code == 2
    assert "deep.yaml:4" in result.stderr
    assert "--from SOURCE names another" in result.stderr


def test_existing_files_are_kept(compose: Compose) -> None:
    for arguments in (["draw", "window", "-o", "a.svg"], ["diff", "window", "softmax", "--draw", "a.svg"]):
        Path("a.svg").write_text("mine")
        result = compose(*arguments)
        assert result.exit_code == 2
        assert "--force replaces it" in result.stderr
        assert Path("a.svg").read_text() == "mine"
        assert compose(*arguments, "--force").exit_code == 0
        assert Path("a.svg").read_text() != "mine"


def test_diff_draws_two_specs_side_by_side(compose: Compose) -> None:
    result = compose("diff", "lolcats", "lola", "--draw", "both.svg")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.endswith("\nPicture: both.svg\n"), "the written file is named"
    assert "lolcats → lola" in result.stdout
    text = Path("both.svg").read_text(encoding="utf-8")
    assert {"lolcats", "lola"} <= set(words(text))
    assert 'class="cd-marked"' in text


def test_pictures_of_the_command_are_legible(teacher: Path) -> None:
    assert_legible(composer.draw("lola", teacher))


def test_pictures_on_a_terminal_are_written_to_a_file(compose: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads SVG on a terminal."""
    monkeypatch.setattr("composer.commands.draw.sys", SimpleNamespace(stdout=SimpleNamespace(isatty=lambda: True)))
    assert compose("draw", "ablations/lola-scores:recent").stdout.startswith("lola-scores-recent.svg  ")
    assert Path("lola-scores-recent.svg").read_text(encoding="utf-8").startswith("<svg")
