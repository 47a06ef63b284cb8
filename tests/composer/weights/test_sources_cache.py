"""Quantised weights are unpacked into a cache folder, and again if a file or version that decides them has changed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import composer
from composer.errors import BuildError, SourceError
from composer.system.files import sha256
from composer.weights import packed, sources
from composer.weights.sources import CACHE, FOLDER, MANIFEST, cache_folder, open_model
from tests.gguf_files import gguf_model, write_gguf


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache" / FOLDER


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the dtypes of all unpacked models."""
    seen: list[str] = []
    before = packed.PackedFile.write

    def write(self: packed.PackedFile, folder: Path, dtype: packed.Dtype) -> None:
        seen.append(dtype)
        before(self, folder, dtype)

    monkeypatch.setattr(packed.PackedFile, "write", write)
    return seen


def made(folder: Path, seed: float = 0.0) -> Path:
    model = gguf_model("llama", rms_norm_eps=1e-5 + seed)
    return write_gguf(folder / "model.gguf", model)


def test_a_file_is_unpacked_once_for_each_dtype(tmp_path: Path, cache: Path, writes: list[str]) -> None:
    file = made(tmp_path)
    first = open_model(file)
    assert open_model(file).folder == first.folder
    assert writes == ["bfloat16"]
    other = open_model(file, dtype="float32")
    assert other.folder != first.folder
    assert open_model(file, dtype="bfloat16").folder == first.folder
    assert writes == ["bfloat16", "float32"]
    assert first.folder.parent == cache
    assert first.folder.name.startswith("model-bfloat16-")
    assert (first.trunk.dtype, other.trunk.dtype) == ("bfloat16", "float32")
    file.rename(tmp_path / "moved.gguf")
    assert open_model(tmp_path / "moved.gguf").unpacked is not None
    assert sorted(path.name for path in cache.iterdir() if path.name.startswith(".")) == []


def test_changed_files_are_unpacked_again(tmp_path: Path, writes: list[str]) -> None:
    first = open_model(made(tmp_path))
    second = open_model(made(tmp_path, 1e-3))
    assert first.folder != second.folder
    assert len(writes) == 2


def test_the_manifest_names_the_file_and_what_was_written(tmp_path: Path) -> None:
    file = made(tmp_path)
    source = open_model(file)
    manifest = json.loads((source.folder / MANIFEST).read_text())
    assert manifest["source"] == {
        "path": str(file),
        "quantisation": "GGUF Q8_0, F32",
        "files": {"model.gguf": sha256(file)},
    }
    assert source.unpacked is not None
    assert source.unpacked.weights == {name: sha256(source.folder / name) for name in source.shards}


@pytest.mark.parametrize("damage", ["written", "shorter", "gone", "manifest", "config", "tokenizer", "added"])
def test_changed_cache_entries_are_unpacked_again(tmp_path: Path, writes: list[str], damage: str) -> None:
    file = made(tmp_path)
    source = open_model(file)
    weights = source.folder / "model.safetensors"
    before = weights.read_bytes()
    if damage == "written":
        os.utime(weights, ns=(0, 0))
    elif damage == "shorter":
        os.truncate(weights, 1000)
    elif damage in ("config", "tokenizer"):
        (source.folder / f"{damage}.json").write_text("{}")
    elif damage == "added":
        (source.folder / "adapter_config.json").write_text("{}")
    elif damage == "gone":
        weights.unlink()
    else:
        (source.folder / MANIFEST).write_text("{}")
    assert open_model(file).folder == source.folder
    assert writes == ["bfloat16"] * 2
    assert weights.read_bytes() == before


def test_stopped_runs_leave_no_cache_entry(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    file = made(tmp_path)
    monkeypatch.setattr(sources, "digest_and_counts", stopped)
    with pytest.raises(KeyboardInterrupt):
        open_model(file)
    assert list(cache.iterdir()) == []


def test_memory_is_compared_before_weights_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = made(tmp_path)
    monkeypatch.setattr("composer.system.devices.free_memory", lambda: 1000)
    with pytest.raises(
        BuildError, match=r"Not enough memory for unpacking .*model.gguf: it needs 197,248 bytes, and 1,000 are free"
    ):
        open_model(file)


def test_unwritable_caches_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE, str(tmp_path / "file"))
    with pytest.raises(BuildError, match=f"cannot be written to.*Name another folder: {CACHE}=FOLDER"):
        open_model(made(tmp_path))


def test_read_only_caches_are_read(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = made(tmp_path)
    first = open_model(file)
    monkeypatch.setattr(sources, "exclusive_lock", lambda *_: pytest.fail("wrote into the cache"))
    assert open_model(file).folder == first.folder


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv(CACHE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "attention-composer"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "attention-composer"


def test_the_file_itself_is_only_read(tmp_path: Path) -> None:
    file = made(tmp_path)
    before = file.read_bytes()
    file.chmod(0o444)
    composer.build_folder("softmax", file, tmp_path / "student")
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "model.gguf", "student"]


def test_missing_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match='there is no file ".*model.gguf"'):
        open_model(tmp_path / "model.gguf")
