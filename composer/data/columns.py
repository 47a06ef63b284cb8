"""Values of a record's columns: text, and JSON that a data set stores as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from composer.data.bounds import too_long
from composer.errors import DataError
from composer.files import MOST_TEXT
from composer.spec.places import brief
from converters.bounded import parse_json

HALF = re.compile("[\ud800-\udfff]")
"""Half of a character of UTF-16. JSON can contain one, and no tokenizer accepts it."""


class Empty(DataError):
    """A record without content."""


def text_of(place: str, fields: Mapping[str, Any], column: str) -> str:
    """Return the text of a column. Raises Empty if it is missing or blank, and DataError where it is no text."""
    text = fields[column]
    if text is None or (isinstance(text, str) and not text.strip()):
        shown = "missing" if text is None else "blank"
        raise Empty(f"{place}: {column} is {shown}; fix the record, or skip such records: empty=skip")
    if not isinstance(text, str):
        raise DataError(f"{place}: {column} is {brief(text)}, of type {type(text).__name__}; expected text")
    if len(text) > MOST_TEXT:
        raise too_long(f"{place}: {column}")
    check_characters(place, column, text)
    return text


def check_characters(place: str, column: str, text: str) -> None:
    """Raise DataError if a text contains half of a character."""
    if HALF.search(text):
        raise DataError(f"{place}: {column} is {brief(text)}, with half of a character; expected text")


def parse_column(place: str, column: str, value: Any) -> Any:
    """Return the value of a column that may store JSON as text, as many data sets of the Hub do. A blank text is None.

    Raises DataError.
    """
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    try:
        return parse_json(value)
    except ValueError as error:
        raise DataError(f"{place}: {column} is {brief(value)}, which is no JSON ({error}); expected a list or an object") from error
