"""The folder of a report: pictures, the numbers behind each, and one page that a browser opens by itself."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Annotated

from pydantic import JsonValue, StringConstraints

from blocks.part import Closed
from composer import files
from composer.errors import InspectionError
from composer.inspection.findings import Findings, plain
from composer.inspection.page import Shot, page
from composer.inspection.pictures import drawn
from composer.locks import check_no_file, working_in
from composer.state import read_state, write_state

SUMMARY, PAGE = "inspection.json", "report.html"
OF_A_HEAD = ("layer", "name", "first", "heads", "memories", "error", "found", "teacher_found")
"""Fields of a group of heads in the summary; all others are in the JSON files beside the pictures."""
PictureName = Annotated[str, StringConstraints(pattern=r"^[a-z]+(-[a-z0-9]+)*$")]
"""The name of a picture's files, without an ending."""
RESOLUTION = 110
"""Dots an inch: of pictures 8.8 inches wide, 968 columns."""


class Summary(Closed):
    """The contents of ``inspection.json``: the findings without the numbers of each head, and the names of the pictures."""

    model: str
    teacher: str | None
    spec: str
    text: str
    tokens: tuple[str, ...]
    answers: tuple[int, ...]
    found_at: tuple[tuple[int, ...], ...]
    queries: tuple[int, ...]
    bin: int
    answered: dict[str, JsonValue] | None
    teacher_answered: dict[str, JsonValue] | None
    stream: dict[str, JsonValue] | None
    heads: tuple[dict[str, JsonValue], ...]
    pictures: tuple[PictureName, ...]


def check_place(folder: Path, *, force: bool) -> None:
    """Raises InspectionError where a report cannot stand there."""
    folder = folder.expanduser()
    check_no_file(folder, InspectionError)
    if not folder.is_dir() or not files.visible_in(folder):
        return
    if not (folder / SUMMARY).is_file():
        raise InspectionError(f"{folder} holds no {SUMMARY}, so no inspection wrote it. Move it away, or choose another --out.")
    if not force:
        raise InspectionError(f"{folder} holds a report already. Choose another --out, or replace it: --force.")
    _written_before(folder)  # a damaged summary is an error before the model is run


def write(found: Findings, folder: Path) -> list[Path]:
    """Write the report. Files of an earlier one are removed, and the page is written last. Raises InspectionError."""
    folder = folder.expanduser()
    failed = f"{folder} cannot be written to"
    with working_in(folder, InspectionError, "Another inspection writes to"), files.failing_as(InspectionError, failed):
        return _write(found, folder)


def _write(found: Findings, folder: Path) -> list[Path]:
    shots: list[Shot] = []
    contents: dict[Path, bytes] = {}
    for picture in drawn(found):
        image = io.BytesIO()
        picture.figure.savefig(image, dpi=RESOLUTION, format="png", metadata={"Software": None})
        shots.append(Shot(picture.name, picture.title, picture.says, image.getvalue()))
        numbers = json.dumps(plain(picture.data), allow_nan=False) + "\n"
        contents |= {folder / f"{picture.name}.png": image.getvalue(), folder / f"{picture.name}.json": numbers.encode()}
    whole = plain(found)
    heads = [{name: head[name] for name in OF_A_HEAD} for head in whole["heads"]]
    summary = Summary.model_validate({**whole, "heads": heads, "pictures": [shot.name for shot in shots]})
    for name in _written_before(folder):
        (folder / name).unlink(missing_ok=True)
    # The summary goes first: it says that the folder is a report's, which a call with --force may replace.
    write_state(folder / SUMMARY, summary)
    for path, content in contents.items():
        with files.whole(path) as partial:
            partial.write_bytes(content)
    files.write_whole(folder / PAGE, page(found, shots))
    return [*contents, folder / SUMMARY, folder / PAGE]


def _written_before(folder: Path) -> list[str]:
    """The names of the files that an earlier report wrote in the folder. Raises InspectionError where its summary is damaged."""
    remedy = f"Remove {folder}, or choose another --out."
    try:
        summary = read_state(folder / SUMMARY, Summary, InspectionError, remedy)
    except FileNotFoundError:
        return []
    return [PAGE, *(f"{name}.{kind}" for name in summary.pictures for kind in ("png", "json"))]
