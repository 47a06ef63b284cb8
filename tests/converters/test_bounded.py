"""Files are read within bounds: regular ones of a stated size, inside their folder, JSON of a stated depth."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from converters.bounded import DEEPEST, brief, is_name, listed, parse_json, read_bytes, read_json, shortened, within


def refused(path: Path, most: int = 100) -> str:
    with pytest.raises(OSError, match=str(path)[:9]) as caught:
        read_bytes(path, most)
    return caught.value.strerror


def test_devices_and_pipes_are_not_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe") == refused(Path("/dev/zero")) == refused(Path("/dev/null")) == "no regular file"
    assert "a folder" in refused(tmp_path)
    for name in ("a\0b", "x" * 5000):
        assert refused(tmp_path / name)


def test_so_many_bytes_and_no_more(tmp_path: Path):
    (tmp_path / "full").write_bytes(bytes(100))
    assert read_bytes(tmp_path / "full", 100) == bytes(100)
    (tmp_path / "over").write_bytes(bytes(101))
    assert "larger than 100 bytes" in refused(tmp_path / "over")
    with (tmp_path / "sparse").open("wb") as stream:
        stream.truncate(2**40)
    assert "larger than" in refused(tmp_path / "sparse")
    assert refused(Path("/proc/self/environ"), 1)  # of no size, and with contents


@pytest.mark.parametrize(("open_", "close"), ["[]", ('{"a":', "}")])
def test_json_is_so_deep_and_no_deeper(tmp_path: Path, open_: str, close: str):
    def nested(levels: int) -> bytes:
        return f"{open_ * levels}0{close * levels}".encode()

    assert parse_json(nested(DEEPEST))
    for levels in (DEEPEST + 1, 990, 500_000):
        (tmp_path / "deep").write_bytes(nested(levels))
        with pytest.raises(ValueError, match="nested deeper than 100 levels"):
            read_json(tmp_path / "deep", 10**7)


def test_links_stay_in_their_folder_or_lead_into_the_blobs_of_their_own_model(tmp_path: Path):
    outside = tmp_path / "outside"
    snapshot, blobs = tmp_path / "model" / "snapshots" / "0", tmp_path / "model" / "blobs"
    for folder in (snapshot / "inside", blobs):
        folder.mkdir(parents=True)
    for file in (outside, blobs / "b", snapshot / "own"):
        file.write_text("")
    for name, target in {
        "blob": blobs / "b",
        "inside/up": snapshot / "own",
        "out": outside,
        "away": tmp_path,
        "round": "round",
    }.items():
        (snapshot / name).symlink_to(target)
    assert within(snapshot, "blob").read_text() == within(snapshot, "inside/up").read_text() == ""
    assert within(snapshot, "not-there") == snapshot / "not-there"
    for name in ("out", "away/outside", "../../../outside", str(outside), "round", "a\0b"):
        with pytest.raises(OSError, match=r"leads out of its folder|no file can have this name"):
            within(snapshot, name)
    elsewhere = tmp_path / "plain"
    elsewhere.mkdir()
    (elsewhere / "blob").symlink_to(blobs / "b")
    with pytest.raises(OSError, match="leads out of its folder"):
        within(elsewhere, "blob")
    (tmp_path / "linked").symlink_to(snapshot)
    assert within(tmp_path / "linked", "blob")


def test_names():
    assert all(map(is_name, ("a", "a.b", "..a", "é" * 127)))
    assert not any(map(is_name, ("", ".", "..", "a/b", "/", "a\0", "x" * 256, "é" * 128)))


def test_messages_show_the_beginning_of_what_is_long():
    assert brief("x") == "'x'"
    assert len(brief("x" * 10**6)) == len(brief(["x"] * 10**6)) == 81
    assert brief(10**5000) == "a int"
    assert shortened("a\0b\n") == r"a\x00b\n"
    assert listed(["a", "b"]) == "a, b"
    assert listed(map(str, range(1000))).endswith(", 19, and 980 more")
