"""State that a command keeps in a folder and a later call reads back: JSON files and logs of JSON lines, each with a schema.

A file that does not match its schema raises the caller's error. The message names the file, the field, what was expected and the
remedy. Types are strict: a number in quotation marks is not a number.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, Field, StringConstraints, ValidationError
from pydantic_core import from_json

from composer.errors import ComposerError
from composer.system.files import write_whole
from converters.bounded import MOST_CONFIG, MOST_LOG, brief, is_name, read_bytes, read_json_bytes, reason, shorten

LARGEST = 1e39
"""The largest absolute value of a measured number. It is just above the largest float32, and its square is a finite float."""
LARGEST_COUNT = 2**53
"""The largest integer up to which every integer is a float, too."""
Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
Measured = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Elapsed = Annotated[float, Field(ge=0, le=LARGEST)]
"""Seconds."""
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""A SHA-256."""


def _check_name(name: str) -> str:
    if "\\" in name or not all(map(is_name, name.split("/"))):
        raise ValueError(f"no file of a folder can be called {brief(name)}")
    return name


FileName = Annotated[str, AfterValidator(_check_name)]
"""A file of the folder itself, or of a folder in it, such as ``adapter/adapter_model.safetensors``. The name is never absolute, and
never leads upwards. What it names may still be a link: open it by ``converters.bounded.within``."""
MOST_MISTAKES = 10_000
"""Mistakes in a value of which the first is described. Python needs some 500 bytes for each."""
PROBLEMS = {"missing": "the field is missing", "extra_forbidden": "the field is unknown"}
"""Problems by pydantic's names, where pydantic's own text does not fit a file."""
BOUNDS = {"less_than_equal": ("at most", "le"), "greater_than_equal": ("at least", "ge")}
"""Words for pydantic's bounds, which it would write with all of their digits."""
StateKind = TypeVar("StateKind", bound=BaseModel)


def read_state(
    path: Path, schema: type[StateKind], refusal: type[ComposerError], remedy: str, max_bytes: int = MOST_CONFIG
) -> StateKind:
    """Return the contents of a JSON file.

    remedy: what the user can do about a damaged file, one or more sentences. max_bytes: the largest size of the file in bytes.

    Raises FileNotFoundError if the file does not exist, and ``refusal`` where it cannot be read or does not match the schema.
    """
    return _parse(_contents(path, refusal, remedy, max_bytes), schema, str(path), refusal, remedy)


def read_log(path: Path, schema: type[StateKind], refusal: type[ComposerError], remedy: str) -> list[StateKind]:
    """Return the lines of a log; none where the file does not exist.

    Each write ends with a line feed, so text after the last line feed is a write that was interrupted. It is ignored. Raises
    ``refusal`` if the log cannot be read or another line does not match the schema.
    """
    try:
        contents = _contents(path, refusal, remedy, MOST_LOG)
    except FileNotFoundError:
        return []
    lines = contents[: _end_of_lines(contents)].split(b"\n")[:-1]
    return [_parse(line, schema, f"{path}, line {number:,}", refusal, remedy) for number, line in enumerate(lines, 1)]


def cut_interrupted_line(path: Path) -> None:
    """Remove the text after the last line feed of a log, so that lines can be appended. Raises OSError."""
    try:
        contents = read_bytes(path, MOST_LOG)
    except FileNotFoundError:
        return
    end = _end_of_lines(contents)
    if end < len(contents):
        os.truncate(path, end)


def write_state(path: Path, state: BaseModel) -> None:
    """Write a JSON file, whole or not at all. Raises OSError."""
    write_whole(path, json.dumps(state.model_dump(mode="json", by_alias=True), indent=2, ensure_ascii=False) + "\n")


def first_problem(error: ValidationError) -> str:
    """Return the first problem of a value that does not match its schema: the field, what was expected, and the value."""
    if error.error_count() > MOST_MISTAKES:
        return f"{error.error_count():,} mistakes"
    details = error.errors(include_url=False)[0]
    field, kind = ".".join(shorten(str(part)) for part in details["loc"]), details["type"]
    if kind in BOUNDS:
        words, bound = BOUNDS[kind]
        problem = f"expected {words} {details.get('ctx', {})[bound]:,g}"
    else:
        problem = PROBLEMS.get(kind, details["msg"][:1].lower() + details["msg"][1:])
    problem = problem.removeprefix("value error, ")
    value = "" if kind in (*PROBLEMS, "json_invalid", "value_error") else f", got {brief(details['input'])}"
    return (f"{field}: " if field else "") + shorten(problem, 200) + value


def _contents(path: Path, refusal: type[ComposerError], remedy: str, max_bytes: int) -> bytes:
    try:
        return read_json_bytes(path, max_bytes)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not os.path.lexists(path):  # a link to nowhere is not a missing file
            raise
        raise refusal(f"{path} cannot be read: {reason(error)}. {remedy}") from error


def _parse(text: bytes, schema: type[StateKind], subject: str, refusal: type[ComposerError], remedy: str) -> StateKind:
    try:
        from_json(text, allow_inf_nan=False)  # a field of any JSON would accept NaN
        return schema.model_validate_json(text, strict=True)
    except ValidationError as error:
        problem = first_problem(error)
    except ValueError as error:
        problem = f"invalid JSON: {error}"
    raise refusal(f"{subject} is damaged: {problem}. {remedy}")


def _end_of_lines(contents: bytes) -> int:
    return contents.rfind(b"\n") + 1
