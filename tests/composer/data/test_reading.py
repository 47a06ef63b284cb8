"""Files of every kind are read offline without leftovers, and errors name their place."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from composer.data import reading, streams
from composer.data.reading import files_of, read_records
from composer.data.references import FileData, HubData, parse_reference
from composer.data.streams import lines_of
from composer.errors import DataError
from converters.bounded import shorten
from tests.composer.data.conftest import Write

ROOT = Path(__file__).parents[3]
THREE = [{"text": "one"}, {"text": "two"}, {"text": "three"}]
BOOK = "one\ntwo\r\n\n \nthree\n\n\nfour\n"


def read(text: str) -> list[dict[str, Any]]:
    reference = parse_reference(text)
    assert isinstance(reference, FileData | HubData)
    return [record.fields for record in read_records(reference)]


def message_of(text: str) -> str:
    with pytest.raises(DataError) as caught:
        read(text)
    return str(caught.value)


def test_json_lines_json_and_parquet_have_the_same_rows(write: Write, tmp_path: Path) -> None:
    lines = write("a.jsonl", THREE)
    array = write("b.json", json.dumps(THREE))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(THREE), tmp_path / "c.parquet")
    before = sorted(tmp_path.rglob("*"))
    for path in (lines, array, str(tmp_path / "c.parquet")):
        assert read(path) == THREE
    assert sorted(tmp_path.rglob("*")) == before


def test_records_have_file_and_line(write: Write) -> None:
    path = write("a.jsonl", THREE)
    reference = FileData(path=path, skip=1)
    assert [record.place for record in read_records(reference)] == [f"{path}, record 2", f"{path}, record 3"]


def test_skip_and_limit_select_rows(write: Write) -> None:
    path = write("a.jsonl", THREE)
    assert read(f"{path},skip=1,limit=1") == THREE[1:2]
    assert read(f"{path},limit=9") == THREE
    assert read(f"{path},skip=3") == []


@pytest.mark.parametrize(
    ("by", "texts"),
    [
        ("document", ["one\ntwo\n\n \nthree\n\n\nfour\n"]),
        ("paragraph", ["one\ntwo", "three", "four"]),
        ("line", ["one", "two", "three", "four"]),
    ],
)
def test_plain_text_is_split_by_document_paragraph_or_line(write: Write, by: str, texts: list[str]) -> None:
    path = write("a.txt", BOOK.encode())
    assert [fields["text"] for fields in read(f"{path},by={by}")] == texts
    if by == "document":
        assert read(path) == read(f"{path},by=document")


def test_folders_and_patterns_are_read_in_order(write: Write, tmp_path: Path) -> None:
    write("many/b.jsonl", THREE[1:])
    write("many/deep/a.jsonl", THREE[:1])
    write("many/notes.md", "no data")
    assert read(str(tmp_path / "many")) == [*THREE[1:], *THREE[:1]]
    assert read(str(tmp_path / "many" / "*.jsonl")) == THREE[1:]
    assert read(str(tmp_path / "many" / "**" / "a.*")) == THREE[:1]


def test_file_names_that_look_like_patterns_are_read(write: Write) -> None:
    assert read(write("a[1].jsonl", THREE)) == THREE


ALL = "`compose tasks` lists the tasks. Data of the Hub are hub:owner/name."


def test_missing_files_are_refused(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("stories.jsonl", THREE)
    os.mkdir("void")
    assert message_of("storys.jsonl") == f'no file, folder or task "storys.jsonl"; did you mean "stories.jsonl"? {ALL}'
    assert message_of("ecko") == f'no file, folder or task "ecko"; did you mean "echo"? {ALL}'
    nowhere = f'no file, folder or task "some/where.txt". {ALL}'
    assert message_of("some/where.txt") == nowhere
    assert "void has no file that can be read: expected .jsonl, .json, .parquet, .txt" in message_of("void")
    assert 'no file fits the pattern "x*.jsonl"' in message_of("x*.jsonl")
    Path("void", "stories.jsonl").touch()
    assert f'did you mean "{Path("void", "stories.jsonl")}"?' in message_of("void/storie.jsonl")  # a whole path may be cut


def test_unknown_and_mixed_kinds_of_files_are_refused(write: Write, tmp_path: Path) -> None:
    path = write("a.doc", "text\none\n")
    assert 'files that end in ".doc" are not read; expected .jsonl, .json, .parquet, .txt, .csv, .tsv, each' in message_of(path)
    assert 'files that end in ".gz" are not read' in message_of(write("a.parquet.gz", gzip.compress(b"PAR1")))
    write("mixed/a.jsonl", THREE)
    write("mixed/b.txt", "one")
    assert "holds files of several kinds (json, text). Name one kind" in message_of(str(tmp_path / "mixed"))
    assert "`by` is for plain text (.txt)" in message_of(f"{tmp_path / 'mixed' / 'a.jsonl'},by=line")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet", "a.txt", "a.csv", "a.txt.gz"])
def test_empty_files_are_refused(write: Write, name: str) -> None:
    assert f"{name} is empty: it has 0 bytes" in message_of(write(name, ""))


def test_files_without_records_are_refused(write: Write) -> None:
    assert "a.txt has no record in it, only blank space" in message_of(write("a.txt", " \n\n"))
    assert "a.jsonl has no record in it" in message_of(write("a.jsonl", "\n \n"))
    assert "a.csv has no record in it" in message_of(write("a.csv", "text,more\n"))
    assert "b.txt.gz is empty: it has 0 bytes" in message_of(write("b.txt.gz", gzip.compress(b"")))


def test_damaged_files_are_refused(write: Write) -> None:
    assert "a.jsonl:3  cannot be read as JSON" in message_of(write("a.jsonl", '{"text": "one"}\n\n{"text": \n'))
    assert 'b.jsonl:1  expected an object such as {"text": …}, got "one"' in message_of(write("b.jsonl", '"one"\n'))
    assert "c.jsonl:2  is not UTF-8 (invalid continuation byte)" in message_of(
        write("c.jsonl", b'{"text": "one"}\n{"text": "caf\xe9 "}')
    )
    assert "c.json cannot be read as json" in message_of(write("c.json", "[{]"))
    assert 'c.json, record 2: expected an object such as {"text": …}, got 5' in message_of(write("c.json", '["one", 5]'))
    assert "c.json:2  cannot be read as JSON" in message_of(write("c.json", '{"text": "one"}\n{"text": \n'))
    assert "c.json is not UTF-8 (invalid continuation byte at byte 5)" in message_of(write("c.json", b'["caf\xe9 "]'))
    assert "c.json has no record in it" in message_of(write("c.json", "[]"))
    assert "d.parquet cannot be read as parquet: " in message_of(write("d.parquet", "no table"))
    assert "e.txt is not UTF-8 (invalid continuation byte at byte 3)" in message_of(write("e.txt", b"caf\xe9 here"))


@pytest.mark.parametrize("by", ["document", "paragraph", "line"])
def test_compressed_text_is_read(write: Write, by: str) -> None:
    plain, packed = write("a.txt", BOOK.encode()), write("a.txt.gz", gzip.compress(BOOK.encode()))
    assert read(f"{packed},by={by}") == read(f"{plain},by={by}")


def test_compressed_files_of_every_kind_are_read(write: Write, tmp_path: Path) -> None:
    lines = "".join(json.dumps(record) + "\n" for record in THREE).encode()
    for name, content in (("a.jsonl", lines), ("b.json", json.dumps(THREE).encode()), ("c.csv", b"text\none\ntwo\nthree\n")):
        assert read(write(f"packed/{name}.gz", gzip.compress(content))) == THREE
    assert read(write("A.JSONL.GZ", gzip.compress(lines))) == THREE
    assert "holds files of several kinds (csv, json)" in message_of(str(tmp_path / "packed"))
    assert read(str(tmp_path / "packed" / "*.jsonl.gz")) == THREE


def test_damaged_or_large_compressed_files_are_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(json.dumps(THREE[0]).encode() * 50)
    assert "a.jsonl.gz cannot be unpacked as gzip: " in message_of(write("a.jsonl.gz", b"no such thing"))
    assert "b.jsonl.gz cannot be unpacked as gzip: " in message_of(write("b.jsonl.gz", packed[:-9]))
    monkeypatch.setattr(streams, "MOST_UNPACKED", 500)
    monkeypatch.setattr(streams, "MOST_RATIO", 1)
    wanted = "c.json.gz unpacks to more than 500 bytes, the most that is read of a compressed file of its size"
    assert wanted in message_of(write("c.json.gz", packed))


def test_cells_of_csv_and_tsv_are_text(write: Write) -> None:
    """Cells stay text, also dates, numbers and empty-looking ones, with separators, quotes and line breaks inside."""
    table = 'prompt,completion\r\n"once, ""upon""\na time",2024-01-01\r\n\r\nNA,\r\n007,nan\r\n'
    rows = [
        {"prompt": 'once, "upon"\na time', "completion": "2024-01-01"},
        {"prompt": "NA", "completion": None},
        {"prompt": "007", "completion": "nan"},
    ]
    assert read(write("a.csv", b"\xef\xbb\xbf" + table.encode())) == rows
    assert read(write("b.tsv", "prompt\tcompletion\none, two\tthree\n")) == [{"prompt": "one, two", "completion": "three"}]
    long = "word " * 40_000
    assert read(write("c.csv", f"text\n{long}\n")) == [{"text": long}]


def test_damaged_tables_are_refused(write: Write) -> None:
    assert "a.csv:3  has 3 cells, expected 2: a, b. Put quotes around" in message_of(write("a.csv", "a,b\n1,2\n1,2,3\n"))
    assert "a.csv:2  has 1 cells, expected 2: a, b. Put quotes around" in message_of(write("a.csv", "a,b\n1\n"))
    assert 'a.csv:1  names the column "a" twice' in message_of(write("a.csv", "a,b,a\n1,2,3\n"))
    assert "a.csv:2  cannot be read as a table: unexpected end of data" in message_of(write("a.csv", 'a,b\n1,"2\n'))
    assert "a.csv is not UTF-8" in message_of(write("a.csv", b"a,b\n1,caf\xe9\n"))


def test_keys_that_parquet_fills_in_are_removed(tmp_path: Path) -> None:
    """Parquet adds the keys of one object to all objects. These are removed, but columns and a message's content stay."""
    calls = [{"name": "look", "arguments": {"at": "river"}}, {"name": "go", "arguments": {"to": "house"}}]
    messages = [{"role": "assistant", "content": None, "tool_calls": calls}, {"role": "user", "content": "once"}]
    records = [{"messages": messages, "text": None}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "a.parquet")
    assert read(str(tmp_path / "a.parquet")) == records


def test_json_lines_are_read_without_conversion(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dates stay text, a column may be empty or missing far into the file, and missing fields are None."""
    monkeypatch.setattr(reading, "KNOWN", 2)
    records = [
        {"text": "2024-01-01"},
        {"text": "2024-01-02", "more": None},
        {"text": "a"},
        {"more": 3},
        {"text": "b", "late": [{}]},
    ]
    lacking: dict[str, Any] = {"text": None, "more": None}
    assert read(write("a.jsonl", records)) == [*({**lacking, **record} for record in records[:4]), {**lacking, **records[4]}]
    assert read(write("b.jsonl", b'\xef\xbb\xbf{"text": "one"}\r\n \r\n{"text": "two"}')) == THREE[:2]


def test_json_is_read_without_conversion(write: Write) -> None:
    """JSON may be a list of objects or texts, one object, or lines. Dates stay text, and messages may have different keys."""
    talk = [{"role": "user", "content": "once"}, {"role": "user", "content": "upon", "name": "she"}]
    records = [{"text": "2024-01-01", "messages": talk}, {"text": "2024-01-02"}]
    whole = [records[0], {**records[1], "messages": None}]
    assert read(write("a.json", json.dumps(records, indent=2))) == whole
    assert read(write("b.json", "\n".join(map(json.dumps, records)))) == whole
    assert read(write("c.json", json.dumps(records[0], indent=2))) == records[:1]
    assert read(write("d.json", json.dumps(["one", "2024-01-01"]))) == [{"text": "one"}, {"text": "2024-01-01"}]
    assert read(write("e.json", "\ufeff" + json.dumps(THREE))) == THREE


def test_byte_order_marks_are_removed(write: Write) -> None:
    assert read(write("a.txt", b"\xef\xbb\xbfone\r\ntwo")) == [{"text": "one\ntwo"}]


def test_errors_are_reported_once(write: Write, capfd: pytest.CaptureFixture[str]) -> None:
    before = datasets.utils.logging.get_verbosity()
    message_of(write("a.jsonl", "{\n"))
    assert capfd.readouterr() == ("", "")
    assert datasets.utils.logging.get_verbosity() == before


def test_hub_options_are_passed_to_load_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Any] = []

    def load(*positional: Any, **named: Any) -> datasets.Dataset:
        requests.append((positional, named))
        return datasets.Dataset.from_list(THREE)

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert read("hub:a/b,skip=1") == THREE[1:]
    assert read("hub:a/b,split=test,config=en,revision=v1,limit=2") == THREE[:2]
    assert requests == [(("a/b", None), {"split": "train", "revision": None}), (("a/b", "en"), {"split": "test", "revision": "v1"})]


def test_an_unreachable_hub_is_reported() -> None:
    message = message_of("hub:nobody/nothing")
    assert message.startswith("hub:nobody/nothing (split train) cannot be read: ")
    assert "HF_HUB_OFFLINE is set" in message


def test_tasks_are_not_files() -> None:
    with pytest.raises(DataError):
        files_of(FileData(path="echo"))


def test_the_package_imports_neither_torch_nor_datasets() -> None:
    script = (
        "import sys\nimport composer.data.loading\n"
        "print(sorted({'torch', 'transformers', 'datasets', 'pyarrow', 'pandas'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_reading_does_not_use_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache may be on a full file system or on one without locks, so it is not used."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    assert [record.fields for record in read_records(FileData(path=str(tmp_path / "a.jsonl")))] == [{"text": "a"}]
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


SECRET = b'{"text": "secret"}\n'


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet", "a.txt", "a.csv", "a.jsonl.gz"])
def test_irregular_files_are_refused(write: Write, tmp_path: Path, name: str) -> None:
    """Pipes, devices and links out of the folder are rejected, whether they are named or found in a folder."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / name
    os.mkfifo(path)
    for reference in (str(path), str(folder), f"{folder}/*{path.suffix}"):
        assert message_of(reference) == f"{path} cannot be read: no regular file"
    path.unlink()
    path.symlink_to("/dev/zero")
    assert message_of(str(path)) == f"{path} cannot be read: no regular file"
    write(f"else{path.suffix}", SECRET)
    path.unlink()
    path.symlink_to(tmp_path / f"else{path.suffix}")
    for reference in (str(folder), f"{folder}/*{path.suffix}", f"{tmp_path}/fol*/*{path.suffix}"):
        if reference.startswith(str(folder)):
            assert f"{path} cannot be read: it leads out of its folder" in message_of(reference)
    path.unlink()
    path.symlink_to(folder / "nowhere")
    assert f"{path} cannot be read: it is a link to {shorten(str(folder / 'nowhere'))}, which is not there" in message_of(
        str(folder)
    )


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="everything may be read by root")
def test_files_without_read_permission_are_refused(write: Write, tmp_path: Path) -> None:
    path = write("a.jsonl", THREE)
    os.chmod(path, 0)
    assert message_of(path) == f"{path} cannot be read: Permission denied"


@pytest.mark.parametrize("by", ["document", "paragraph", "line"])
def test_too_large_plain_text_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    monkeypatch.setattr(reading, "MOST_TEXT", 100)
    monkeypatch.setattr(streams, "MOST_TEXT", 100)
    assert "than 100 bytes, the most that a text may have: split it" in message_of(f"{write('a.txt', 'é' * 51)},by={by}")
    assert read(f"{write('b.txt', 'é' * 50)},by={by}") == [{"text": "é" * 50}]
    nul = write("c.txt", "a\0b")
    assert read(f"{nul},by={by}") == [{"text": "a\0b"}]


def test_too_long_lines_are_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "lines_of", lambda stream, file: lines_of(stream, file, 50))
    path = write("a.jsonl", '{"text": "a"}\n{"text": "' + "b" * 50 + '"}\n')
    assert message_of(path) == f"{path}:2  has more than 50 bytes, the most that a line may have: split it"
    monkeypatch.setattr(reading, "MOST_LINE", 100)
    path = write("b.json", json.dumps({"text": "a" * 100}, indent=1))
    assert message_of(path).startswith(f"{path} is no list and has more than 100 bytes: save it as a list, or as JSON lines")


def test_large_files_of_lines_are_read_line_by_line(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_LINE", 30)
    assert read(write("a.json", "\n \n" + "\n".join(map(json.dumps, THREE)))) == THREE


def test_records_of_different_columns_are_read_in_linear_time(write: Write) -> None:
    """Twice as many records, each with a different column, have at most twice as many values."""
    count = 5 * reading.MOST_COLUMNS
    records = read(write("a.jsonl", [{f"column {number}": number} for number in range(count)]))
    assert len(records) == count
    assert max(map(len, records)) <= 2 * reading.MOST_COLUMNS
    assert records[-1][f"column {count - 1}"] == count - 1
    assert records[-1]["column 0"] is None


def test_deep_json_and_huge_numbers_are_refused(write: Write) -> None:
    assert "nested deeper than 100 levels" in message_of(write("a.jsonl", '{"text": ' + "[" * 5000 + "]" * 5000 + "}\n"))
    assert "a.jsonl:1  cannot be read as JSON (Exceeds the limit" in message_of(write("a.jsonl", '{"text": ' + "9" * 5000 + "}\n"))
    assert read(write("b.jsonl", '{"text": "a", "text": "b"}\n')) == [{"text": "b"}]


@pytest.fixture
def limit_of_csv() -> Iterator[None]:
    """Restore the limit of the csv module, which holds for the whole process."""
    before = csv.field_size_limit()
    yield
    csv.field_size_limit(before)


@pytest.mark.usefixtures("limit_of_csv")
def test_too_large_tables_are_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "lines_of", lambda stream, file: lines_of(stream, file, 50))
    assert "a.csv:2  has more than 50 bytes, the most that a line may have" in message_of(write("a.csv", "text\n" + "b" * 51))
    monkeypatch.setattr(streams, "MOST_TEXT", 100)
    assert "b.csv:4  cannot be read as a table: field larger than field limit (100)" in message_of(
        write("b.csv", 'text\n"' + ("b" * 40 + "\n") * 3 + '"\n')
    )


def test_tables_of_many_columns_are_read_in_linear_time(write: Write) -> None:
    """Twice as many columns take twice as long, and messages name a few of them."""
    names = [f"column {number}" for number in range(100_000)]
    began = time.process_time()
    message = message_of(write("a.csv", ",".join(names) + "\n1,2\n"))
    assert time.process_time() - began < 20
    assert "a.csv:2  has 2 cells, expected 100,000: column 0, column 1," in message
    assert len(message) < 1000
