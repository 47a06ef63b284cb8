"""Only regular files of bounded size inside their folder are read, and JSON of bounded depth, also of a source."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from converters import bounded
from converters.bounded import (
    DEEPEST,
    appending,
    brief,
    check_file,
    files_matching,
    is_name,
    list_first,
    parse_json,
    problem_with,
    read_bytes,
    read_json,
    read_json_bytes,
    shorten,
    within,
)
from converters.errors import ConfigError, ConverterError, WeightsError
from converters.source import INDEX, SINGLE, open_source
from tests.converters.conftest import refusal


def refused(path: Path, most: int = 100) -> str:
    with pytest.raises(OSError, match=str(path)[:9]) as caught:
        read_bytes(path, most)
    return caught.value.strerror


def test_devices_and_pipes_are_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe") == refused(Path("/dev/zero")) == refused(Path("/dev/null")) == "no regular file"
    assert "a folder" in refused(tmp_path)
    for name in ("a\0b", "x" * 5000):
        assert refused(tmp_path / name)


def test_files_above_the_byte_limit_are_refused(tmp_path: Path):
    (tmp_path / "full").write_bytes(bytes(100))
    assert read_bytes(tmp_path / "full", 100) == bytes(100)
    (tmp_path / "over").write_bytes(bytes(101))
    assert "larger than 100 bytes" in refused(tmp_path / "over")
    with (tmp_path / "sparse").open("wb") as stream:
        stream.truncate(2**40)
    assert "larger than" in refused(tmp_path / "sparse")
    assert refused(Path("/proc/self/environ"), 1)  # of no size, and with contents


@pytest.mark.parametrize(("open_", "close"), ["[]", ('{"a":', "}")])
def test_json_above_the_depth_limit_is_refused(tmp_path: Path, open_: str, close: str):
    def nested(levels: int) -> bytes:
        return f"{open_ * levels}0{close * levels}".encode()

    assert parse_json(nested(DEEPEST))
    for levels in (DEEPEST + 1, 990, 500_000):
        (tmp_path / "deep").write_bytes(nested(levels))
        with pytest.raises(ValueError, match="nested deeper than 100 levels"):
            read_json(tmp_path / "deep", 10**7)


@pytest.mark.parametrize("item", [b"{}", b"[]", b"[[[]]]", b'{"":{"":0}}', b'"ab"', b"999"])
def test_json_that_needs_far_more_memory_than_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, item: bytes):
    """Python's lists and mappings need up to 45 times their text. A validator's list of mistakes needs more."""
    monkeypatch.setattr(bounded, "MOST_MEMORY", 2**16)
    tensor = b'"model.layers.0.mlp.up_proj.weight":{"dtype":"BF16","shape":[1536,576],"data_offsets":[1000000,2769472]}'
    (tmp_path / "header").write_bytes(b"{" + b",".join([tensor] * 2**10) + b"}")
    assert read_json(tmp_path / "header", 10**7)
    (tmp_path / "many").write_bytes(b"[" + b",".join([item] * 2**14) + b"]")
    with pytest.raises(OSError, match="may need more than"):
        read_json_bytes(tmp_path / "many", 10**7)
    if item[:1] in b"[{":
        with pytest.raises(ValueError, match="lists, mappings and values may need more than"):
            read_json(tmp_path / "many", 10**7)


def test_links_may_lead_only_into_their_folder_or_their_models_blobs(tmp_path: Path):
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
        "lost": "nowhere",
    }.items():
        (snapshot / name).symlink_to(target)
    assert within(snapshot, "blob").read_text() == within(snapshot, "inside/up").read_text() == ""
    assert within(snapshot, "not-there") == snapshot / "not-there"
    for name in ("out", "away/outside", "../../../outside", str(outside), "round", "lost", "a\0b"):
        with pytest.raises(OSError, match=r"leads out of its folder|no file can have|leads back to itself|is not there"):
            within(snapshot, name)
    elsewhere = tmp_path / "plain"
    elsewhere.mkdir()
    (elsewhere / "blob").symlink_to(blobs / "b")
    with pytest.raises(OSError, match="leads out of its folder"):
        within(elsewhere, "blob")
    (tmp_path / "linked").symlink_to(snapshot)
    assert within(tmp_path / "linked", "blob")


def test_names_are_single_path_components_of_at_most_255_bytes():
    assert all(map(is_name, ("a", "a.b", "..a", "é" * 127)))
    assert not any(map(is_name, ("", ".", "..", "a/b", "/", "a\0", "x" * 256, "é" * 128)))


def test_messages_truncate_long_values():
    assert brief("x") == "'x'"
    assert len(brief("x" * 10**6)) == len(brief(["x"] * 10**6)) == 81
    assert brief(10**5000) == "a int"
    assert shorten("a\0b\n") == r"a\x00b\n"
    assert list_first(["a", "b"]) == "a, b"
    assert list_first(map(str, range(1000))).endswith(", 19, and 980 more")


@pytest.mark.parametrize("name", ["", ".", "..", "a\0b", "x" * 5000, "/dev/zero", "../single/model.safetensors"])
def test_impossible_file_names_in_an_index_are_refused(sharded: Path, name: str):
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"]["lm_head.weight"] = name
    (sharded / INDEX).write_text(json.dumps(index))
    message = refusal(sharded, WeightsError)
    assert "expected a file of its own folder" in message
    assert len(message) < 500


@pytest.mark.parametrize("file", ["config.json", INDEX, "generation_config.json"])
def test_irregular_files_and_links_out_of_the_folder_are_not_read(sharded: Path, tmp_path: Path, file: str):
    secret = tmp_path / "secret"
    secret.write_text("hush: hush")
    (sharded / file).unlink()
    (sharded / file).symlink_to(secret)
    message = refusal(sharded, ConverterError)
    assert "leads out of its folder" in message
    assert "hush" not in message
    (sharded / file).unlink()
    (sharded / file).write_text('{"a":' + "[" * 500_000 + "]" * 500_000 + "}")
    assert "nested deeper than 100 levels" in refusal(sharded, ConverterError)
    (sharded / file).unlink()
    os.mkfifo(sharded / file)
    assert "no regular file" in refusal(sharded, ConverterError)


def test_links_among_weights_and_small_files_are_not_followed_out(single: Path, tmp_path: Path):
    (tmp_path / "secret").write_text("hush")
    (single / "LICENSE").symlink_to(tmp_path / "secret")
    assert "LICENSE cannot be read: it leads out of its folder" in refusal(single, WeightsError)
    (single / "LICENSE").unlink()
    (single / SINGLE).rename(tmp_path / SINGLE)
    (single / SINGLE).symlink_to(tmp_path / SINGLE)
    assert "leads out of its folder" in refusal(single, WeightsError)


@pytest.mark.parametrize("value", [10**30, 64, -2, [1, 99], "</s>", 1.0, []])
def test_settings_for_generation_name_tokens_that_have_an_embedding(single: Path, value: object):
    (single / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 63], "pad_token_id": -1}))
    open_source(single)
    (single / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    assert "generation_config.json has eos_token_id" in refusal(single, ConfigError)


@pytest.mark.parametrize("text", [r'{"a": "\ud800"}', r'{"\udfff": 1}', r'[["x", "\ud800y"]]', b'"\xed\xa0\x80"', r'"\ud800"'])
def test_json_with_half_a_character_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="lone surrogate"):
        parse_json(text)


def test_json_with_whole_characters_is_read() -> None:
    assert parse_json(r'{"a\ud83d\ude42": "\u00e9\ud83d\ude42"}') == {"a🙂": "é🙂"}


def test_a_file_to_append_to_is_a_regular_one(tmp_path: Path):
    for line in (b"a\n", b"b\n"):
        with appending(tmp_path / "log") as stream:
            stream.write(line)
    assert (tmp_path / "log").read_bytes() == b"a\nb\n"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/full")
    for name in ("pipe", "device"):
        with pytest.raises(OSError, match="no regular file"), appending(tmp_path / name):
            pass


def test_a_file_for_a_library_is_checked_before(tmp_path: Path):
    (tmp_path / "file").write_bytes(bytes(100))
    check_file(tmp_path / "file", 100)
    with pytest.raises(OSError, match="larger than 99 bytes"):
        check_file(tmp_path / "file", 99)
    with pytest.raises(OSError, match="a file was expected"):
        check_file(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        check_file(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        check_file(tmp_path / "missing")


def test_files_are_matched_by_name_regardless_of_their_type(tmp_path: Path):
    for name in ("tokenizer", "folder.json", "inside"):
        (tmp_path / name).mkdir()
    for name in ("tokenizer.json", "inside/a", "other"):
        (tmp_path / name).write_text("")
    (tmp_path / "tokenizer.model").symlink_to("nowhere")
    os.mkfifo(tmp_path / "tokenizer_config.json")
    names = files_matching(tmp_path, ("tokenizer*", "inside/*", "missing/*", "*.json"))
    assert names == ["folder.json", "inside/a", "tokenizer.json", "tokenizer.model", "tokenizer_config.json"]
    with pytest.raises(OSError, match="missing"):
        files_matching(tmp_path / "missing", ("*",))


def test_a_problem_names_its_file():
    assert problem_with(OSError(13, "Permission denied", "/a/facts.json")) == "facts.json: Permission denied"
    assert problem_with(OSError(28, "No space left on device")) == "No space left on device"
