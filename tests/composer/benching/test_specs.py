"""A spec in place of a model is built for the bench from the model beside it. Without one, the error tells how to name it."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

import pytest

import composer
from composer.benching import memory
from composer.spec.loading import names_a_spec
from tests.checkpoints import llama
from tests.composer.cli.conftest import Compose, compose
from tests.composer.training.processes import ending, forked

__all__ = ["compose"]
FRESH = "compose: 1\nname: small\nextends: lawcat\ntrunk: {width: 16, layers: 1, heads: 2, vocabulary: 64}\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return llama(tmp_path / "source")


class Copy:
    """A replacement for ``subprocess.Popen`` that measures memory in a fork of this process, where all imports are done."""

    def __init__(self, command: list[str], *, stderr: IO[str], **_: Any) -> None:
        assert command[:3] == [sys.executable, "-m", memory.__name__]
        read, write = os.pipe()

        def child() -> None:
            os.dup2(write, 1)
            os.dup2(stderr.fileno(), 2)
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
            memory.main(json.loads(command[3]))

        self._process = forked(child)
        os.close(write)
        self.stdout = open(read)  # noqa: SIM115

    def wait(self) -> None:
        self.returncode = ending(self._process)

    def __enter__(self) -> Copy:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()


def test_specs_beside_a_model_are_built_and_timed(
    compose: Compose, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory.subprocess, "Popen", Copy)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    report = composer.bench([source, "lawcat", "ablations/lawcat-rope:rope"], prefill=8, repeats=1, steps=1, memory=True)
    assert [spec_name.label for spec_name in report.setting.models] == ["source", "lawcat", "lawcat-rope-rope"]
    assert [spec_name.reference for spec_name in report.setting.models][1:] == [
        f"the spec lawcat on {source}",
        f"the spec ablations/lawcat-rope:rope on {source}",
    ]
    assert report.setting.models[1].spec_hash == composer.show("lawcat", source).hash
    assert all(cell.seconds and cell.peak_bytes is not None for cell in report.cells)
    assert sum("built for this bench" in remark for remark in report.remarks) == 2
    assert not list((tmp_path / "temporary").iterdir())
    result = compose("bench", "lawcat", source, "--prefill", 8, "--repeats", 1, "--steps", 1)
    assert result.exit_code == 0, result.output
    assert "lawcat: the spec lawcat on" in result.stdout


def test_specs_with_a_trunk_need_no_model(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(FRESH)
    report = composer.bench(str(tmp_path / "small.yaml"), prefill=8, repeats=1, steps=1)
    assert [cell.model for cell in report.cells] == ["small"]
    assert report.setting.models[0].reference == f"the spec {tmp_path / 'small.yaml'}"


def test_a_spec_without_a_model_is_refused_with_advice(compose: Compose) -> None:
    result = compose("bench", "lawcat", "--prefill", 8)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("lawcat is a spec, and models are timed. ")
    assert "compose bench SOURCE lawcat" in line
    assert line.endswith("`compose build lawcat --from SOURCE`")
    result = compose("eval", "lawcat", "--tasks", "passkey", "--lengths", 128)
    assert result.exit_code == 2
    assert result.stderr == "lawcat is a spec, and this is for models. Build it first: `compose build lawcat --from SOURCE`\n"


def test_arguments_are_recognised_as_specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(FRESH)
    Path("lolcats").mkdir()
    names = ("lawcat", "lawcat.yaml", "ablations/lawcat-rope", "ablations/lawcat-rope:rope", "mine.yaml", "mine.yaml:a")
    assert all(map(names_a_spec, names))
    assert not any(map(names_a_spec, ("lolcats", "nothing", "nothing.yaml", "owner/name", "owner/name@main")))
