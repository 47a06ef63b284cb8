"""The collected wheels are closed under their requirements on the GPU machine, and have a bounded size."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from benchmarks import collect_wheels
from benchmarks.collect_wheels import EXPECTED, NEEDED, TESTS, collect, main, read_pins

REQUIRED = {
    "flash-linear-attention": ["fla_core==0.6.0", "transformers>=5", 'tilelang; extra == "tilelang"'],
    "fla-core": ["einops", 'tomli; python_version < "3.11"'],
    "pydantic": ["pydantic-core", 'colorama; sys_platform == "win32"'],
    "tensorboard": ["grpcio", "protobuf"],
}


@pytest.fixture
def downloaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []

    def write(folder: Path, requirement: str, python: str, machine: str) -> Path:
        name = requirement.partition("==")[0]
        names.append(requirement)
        wheel = folder / f"{name}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            lines = "".join(f"Requires-Dist: {other}\n" for other in REQUIRED.get(name, []))
            archive.writestr(f"{name}.dist-info/METADATA", f"Name: {name}\n{lines}")
            archive.writestr(f"{name}/_vendor/other.dist-info/METADATA", "Name: other\n")
        return wheel

    monkeypatch.setattr(collect_wheels, "download", write)
    monkeypatch.setattr(collect_wheels, "build_own", lambda folder: write(folder, "attention-composer", "", ""))
    return names


def test_requirements_are_followed_once(downloaded: list[str], tmp_path: Path) -> None:
    wheels = collect(tmp_path, "3.12", "x86_64")
    names = [requirement.partition("==")[0] for requirement in downloaded]
    assert len(names) == len(set(names)) == len(wheels)
    assert {*NEEDED, *TESTS, "fla-core", "einops", "pydantic-core", "protobuf", "attention-composer"} == set(names)
    assert not EXPECTED & set(names)
    assert f"pydantic=={read_pins()['pydantic']}" in downloaded


def test_too_many_bytes_are_refused(
    downloaded: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(tmp_path / "wheels")])
    assert "MB  einops.whl" in capsys.readouterr().out
    monkeypatch.setattr(collect_wheels, "MOST_BYTES", 1000)
    with pytest.raises(SystemExit, match="Remove packages"):
        main([str(tmp_path / "again")])
    with pytest.raises(SystemExit):
        main([str(tmp_path / "wheels")])
    assert "is not empty" in capsys.readouterr().err
