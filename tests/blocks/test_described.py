"""What stands below the fields of a class describes them, wherever the class is written."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import ClassVar

import pytest

from blocks.catalogue import CATALOGUE
from blocks.described import described
from blocks.part import Closed


class Outer(Closed):
    """Not of a field."""

    first: int = 1
    """Of the first,
    in two lines."""
    second: int = 2

    class Inner(Closed):
        first: int = 1
        """Of another."""

    third: tuple[
        int,
        ...,
    ] = ()
    """Of the third."""
    count: ClassVar[int] = 4
    """Of what is no field."""


class Heir(Outer):
    second: int = 3
    """Of the second."""


def texts(of: type[Closed]) -> dict[str, str | None]:
    return {name: field.description for name, field in of.model_fields.items()}


def test_it_is_what_stands_below() -> None:
    assert texts(Outer) == {"first": "Of the first,\nin two lines.", "second": None, "third": "Of the third."}
    assert texts(Outer.Inner) == {"first": "Of another."}
    assert Outer.model_json_schema()["properties"]["third"]["description"] == "Of the third."


def test_heirs_have_it_and_their_own() -> None:
    assert texts(Heir) == texts(Outer) | {"second": "Of the second."}


def test_a_class_within_a_function() -> None:
    class Local(Closed):
        one: int = 1
        """Of one."""

    assert texts(Local) == {"one": "Of one."}


def test_parts_have_it() -> None:
    parts = [part for kinds in CATALOGUE.values() for part in kinds.values()]
    assert sum(text is not None for part in parts for text in texts(part).values()) > 50


@pytest.mark.parametrize("name", ["nowhere", "of_no_file"])
def test_without_a_source_nothing_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "of_no_file":
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert described(name) == {}
