"""A link to itself or to nothing is reported as such in any place, and the Hub is not queried for it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.composer.cli.conftest import Compose

CIRCLE = "round is a link that leads back to itself"


@pytest.fixture
def here(compose: Compose, teacher: Path, student: Path) -> None:
    os.symlink("round", "round")
    os.symlink("nowhere", "lost")
    Path("teacher").symlink_to(teacher)
    Path("student").symlink_to(student)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("check round", CIRCLE),
        ("check lost", "lost is a link to nowhere, which is not there"),
        ("new mine --like round", CIRCLE),
        ("explain lolcats --from round", CIRCLE),
        ("explain lolcats --from lost", "lost is a link to nowhere, which is not there"),
        ("build lolcats --from teacher -o round", CIRCLE),
        ("build lolcats --from teacher -o round/inside", CIRCLE),
        ("build lolcats --from teacher --lolcats round", CIRCLE),
        ("distill student --data text.txt --set recipe.sequence=16 -o round", CIRCLE),
        ("ablate lolcats --from teacher --tasks mqar --lengths 32 -o round", CIRCLE),
        ("show ablations/lawcat-rope --expand -o round", CIRCLE),
        ("merge round", CIRCLE),
    ],
)
def test_circular_links_are_refused(compose: Compose, arguments: str, message: str) -> None:
    Path("text.txt").write_text("once upon a time " * 200)
    result = compose(*arguments.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert "from the Hub" not in result.stderr


@pytest.mark.parametrize(("name", "command"), [("config.json", "explain lolcats --from copy"), ("composition.json", "verify copy")])
def test_circular_links_inside_a_model_are_refused(compose: Compose, student: Path, name: str, command: str) -> None:
    shutil.copytree(student, "copy")
    Path("copy", name).unlink()
    os.symlink(name, Path("copy", name))
    result = compose(*command.split())
    assert result.exit_code == 2
    assert f"copy/{name} cannot be read: it is a link that leads back to itself" in result.stderr
