"""Stored state is validated by its schema and types. Errors name the file, the field and the remedy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest
from pydantic import JsonValue

from blocks.part import Closed
from composer.errors import BenchError
from composer.system.json_files import Count, Elapsed, Measured, cut_interrupted_line, read_log, read_state, write_state


class Nested(Closed):
    values: tuple[Count, ...]


class Kept(Closed):
    format: Literal[1] = 1
    loss: Measured | None
    seconds: Elapsed
    nested: Nested
    options: dict[str, JsonValue]


KEPT = Kept(loss=0.5, seconds=1.0, nested=Nested(values=(1, 2)), options={"a": [1, "b", None]})
REMEDY = "Remove it."
TEXT = '{"loss": 0.5, "seconds": 1, "nested": {"values": [1]}, "options": {}}'


def read(path: Path) -> Kept:
    return read_state(path, Kept, BenchError, REMEDY)


def test_written_state_is_read_back(tmp_path: Path) -> None:
    write_state(tmp_path / "kept.json", KEPT)
    assert read(tmp_path / "kept.json") == KEPT
    assert os.listdir(tmp_path) == ["kept.json"]


def test_missing_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "kept.json")
    assert read_log(tmp_path / "log.jsonl", Kept, BenchError, REMEDY) == []
    cut_interrupted_line(tmp_path / "log.jsonl")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "invalid JSON: EOF while parsing a value at line 1 column 0"),
        (TEXT[:-3], "invalid JSON: EOF"),
        ("[]", "input should be an object, got []"),
        ("null", "input should be an object, got None"),
        ("[" * 100_000, "invalid JSON: recursion limit exceeded"),
        (TEXT.replace("0.5", '"0.5"'), "loss: input should be a valid number, got '0.5'"),
        (TEXT.replace("0.5", "true"), "loss: input should be a valid number, got True"),
        (TEXT.replace("0.5", "NaN"), "invalid JSON"),
        (TEXT.replace("0.5", "-Infinity"), "invalid JSON"),
        (TEXT.replace("0.5", "1e999"), "loss: input should be a finite number, got inf"),
        (TEXT.replace("0.5", "1e308"), "loss: expected at most 1e+39, got 1e+308"),
        (TEXT.replace("0.5", "-1e308"), "loss: expected at least -1e+39, got -1e+308"),
        (TEXT.replace("0.5", "1" + "0" * 400), "loss: input should be a finite number, got 1000"),
        (TEXT.replace("0.5", "9" * 5000), "invalid JSON: number out of range"),
        (TEXT.replace('"seconds": 1', '"seconds": -1'), "seconds: expected at least 0, got -1"),
        (TEXT.replace("[1]", "[1, 1.0]"), "nested.values.1: input should be a valid integer, got 1.0"),
        (TEXT.replace("[1]", "[9007199254740993]"), "nested.values.0: expected at most 9.0072e+15, got 9007199254740993"),
        (TEXT.replace('{"values": [1]}', "{}"), "nested.values: the field is missing"),
        (TEXT.replace("[1]", '[1], "x\\n": 2'), "nested.x\\n: the field is unknown"),
        (TEXT.replace("{}", '{"x": NaN}'), "invalid JSON"),
        (TEXT.replace('{"loss"', '{"format": 2, "loss"'), "format: input should be 1, got 2"),
    ],
)
def test_values_that_do_not_match_the_schema_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "kept.json"
    path.write_text(text)
    with pytest.raises(BenchError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{path} is damaged: {problem}")
    assert message.endswith(". Remove it.")
    assert len(message) < 500


def test_irregular_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for name in ("folder", "pipe", "zeros"):
        for reader in (read, lambda path: read_log(path, Kept, BenchError, REMEDY)):
            with pytest.raises(BenchError, match=rf"{name} cannot be read: .*\. Remove it\."):
                reader(tmp_path / name)
    (tmp_path / "large").write_bytes(b" " * 100)
    with pytest.raises(BenchError, match="large cannot be read: larger than 99 bytes"):
        read_state(tmp_path / "large", Kept, BenchError, REMEDY, max_bytes=99)


@pytest.mark.parametrize("tail", ["", "{", TEXT, "\0\0", '{"loss": "'])
def test_incomplete_last_lines_are_dropped(tmp_path: Path, tail: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f"{TEXT}\n{TEXT}\n{tail}")
    lines = read_log(path, Kept, BenchError, REMEDY)
    assert [line.loss for line in lines] == [0.5, 0.5]
    cut_interrupted_line(path)
    assert path.read_text() == f"{TEXT}\n{TEXT}\n"


@pytest.mark.parametrize("line", ["", "{", "[]", TEXT.replace("0.5", "1e308"), "\udcff"], ids=range(5))
def test_a_damaged_line_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(f"{TEXT}\n{line}\n{TEXT}\n".encode(errors="surrogateescape"))
    with pytest.raises(BenchError, match=r"log\.jsonl, line 2 is damaged: .*\. Remove it\."):
        read_log(path, Kept, BenchError, REMEDY)
