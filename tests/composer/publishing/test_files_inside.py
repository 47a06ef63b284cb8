"""A push uploads only regular files inside of the folder, all of which have the contents that the record has a hash of."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import composer
from composer.errors import BuildError, ComposerError, PushError
from tests.hub_server import LocalHub

REPO = "owner/mine"
WEIGHTS, INDEX = "source-1-of-1.safetensors", "model.safetensors.index.json"


def edit(path: Path, change: Callable[[Any], object]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def link(path: Path, secret: Path) -> None:
    """Replace a file by a link to the same bytes outside of the folder."""
    if path.is_file():
        shutil.copyfile(path, secret)
        path.unlink()
    path.symlink_to(secret)


def unhash_and_link(folder: Path, secret: Path) -> None:
    link(folder / WEIGHTS, secret)
    edit(folder / "composition.json", lambda record: record["files"][WEIGHTS].update(sha256=None))


def name_in_record(folder: Path, name: str) -> None:
    edit(folder / "composition.json", lambda record: record["documents"].update({name: "0" * 64}))


def unhash_and_change(folder: Path, _: Path) -> None:
    """Change weights that the record has no hash of, in another file than the build linked."""
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).write_bytes(content)
    edit(folder / "composition.json", lambda record: record["files"][WEIGHTS].update(sha256=None))


def change_linked(folder: Path, _: Path) -> None:
    """Change a byte of weights in place, with the size and the time stamp that they had."""
    stat = (folder / WEIGHTS).stat()
    with (folder / WEIGHTS).open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        last = stream.read(1)
        stream.seek(-1, os.SEEK_END)
        stream.write(bytes([last[0] ^ 1]))
    os.utime(folder / WEIGHTS, ns=(stat.st_atime_ns, stat.st_mtime_ns))


OUTSIDE: dict[str, Callable[[Path, Path], object]] = {
    "an absolute name": lambda folder, secret: name_in_record(folder, str(secret)),
    "a name that leads upwards": lambda folder, secret: name_in_record(folder, f"../{secret.name}"),
    "a name with a backslash": lambda folder, secret: name_in_record(folder, f"..\\{secret.name}"),
    "a card": lambda folder, secret: link(folder / "README.md", secret),
    "a config": lambda folder, secret: link(folder / "config.json", secret),
    "an index": lambda folder, secret: link(folder / INDEX, secret),
    "a picture": lambda folder, secret: link(folder / "composition.svg", secret),
    "a tokenizer": lambda folder, secret: link(folder / "tokenizer.json", secret),
    "a record": lambda folder, secret: link(folder / "composition.json", secret),
    "weights": lambda folder, secret: link(folder / WEIGHTS, secret),
    "weights without a hash": unhash_and_link,
    "changed weights without a hash": unhash_and_change,
    "changed weights": change_linked,
}


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("a secret")
    return path


@pytest.mark.parametrize("case", OUTSIDE)
def test_no_other_file_of_a_model_is_uploaded(hub: LocalHub, student: Path, secret: Path, tmp_path: Path, case: str) -> None:
    """``verify`` does not pass such a folder either, except that unhashed weights are weights that it cannot check."""
    folder = shutil.copytree(student, tmp_path / "copy")
    OUTSIDE[case](folder, secret)
    for options in ({"dry_run": True}, {}, {"force": True}):
        with pytest.raises(ComposerError, match="cannot be pushed|does not match|can be called|cannot be read|the build linked"):
            composer.push(folder, REPO, **options)
    assert hub.calls == []
    with suppress(BuildError):
        report = composer.verify(folder)
        assert not report.ok or (case == "changed weights without a hash" and report.unchecked)


@pytest.mark.parametrize("case", ["card", "record", "python", "name"])
def test_no_other_file_of_an_export_is_uploaded(hub: LocalHub, exported: Path, secret: Path, tmp_path: Path, case: str) -> None:
    folder = shutil.copytree(exported, tmp_path / "copy")
    if case == "name":
        edit(folder / "export.json", lambda record: record["files"].update({f"../{secret.name}": "0" * 64}))
    else:
        names = {"card": "README.md", "record": "export.json", "python": next(folder.glob("*.py")).name}
        link(folder / names[case], secret)
    for options in ({"dry_run": True}, {}):
        with pytest.raises(ComposerError, match="cannot be pushed|can be called|cannot be read"):
            composer.push(folder, REPO, **options)
    assert hub.calls == []
    with suppress(ComposerError):
        assert not composer.verify(folder).ok


def test_large_linked_weights_are_hashed_by_the_push(
    hub: LocalHub, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pushed record has the hash. Weights that were written to since the build are refused."""
    monkeypatch.setattr("composer.building.folder.HASHED_ANYWAY", 0)
    source = shutil.copytree(teacher, tmp_path / "source")
    folder = composer.build_folder("lolcats", source, tmp_path / "linked").out
    assert json.loads((folder / "composition.json").read_text())["files"][WEIGHTS]["sha256"] is None
    composer.push(folder, REPO)
    files = hub.repositories[REPO].files()
    assert json.loads(files["composition.json"])["files"][WEIGHTS]["sha256"] in hub.uploads
    pulled = composer.verify(f"hub:{REPO}")
    assert (pulled.ok, [check.subject for check in pulled.unchecked]) == (True, ["README.md"]), "a card of the Hub is another one"
    change_linked(folder, source)
    os.utime(folder / WEIGHTS)
    with pytest.raises(PushError, match=r"does not match its record \(source-1-of-1\.safetensors\)"):
        composer.push(folder, REPO)
