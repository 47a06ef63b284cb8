"""`compose verify` exits with 0 if a model matches its record, with 1 if it does not, and with 2 without a record."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from composer.weights.plan import FRESH_FILE
from composer.weights.verify import verify
from tests.composer.cli.conftest import Compose


def damaged(student: Path) -> Path:
    """A copy of the student with one bit of a fresh parameter changed."""
    copy = Path("damaged")
    shutil.copytree(student, copy)
    content = bytearray((copy / FRESH_FILE).read_bytes())
    content[-1] ^= 1
    (copy / FRESH_FILE).write_bytes(content)
    return copy


def test_an_unchanged_model_passes(compose: Compose, student: Path) -> None:
    result = compose("verify", student)
    assert result.exit_code == 0
    assert "matches its record" in result.stdout
    assert "failed" not in result.stdout
    lines = result.stdout.splitlines()
    assert sum(line.startswith("passed") for line in lines) == sum(check.outcome == "passed" for check in verify(student).checks)


def test_json_is_the_report(compose: Compose, student: Path) -> None:
    result = compose("verify", student, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {**verify(student).model_dump(mode="json"), "ok": True}


def test_a_changed_bit_fails(compose: Compose, student: Path) -> None:
    folder = damaged(student)
    result = compose("verify", folder)
    assert result.exit_code == 1
    assert "damaged does not match its record: 1 check failed" in result.stdout
    assert any(line.startswith("failed") and FRESH_FILE in line for line in result.stdout.splitlines())
    answer = compose("verify", folder, "--json")
    assert answer.exit_code == 1
    assert json.loads(answer.stdout)["ok"] is False


def test_models_without_a_record_are_refused(compose: Compose, teacher: Path) -> None:
    result = compose("verify", teacher)
    assert result.exit_code == 2
    assert "was not written by `compose build`" in result.stderr
