"""``--data`` accepts the documented references and explains what is wrong with others."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

import composer
from composer.data.references import DataReference, FileData, HubData, Slice, TaskData, parse_reference
from composer.errors import DataError


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("moby-dick.txt,by=line", FileData(path="moby-dick.txt", by="line")),
        ("a/b.jsonl, limit=10, skip=2", FileData(path="a/b.jsonl", limit=10, skip=2)),
        ("data/*.parquet,column=story", FileData(path="data/*.parquet", column="story")),
        ("x.jsonl,format=text,empty=skip", FileData(path="x.jsonl", format="text", empty="skip")),
        ("hub:tatsu-lab/alpaca,split=test,limit=1000", HubData(name="tatsu-lab/alpaca", split="test", limit=1000)),
        ("hub:a/b,config=en,revision=v1", HubData(name="a/b", config="en", revision="v1")),
        ("echo,samples=20,seed=3,limit=7", TaskData(name="echo", options={"samples": "20", "seed": "3"}, limit=7)),
        ("./echo", FileData(path="./echo")),
        ("nothing", FileData(path="nothing")),
    ],
)
def test_references_are_parsed(text: str, meant: DataReference) -> None:
    assert parse_reference(text) == meant


def test_file_names_may_contain_commas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a,by=line.txt").touch()
    os.mkdir("echo")
    assert parse_reference("a,by=line.txt") == FileData(path="a,by=line.txt")
    assert isinstance(parse_reference("echo"), TaskData)


def test_references_are_frozen_and_closed() -> None:
    with pytest.raises(AttributeError, match=r"limit cannot be changed"):
        parse_reference("a.txt").limit = 3  # type: ignore[misc]
    with pytest.raises(ValidationError):
        HubData(name="a", path="b")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a file, hub:owner/name or a task"),
        (",limit=3", "expected a file"),
        ("a.txt,line", '"line" is no option; expected key=value'),
        ("a.txt,=3", '"=3" is no option'),
        ("a.txt,limit=3,limit=4", "limit is set twice"),
        ("a.txt,limt=3", 'unknown option "limt"; did you mean "limit"? Options: skip, limit, format, column, empty, by'),
        ("a.txt,kind=hub", 'unknown option "kind"'),
        ("a.txt,path=b", 'unknown option "path"'),
        ("a.txt,limit=some", 'limit = "some": expected a valid integer'),
        ("a.txt,limit=0", 'limit = "0": expected greater than 0'),
        ("a.txt,by=word", "by = \"word\": expected 'document', 'paragraph' or 'line'"),
        ("hub:a/b,by=line", 'unknown option "by"'),
        ("hub:", "name"),
        ("echo,sample=3", 'unknown option "sample"; did you mean "samples"? Options: samples, length, seed, learn, skip, limit'),
        ("echo,samples=many", 'samples = "many": expected a valid integer'),
        ("quote,samples=3", "quote,samples=3: needs book: quote,samples=3,book=…"),
        ("echo,limit=-1", 'limit = "-1"'),
    ],
)
def test_invalid_references_are_refused(text: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_reference(text)
    assert message in str(caught.value)
    assert text in str(caught.value)


def test_misspelt_tasks_with_options_are_recognised_as_tasks() -> None:
    with pytest.raises(DataError, match='qoute,samples=10: no file, folder or task "qoute"; did you mean "quote"'):
        parse_reference("qoute,samples=10")


def test_the_pages_name_every_option_of_a_reference() -> None:
    docs = Path(composer.__file__).parents[1] / "docs"
    page, tasks_page = ((docs / name).read_text(encoding="utf-8") for name in ("distill.md", "tasks.md"))
    options = {name for kind in (FileData, HubData) for name in kind.model_fields} - {"kind", "path", "name"}
    assert [name for name in sorted(options) if not re.search(rf"`{name}[`=]|{name}=", page)] == []
    assert [name for name in Slice.model_fields if f"`{name}=N`" not in tasks_page] == []
