"""Any contents of data files and chat templates are read or rejected with a message, without a connection."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import strategies as st

from composer.data.chat_templates import render
from composer.data.formats import drafts
from composer.data.hub import CARDS, check_card
from composer.data.reading import read_records
from composer.data.references import FileData
from composer.errors import ComposerError
from tests.fuzz.mutations import CUTS, EDITS, VALUES, as_json, cut, edited
from tests.fuzz.outcomes import LONGEST, fuzz, outcome

pytestmark = pytest.mark.usefixtures("no_network")

RECORDS: list[Any] = [
    {"text": "once upon a time"},
    {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
    {"prompt": "p", "completion": "c"},
    {"instruction": "i", "output": "o", "input": None},
]
FEATURES = {"info": {"features": {"text": {"dtype": "string", "_type": "Value"}, "image": {"_type": "Image"}}}}
CARD = {"configs": [{"config_name": "en", "data_files": [{"split": "train", "path": ["a/*.parquet", "b.json"]}], "data_dir": "a"}]}
TALK = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
TEMPLATES = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m.content | trim }}{% endfor %}{{ eos_token * 3 }}",
    "{% set n = namespace(x='a') %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x | length }}",
    "{% macro f(x) %}{{ x }}{% if x < 9 %}{{ f(x + 1) }}{% endif %}{% endmacro %}{{ f(0) }}{{ messages | tojson(indent=4) }}",
    "{{ '%5d' % 5 }}{{ 'a' | center(9) }}{{ (['x'] * 9) | join(',') }}{{ 2 ** 8 }}{{ '{:>9}'.format(1) }}",
)


@cache
def stored(compression: str, features: bytes) -> bytes:
    picture = pyarrow.array([{"bytes": None, "path": "http://127.0.0.1:9/x"}] * 3)
    table = pyarrow.table({"text": ["a", "b", "c"], "messages": [TALK] * 3, "image": picture})
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(table.replace_schema_metadata({"huggingface": features}), buffer, compression=compression)
    return buffer.getvalue()


def used(path: Path) -> None:
    """Read all records up to their text."""
    data = FileData(path=str(path))
    stub: Any = SimpleNamespace(
        chat_template=TEMPLATES[0], get_chat_template=lambda *_: TEMPLATES[0], special_tokens_map={}, name_or_path="x"
    )
    for record in read_records(data):
        problem = ""
        try:
            drafts(record, data, stub)
        except ComposerError as error:
            problem = str(error)
        assert len(problem) < LONGEST


@fuzz(st.tuples(st.sampled_from(["zstd", "snappy", "gzip", "none"]), EDITS, CUTS, st.booleans()), examples=60)
def test_damaged_parquet_files_are_read_or_refused(example: Any, folder: Path) -> None:
    compression, edits, cuts, whole = example
    content = stored(compression, as_json(edited(FEATURES, edits)))
    path = folder / "a.parquet"
    path.write_bytes(content if whole else cut(content, cuts))
    outcome(lambda: used(path))


@fuzz(st.tuples(EDITS, CUTS, st.sampled_from([".json", ".jsonl", ".txt"]), st.booleans()), examples=60)
def test_damaged_json_and_text_are_read_or_refused(example: Any, folder: Path) -> None:
    edits, cuts, suffix, tree = example
    path = folder / f"a{suffix}"
    lines = b"\n".join(json.dumps(record).encode() for record in RECORDS)
    path.write_bytes(as_json(edited(RECORDS, edits)) if tree else cut(lines, cuts))
    outcome(lambda: used(path))


@fuzz(st.tuples(EDITS, st.sampled_from(CARDS)), examples=60)
def test_damaged_dataset_cards_are_accepted_or_refused(example: Any, folder: Path) -> None:
    edits, name = example
    text = as_json(edited(CARD, edits)).decode()
    outcome(lambda: check_card(f"---\n{text}\n---\n" if name == CARDS[0] else text, name, "hub:a/b"))


@fuzz(st.tuples(st.sampled_from(TEMPLATES), CUTS, VALUES), examples=60)
def test_damaged_chat_templates_are_rendered_or_refused(example: Any, folder: Path) -> None:
    text, cuts, value = example
    template = cut(text.encode(), cuts).decode("utf-8", "replace")
    stub: Any = SimpleNamespace(get_chat_template=lambda *_: template, special_tokens_map={"eos_token": value})
    outcome(lambda: render(stub, TALK))
