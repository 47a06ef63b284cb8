"""Parquet files are read as stored: nothing that the metadata names is opened, and decompression is bounded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from composer.data import parquet, streams
from composer.data.hub import KINDS
from composer.data.parquet import Unread
from composer.data.reading import read_records
from composer.data.references import FileData, HubData
from composer.errors import DataError

pytestmark = pytest.mark.usefixtures("no_network")

PICTURE = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])


def stored(folder: Path, table: pyarrow.Table, **options: Any) -> Path:
    path = folder / "a.parquet"
    pyarrow.parquet.write_table(table, path, **options)
    return path


def fields(path: Path) -> list[dict[str, Any]]:
    return [record.fields for record in read_records(FileData(path=str(path)))]


def message_of(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        fields(path)
    return str(caught.value)


def pictures(folder: Path, feature: str) -> pyarrow.Table:
    """Return texts, and a column with a host, a pipe and a file that the metadata declares to be images or similar."""
    os.mkfifo(folder / "pipe")
    paths = ["http://127.0.0.1:9/a.png", str(folder / "pipe"), "/etc/passwd"]
    table = pyarrow.table({"text": ["a", "b", "c"], "x": pyarrow.array([{"bytes": None, "path": path} for path in paths], PICTURE)})
    features = datasets.Features({"text": datasets.Value("string"), "x": getattr(datasets, feature)()})
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features.to_dict()}})})


@pytest.mark.parametrize("feature", ["Image", "Audio", "Video", "Pdf"])
def test_types_declared_in_metadata_are_not_decoded(tmp_path: Path, feature: str) -> None:
    records = fields(stored(tmp_path, pictures(tmp_path, feature)))
    assert [record["text"] for record in records] == ["a", "b", "c"]
    assert all(isinstance(record["x"], Unread) for record in records)


@pytest.mark.parametrize("feature", ["Image", "Audio"])
def test_hub_data_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feature: str) -> None:
    table = pictures(tmp_path, feature)
    features = datasets.Features.from_arrow_schema(table.schema)
    assert isinstance(features["x"], getattr(datasets, feature))
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.Dataset(table))
    records = [record.fields for record in read_records(HubData(name="a/b"))]
    assert [record["text"] for record in records] == ["a", "b", "c"]
    assert all(isinstance(record["x"], Unread) for record in records)


def test_lists_structs_numbers_and_categories_are_read(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "x"}], "n": 1, "f": 0.5, "b": True, "none": None}] * 40
    assert fields(stored(tmp_path, pyarrow.Table.from_pylist(rows), row_group_size=7)) == rows
    categories = pyarrow.table({"text": pyarrow.array(["a", "b", "a"]).dictionary_encode()})
    assert fields(stored(tmp_path, categories)) == [{"text": "a"}, {"text": "b"}, {"text": "a"}]


@pytest.mark.parametrize("compression", ["zstd", "gzip", "snappy"])
def test_files_that_unpack_to_too_many_bytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str) -> None:
    monkeypatch.setattr(parquet, "MOST_CHUNK", 2**20)
    monkeypatch.setattr(parquet, "MOST_RATIO", 10)
    path = stored(tmp_path, pyarrow.table({"text": ["a" * 3_000_000]}), compression=compression, use_dictionary=False)
    message = message_of(path)
    assert message.startswith(f"{path}: ")
    assert "bytes of the column text unpack to 3,000,0" in message


def test_too_long_texts_are_refused(tmp_path: Path) -> None:
    path = stored(tmp_path, pyarrow.table({"text": ["b", "a" * 17_000_000]}), compression="zstd")
    assert path.stat().st_size < 10_000
    message = message_of(path)
    assert message.startswith(f"{path}, record 2 has 17,000,")
    assert "more than 16,777,216 bytes, the most that a text may have: split it" in message


def test_repeated_texts_count_for_every_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_UNPACKED", 2**20)
    path = stored(tmp_path, pyarrow.table({"text": ["abc" * 100] * 100_000}))
    assert path.stat().st_size < 5000
    assert f"{path} unpacks to more than 1,048,576 bytes, the most that is read of a compressed file of its size" in message_of(
        path
    )
    assert len(list(read_records(FileData(path=str(path), limit=9)))) == 9


def test_too_many_empty_records_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_UNPACKED", 2**20)
    assert "unpacks to more than 1,048,576 bytes" in message_of(stored(tmp_path, pyarrow.table({"text": pyarrow.nulls(100_000)})))


def test_too_long_empty_lists_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "MOST_CHUNK", 2**20)
    many = pyarrow.table({"text": ["x"], "list": pyarrow.array([[None] * 2_000_000], pyarrow.list_(pyarrow.null()))})
    assert "of the column list.list.element unpack to 2,000,000" in message_of(stored(tmp_path, many))


def test_columns_of_unsupported_types_are_not_read(tmp_path: Path) -> None:
    assert "has no column of text (its columns: \\x1b[31m: binary)" in message_of(
        stored(tmp_path, pyarrow.table({"\x1b[31m": [b"a"]}))
    )
    twice = pyarrow.Table.from_arrays([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["text", "text"])
    assert "has 2 columns of the name text" in message_of(stored(tmp_path, twice))
    extension = pyarrow.ExtensionArray.from_storage(pyarrow.uuid(), pyarrow.array([b"a" * 16], pyarrow.binary(16)))
    (record,) = fields(stored(tmp_path, pyarrow.table({"text": ["a"], "id": extension})))
    assert record["text"] == "a"
    assert isinstance(record["id"], Unread)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("json", "no name of a data set"),
        ("pandas", "no name of a data set"),
        ("../x", "no name of a data set"),
        ("/etc", "no name of a data set"),
        ("http://host/x", "no name of a data set"),
        ("owner/here", "is here, too, and would be read instead"),
    ],
)
def test_invalid_names_of_hub_data_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, problem: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "here").mkdir(parents=True)
    with pytest.raises(DataError, match=problem):
        list(read_records(HubData(name=name)))


def card(**config: Any) -> str:
    return f"---\nlicense: mit\nconfigs: {json.dumps([{'config_name': 'default', **config}])}\n---\n# Data\n"


@pytest.mark.parametrize(
    "config",
    [
        {"data_files": "http://host/x.parquet"},
        {"data_files": ["ok.json", "/etc/passwd"]},
        {"data_files": [{"split": "train", "path": ["a.json", "../../x.json"]}]},
        {"data_files": [{"split": "train", "path": "zip://a.json::http://host/a.zip"}]},
        {"data_files": "~/x.json"},
        {"data_files": "C:\\x.json"},
        {"data_dir": "/etc"},
    ],
    ids=str,
)
def test_cards_that_name_files_elsewhere_are_refused(config: dict[str, Any]) -> None:
    from composer.data.hub import check_card

    check_card(card(data_files=[{"split": "train", "path": "data/train-*.parquet"}], data_dir="data"), "README.md", "hub:a/b")
    with pytest.raises(DataError, match="which is not in the data set"):
        check_card(card(**config), "README.md", "hub:a/b")
    with pytest.raises(DataError, match="which is not in the data set"):
        check_card(json.dumps({"configs": [config]}), ".huggingface.yaml", "hub:a/b")


def test_builders_that_open_other_files_are_refused(tmp_path: Path) -> None:
    from datasets import load_dataset_builder

    from composer.data.hub import check_builder

    (tmp_path / "a.json").write_text('{"text": "a"}')
    builder: Any = load_dataset_builder("json", data_files=str(tmp_path / "a.json"), cache_dir=str(tmp_path / "cache"))
    with pytest.raises(DataError, match="which is not in the data set"):
        check_builder(builder, HubData(name="a/b"))
    builder.config.data_files = {"train": ["hf://datasets/a/b@123/a.json"]}
    check_builder(builder, HubData(name="a/b"))
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(b"")
    folder = load_dataset_builder("imagefolder", data_dir=str(tmp_path / "pictures"), cache_dir=str(tmp_path / "cache"))
    with pytest.raises(DataError, match="of the kind imagefolder; expected one of arrow, csv"):
        check_builder(folder, HubData(name="a/b"))
    assert "imagefolder" not in KINDS
