"""A build from a lock gives the same bytes anywhere, or names the difference and writes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants

import composer
from composer.building.lock import read_lock
from composer.errors import BuildError, ComposerError, SpecError
from composer.system.files import unique_partial_of
from composer.system.locks import beside, exclusive_lock
from composer.weights.record import read_record
from converters.source import SINGLE
from tests.composer.model.trunks import document
from tests.gguf_files import gguf_model, write_gguf
from tests.hub_server import local_hub

NAMED = {"composition.json", "README.md"}
"""Files with names of folders in them."""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in NAMED}


@pytest.fixture
def locked(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return composer.lock("lolcats", source, "mine.lock.yaml", seed=3, dtype="bfloat16", overrides=["head.memory.0.size=8"]).out


def test_locks_build_the_same_bytes_at_another_path(locked: Path, source: Path, tmp_path: Path) -> None:
    direct = composer.build_folder(
        "lolcats", source, tmp_path / "direct", seed=3, dtype="bfloat16", overrides=["head.memory.0.size=8"]
    )
    other_folder = tmp_path / "there"
    other_folder.mkdir()
    moved = Path(shutil.move(source, other_folder / "moved"))
    shutil.move(locked, other_folder / "renamed.yaml")
    again = composer.build_folder(str(other_folder / "renamed.yaml"), moved, other_folder / "again")
    assert contents(again.out) == contents(direct.out)
    assert again.spec_hash == direct.spec_hash
    assert sorted(path.name for path in tmp_path.iterdir()) == ["direct", "there"], "the build for the hashes is gone"
    assert composer.verify(again.out).ok


def test_the_locked_source_is_found_again(locked: Path, tmp_path: Path) -> None:
    assert composer.build_folder(locked, out=tmp_path / "built").out == tmp_path / "built"


def test_locks_are_accepted_as_specs(locked: Path, source: Path) -> None:
    record = read_lock(locked)
    assert record is not None
    assert composer.show(locked, source).hash == record.spec_hash
    assert composer.check(locked, source).ok


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), r"tokenizer\.json has the SHA-256 \w+, and \w+ is locked"),
        (lambda folder: (folder / "generation_config.json").unlink(), r"generation_config\.json missing"),
        (lambda folder: (folder / "NOTICE").write_text("terms"), r"NOTICE added"),
    ],
)
def test_another_source_is_named(locked: Path, source: Path, damage: Callable[[Path], object], message: str) -> None:
    assert (source / "tokenizer.json").is_file()
    assert (source / "generation_config.json").is_file()
    damage(source)
    with pytest.raises(BuildError, match=rf"differs from the locked one: {message}\..*A copy of it is named with `source`"):
        composer.build_folder(locked, out="built")
    assert not Path("built").exists()


def test_other_bytes_and_other_versions_are_named(locked: Path) -> None:
    changed = yaml.safe_load(locked.read_text())
    changed["files"]["fresh.safetensors"] = "0" * 64
    locked.write_text(yaml.safe_dump(changed))
    with pytest.raises(BuildError, match=r"fresh\.safetensors has the SHA-256 .* All versions are the locked ones\."):
        composer.build_folder(locked, out="built")
    changed["versions"]["torch"] = "1.0"
    locked.write_text(yaml.safe_dump(changed))
    with pytest.raises(BuildError, match=r"fresh\.safetensors.*Versions that differ: torch .* here, 1\.0 locked"):
        composer.build_folder(locked, out="built")
    assert not Path("built").exists()


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"seed": 4}, "seed"),
        ({"dtype": "float32"}, "dtype"),
        ({"overrides": ["name=x"]}, "overrides"),
        ({"fresh": True}, "fresh"),
        ({"revision": "main"}, "revision"),
    ],
)
def test_options_that_a_lock_decides_are_refused(locked: Path, options: dict, flag: str) -> None:
    with pytest.raises(BuildError, match=f"is a lock, which decides `{flag}"):
        composer.build_folder(locked, out="built", **options)


def test_a_lock_without_a_source_builds_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = document("lolcats")
    lock = composer.lock(spec, out="own.lock.yaml", fresh=True, seed=5)
    assert lock.source is None
    direct = composer.build_folder(spec, out="direct", fresh=True, seed=5)
    assert contents(composer.build_folder("own.lock.yaml", out="again").out) == contents(direct.out)
    with pytest.raises(BuildError, match="locked without a source"):
        composer.build_folder("own.lock.yaml", "direct", "built")


def test_a_source_of_the_hub_is_locked_at_its_commit(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with local_hub(str(tmp_path / "cache")) as hub:
        files = {path.name: path.read_bytes() for path in source.iterdir()}
        repository = hub.create("owner/teacher", files)
        lock = composer.lock("lolcats", "owner/teacher", "mine.lock.yaml")
        assert lock.source == f"hub:owner/teacher@{repository.branches['main']}"
        repository.commit("main", files | {"config.json": b"{}"})
        built = composer.build_folder("mine.lock.yaml", out="built")
        record = read_record(built.out)
        assert record is not None
        assert record.source is not None
        assert f"hub:owner/teacher@{record.source.commit}" == lock.source


@pytest.mark.parametrize("where", ["cache", "mirror"])
def test_bytes_are_hashed_instead_of_trusting_names(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The Hub's cache names files by the hashes that a server has sent, and those of a mirror may be others."""
    monkeypatch.chdir(tmp_path)
    with local_hub(str(tmp_path / "cache")) as hub:
        hub.create("owner/teacher", {path.name: path.read_bytes() for path in source.iterdir()})
        composer.lock("lolcats", "owner/teacher", "mine.lock.yaml")
        weights = (source / SINGLE).read_bytes()
        changed = weights[:-8] + bytes(8)
        if where == "cache":
            (blob,) = [path for path in Path("cache").rglob("blobs/*") if path.read_bytes() == weights]
            blob.write_bytes(changed)
        else:
            monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "another"))
            header = {"X-Repo-Commit": hub.repositories["owner/teacher"].branches["main"]}
            header["ETag"] = f'"{hashlib.sha256(weights).hexdigest()}"'
            hub.intercept = lambda request, path: path.endswith(SINGLE) and request.send_bytes(changed, 200, header) is None
        with pytest.raises(BuildError, match=r"model\.safetensors has the SHA-256 \w+, and \w+ is locked"):
            composer.build_folder("mine.lock.yaml", out="built")
    assert not Path("built").exists()


@pytest.mark.parametrize("where", ["cache", "mirror"])
def test_bytes_that_the_hub_has_not_stated_are_not_locked(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.chdir(tmp_path)
    weights = (source / SINGLE).read_bytes()
    changed = weights[:-8] + bytes(8)
    with local_hub(str(tmp_path / "cache")) as hub:
        repository = hub.create("owner/teacher", {path.name: path.read_bytes() for path in source.iterdir()})
        if where == "mirror":
            header = {"X-Repo-Commit": repository.branches["main"], "ETag": f'"{hashlib.sha256(weights).hexdigest()}"'}
            hub.intercept = lambda request, path: path.endswith(SINGLE) and request.send_bytes(changed, 200, header) is None
        else:
            composer.lock("lolcats", "owner/teacher", "before.lock.yaml")
            (blob,) = [path for path in Path("cache").rglob("blobs/*") if path.read_bytes() == weights]
            blob.write_bytes(changed)
        with pytest.raises(BuildError, match=r"^model\.safetensors of owner/teacher has the SHA-256 \w+, and the Hub stated \w+: "):
            composer.lock("lolcats", "owner/teacher", "mine.lock.yaml")
    assert not Path("mine.lock.yaml").exists()


def test_hashes_of_a_record_are_not_trusted(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source of a lock may be a student, whose record has hashes of linked weights."""
    monkeypatch.chdir(tmp_path)
    student = composer.build_folder("softmax", source, "student", copy=True).out
    composer.lock("lolcats", student, "mine.lock.yaml")
    weights = student / "source-1-of-1.safetensors"
    stat = weights.stat()
    weights.write_bytes(weights.read_bytes()[:-8] + bytes(8))
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(BuildError, match=r"source-1-of-1\.safetensors has the SHA-256 \w+, and \w+ is locked"):
        composer.build_folder("mine.lock.yaml", out="built")


def edit_lock(path: Path, change: Callable[[dict], object]) -> None:
    document = yaml.safe_load(path.read_text())
    change(document)
    path.write_text(yaml.safe_dump(document))


def test_the_hash_of_the_spec_is_compared(locked: Path) -> None:
    edit_lock(locked, lambda lock: lock["spec"]["head"]["memory"][0].update(size=4))
    with pytest.raises(BuildError, match=r"of mine\.lock\.yaml is \w+, and the lock has \w+: .*Lock the spec again"):
        composer.build_folder(locked, out="built")
    assert not Path("built").exists()


def test_locks_and_records_do_not_read_other_specs(locked: Path, source: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").write_text("compose: 1\nname: secret\nhead: {memory: [full]}\n")
    built = composer.build_folder(locked, source, "built").out
    edit_lock(locked, lambda lock: lock.update(spec={"compose": 1, "name": "mine", "extends": str(tmp_path / "secret.yaml")}))
    record = json.loads((built / "composition.json").read_text())
    record["spec"] = {"compose": 1, "name": "mine", "extends": str(tmp_path / "secret.yaml")}
    (built / "composition.json").write_text(json.dumps(record))
    whole = "a stored spec is whole, and extends no other file"
    with pytest.raises(SpecError, match=f"a damaged lock, at spec: {whole}"):
        composer.build_folder(locked, source, "again")
    for stored in (locked, built):
        for read in (composer.show, composer.load_spec):
            with pytest.raises(SpecError, match=f"extends: {whole}"):
                read(stored)
    assert not composer.verify(built).ok


@pytest.mark.parametrize("name", ["../secret", "/secret", "a/../../secret"])
@pytest.mark.parametrize("files", ["source", "build"])
def test_names_in_a_lock_are_inside_the_folder(locked: Path, name: str, files: str) -> None:
    edit_lock(locked, lambda lock: (lock["source"] if files == "source" else lock)["files"].update({name: "0" * 64}))
    with pytest.raises(SpecError, match=r"is a damaged lock, at .*no file of a folder can be called"):
        composer.build_folder(locked, out="built")


def test_files_of_killed_runs_are_removed(locked: Path, source: Path, tmp_path: Path) -> None:
    left = unique_partial_of(locked)
    (left / "model").mkdir(parents=True)
    (left / "model" / "weights").write_text("half")
    composer.lock("lolcats", source, locked, force=True)
    assert {path.name for path in tmp_path.iterdir()} == {"source", locked.name}


def test_a_second_run_is_refused(locked: Path, source: Path) -> None:
    with exclusive_lock(beside(locked), None), pytest.raises(BuildError, match="Another lock of .* is being written"):
        composer.lock("lolcats", source, locked, force=True)


def test_a_damaged_lock_is_named(locked: Path) -> None:
    locked.write_text(locked.read_text().replace("seed: 3", "seed: three"))
    with pytest.raises(SpecError, match=r"mine\.lock\.yaml is a damaged lock, at seed: .*compose lock"):
        composer.build_folder(locked, out="built")


def test_a_digest_of_another_form_is_named_in_short(locked: Path) -> None:
    locked.write_text(re.sub(r"config.json: [0-9a-f]{64}", "config.json: 12" + "f" * 200_000, locked.read_text(), count=1))
    with pytest.raises(SpecError, match=r"a damaged lock, at source\.files\.config\.json: string should match") as caught:
        composer.build_folder(locked, out="built")
    assert len(str(caught.value)) < 500


def test_existing_locks_are_replaced_only_with_force(locked: Path, source: Path) -> None:
    before = locked.read_bytes()
    with pytest.raises(BuildError, match="exists already"):
        composer.lock("lola", source, locked)
    assert locked.read_bytes() == before
    composer.lock("lola", source, locked, force=True)
    assert locked.read_bytes() != before


def test_missing_sources_are_named(locked: Path, source: Path) -> None:
    source.rename(source.with_name("elsewhere"))
    with pytest.raises(ComposerError, match="A copy of the locked source, .*, is named with"):
        composer.build_folder(locked, out="built")


@pytest.mark.parametrize("packed", [False, True])
def test_two_locks_of_one_build_are_the_same_bytes(packed: bool, source: Path, tmp_path: Path) -> None:
    """This includes quantised sources, which each build unpacks."""
    path = write_gguf(tmp_path / "tiny.Q8_0.gguf", gguf_model("llama")) if packed else source
    first, second = (composer.lock("lolcats", path, tmp_path / f"{number}.lock.yaml").out for number in range(2))
    assert first.read_bytes() == second.read_bytes()
    built = composer.build_folder(first, path, tmp_path / "built").out
    assert composer.verify(built).ok


def test_locks_of_two_environments_differ_only_in_versions(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = composer.lock("lolcats", source, tmp_path / "here.lock.yaml").out
    monkeypatch.setattr("composer.commands.lock.versions", lambda: {"transformers": "5.17.0"})
    elsewhere = composer.lock("lolcats", source, tmp_path / "elsewhere.lock.yaml").out
    first, other = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in (here, elsewhere))
    assert [key for key in first if first[key] != other[key]] == ["versions"]
    composer.build_folder(elsewhere, source, tmp_path / "built")
