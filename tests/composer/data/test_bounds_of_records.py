"""Lists of JSON are read item by item, and the memory of a record has a bound, whatever a compressed file unpacks to."""

from __future__ import annotations

import gzip
import json

import pytest

from composer.data import reading, streams
from converters import bounded
from tests.composer.data.conftest import Write
from tests.composer.data.test_reading import message_of, read


@pytest.mark.parametrize("size", [4, 5, 11, 1000])
def test_lists_are_read_item_by_item(write: Write, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """A list is the same in pieces of any size. An item longer than a line, and what follows the list, are refused."""
    monkeypatch.setattr(bounded, "_PIECE", size)
    monkeypatch.setattr(reading, "MOST_LINE", 1000)
    records = [{"text": 'é, "]}'}, {"text": "b\\", "more": [[], {}, -1.5e3, None]}, {"text": ""}]
    for text in (json.dumps(records), json.dumps(records, indent=3, ensure_ascii=False), f"\n {json.dumps(records)} \n\n"):
        assert read(write("a.json", text)) == [{"more": None, **record} for record in records]
    texts = ["a" * number for number in range(20)]
    assert read(write("b.json", json.dumps(texts, separators=(" ,\n", ":")))) == [{"text": text} for text in texts]
    for text, problem in {
        '["a", "b"] 1': " cannot be read as json: expected nothing after the list, got '1'",
        '["a" "b"]': " cannot be read as json: expected a comma or ] at ",
        '["a", 12345, "b"]': ", record 2: expected an object such as",
        '["a", ]': " cannot be read as json: Expecting value at ']'",
        '["a", "b': " cannot be read as json: Unterminated string starting at at",
        '["a"': " cannot be read as json",
        json.dumps(["a", "b" * 3000]): " cannot be read as json: an item of the list has more than 1,000 characters",
    }.items():
        path = write("c.json", text)
        assert message_of(path).startswith(f"{path}{problem}")


@pytest.mark.parametrize("name", ["a.json.gz", "b.jsonl.gz", "c.json.gz"])
def test_memory_of_records_is_bounded(write: Write, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A list of three bytes needs twenty times as many in memory."""
    monkeypatch.setattr(bounded, "MOST_MEMORY", 2**17)
    monkeypatch.setattr(bounded, "_PIECE", 2**10)
    indent = 1 if name.startswith("c") else None
    few, many = (json.dumps({"text": "a", "b": [{}] * count}, indent=indent) for count in (2**8, 2**12))
    few, many = (gzip.compress((f"[{record}]" if name == "a.json.gz" else record).encode()) for record in (few, many))
    assert len(read(write(name, few))) == 1
    assert "values may need more than 131,072 bytes of memory" in message_of(write(name, many))


def test_rows_of_many_cells_are_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST_CELLS", 10)
    assert len(read(write("a.csv", "a,b\n" + '"c,,,,,,",d\n' * 5))) == 5
    for row in ("c" + "," * 11, '"\n",,,,,,"\n",,,,,,,'):
        assert "a row of more than 10 separators" in message_of(write("a.csv", f"a,b\n{row}\n"))


def test_few_records_are_held_where_they_are_large(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of later records are known from the first record on only as long as few bytes are held for them."""
    monkeypatch.setattr(reading, "MOST_AHEAD", 100)
    path = write("a.jsonl", [{"text": "a" * 99}, {"text": "b", "more": 1}])
    assert read(path) == [{"text": "a" * 99}, {"text": "b", "more": 1}]
