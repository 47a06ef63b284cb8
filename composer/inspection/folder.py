"""The folder of a report: pictures, the numbers of each, and one HTML page with all pictures, which needs no other file."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import JsonValue, StringConstraints

from blocks.part import Closed
from composer.errors import InspectionError
from composer.inspection.findings import Answered, Findings, plain
from composer.inspection.pictures import draw_all
from composer.reporting.escape import escape_html
from composer.runs.store import RunStore
from composer.system import files
from composer.system.json_files import read_state, write_state
from composer.system.versions import versions_of

PACKAGES = ("attention-composer", "torch")
CSS = """
:root { color-scheme: light dark; --text: #1b1b1b; --back: #fcfcfc; --soft: #5a5a5a; --line: #d5d5d5; --mark: #b84a00; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8e8e8; --back: #17181a; --soft: #a8a8a8; --line: #3a3c40; --mark: #ffa566; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem; }
p.says, figcaption, .soft { color: var(--soft); }
img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; display: block; }
figure { margin: 1rem 0; overflow-x: auto; }
@media (max-width: 800px) { figure img { max-width: none; width: 44rem; } }
table { border-collapse: collapse; }
td, th { padding: .2rem .8rem .2rem 0; text-align: left; border-bottom: 1px solid var(--line); }
.scroll { overflow-x: auto; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; max-height: 14rem; overflow-y: auto;
  border: 1px solid var(--line); padding: .6rem; border-radius: 4px; }
mark { background: none; color: var(--mark); font-weight: 700; text-decoration: underline; }
nav { margin: 1rem 0; }
nav a { color: inherit; margin-right: .8rem; white-space: nowrap; }
"""


@dataclass(frozen=True)
class Shot:
    """A picture on the page. image: a PNG."""

    name: str
    title: str
    says: str
    image: bytes


def page(findings: Findings, shots: Sequence[Shot]) -> str:
    """Return the page as HTML."""
    title = f"Inside {findings.model}"
    links = " ".join(f'<a href="#{escape_html(shot.name)}">{escape_html(shot.title)}</a>' for shot in shots)
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
            f"<title>{escape_html(title)}</title>",
            f"<style>{CSS}</style></head><body>",
            f"<h1>{escape_html(title)}</h1>",
            *_about(findings),
            f"<nav>{links}</nav>",
            *(line for shot in shots for line in _figure(shot)),
            "</body></html>\n",
        )
    )


def _about(findings: Findings) -> Iterator[str]:
    whose = ((findings.model, findings.answered), (findings.teacher, findings.teacher_answered))
    rows = [
        ("heads", findings.spec),
        ("beside", findings.teacher or "nothing"),
        ("text", f"{findings.text}, {len(findings.tokens):,} tokens; {len(findings.queries):,} queries were inspected"),
        *((f"{who} answers", _answers_in_words(answered)) for who, answered in whose if answered is not None),
        (
            "weights times values",
            f"at most {max(head.error for head in findings.heads):.1e} of the largest number from the heads' answers",
        ),
        ("written by", ", ".join(f"{name} {version}" for name, version in versions_of(PACKAGES).items())),
    ]
    yield '<div class="scroll"><table>'
    yield from (f"<tr><th>{escape_html(name)}</th><td>{escape_html(str(value))}</td></tr>" for name, value in rows)
    yield "</table></div>"
    places = {column for places in findings.found_at for column in places}
    marked = places | set(findings.answers)
    words = (
        f"<mark>{escape_html(token)}</mark>" if column in marked else escape_html(token)
        for column, token in enumerate(findings.tokens)
    )
    underlined = "its answer, and earlier places of the answer," if places else "its answer"
    yield f'<p class="soft">The text{f"; {underlined} underlined" if findings.answers else ""}:</p>'
    yield f'<div class="text">{" ".join(words)}</div>'


def _answers_in_words(answered: Answered) -> str:
    right, loss = sum(answered.right), sum(answered.loss) / len(answered.loss)
    return f"{right} of {len(answered.right)} tokens right, {loss:.3f} nats a token"


def _figure(shot: Shot) -> Iterator[str]:
    encoded = base64.b64encode(shot.image).decode("ascii")
    yield f'<h2 id="{escape_html(shot.name)}">{escape_html(shot.title)}</h2><p class="says">{escape_html(shot.says)}</p>'
    yield f'<figure><img alt="{escape_html(shot.title)}" src="data:image/png;base64,{encoded}">'
    yield f'<figcaption class="soft">{escape_html(shot.name)}.png, numbers in {escape_html(shot.name)}.json</figcaption></figure>'


SUMMARY, PAGE = "inspection.json", "report.html"
OF_A_HEAD = ("layer", "name", "numbers", "heads", "memories", "error", "found", "teacher_found")
"""Fields of a group of heads in the summary; all others are in the JSON files beside the pictures."""
PictureName = Annotated[str, StringConstraints(pattern=r"^[a-z]+(-[a-z0-9]+)*$")]
"""The name of a picture's files, without an ending."""
RESOLUTION = 110
"""Dots an inch: of pictures 8.8 inches wide, 968 columns."""


STORE = RunStore("inspection", InspectionError, mark=SUMMARY)
"""The names of the other files are in the summary."""


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
    """Raise InspectionError if a report cannot be written, before the model is run."""
    folder = folder.expanduser()
    if STORE.check(folder, force=force):
        _list_earlier_files(folder)  # a damaged summary is a mistake, too


def write(findings: Findings, folder: Path, *, force: bool) -> list[Path]:
    """Write the report. Files of an earlier one are removed, and the page is written last. Raises InspectionError."""
    folder = folder.expanduser()
    with STORE.hold(folder, force=force), STORE.writing(folder):
        return _write(findings, folder)


def _write(findings: Findings, folder: Path) -> list[Path]:
    shots: list[Shot] = []
    contents: dict[Path, bytes] = {}
    for picture in draw_all(findings):
        image = io.BytesIO()
        picture.figure.savefig(image, dpi=RESOLUTION, format="png", metadata={"Software": None})
        shots.append(Shot(picture.name, picture.title, picture.says, image.getvalue()))
        numbers = json.dumps(plain(picture.data), allow_nan=False) + "\n"
        contents |= {folder / f"{picture.name}.png": image.getvalue(), folder / f"{picture.name}.json": numbers.encode()}
    document = plain(findings)
    heads = [{name: head[name] for name in OF_A_HEAD} for head in document["heads"]]
    summary = Summary.model_validate({**document, "heads": heads, "pictures": [shot.name for shot in shots]})
    for name in _list_earlier_files(folder):
        (folder / name).unlink(missing_ok=True)
    # The summary is written first: it marks the folder as a report, which a call with --force may replace.
    write_state(folder / SUMMARY, summary)
    for path, content in contents.items():
        with files.whole_file(path) as partial:
            partial.write_bytes(content)
    files.write_whole(folder / PAGE, page(findings, shots))
    return [*contents, folder / SUMMARY, folder / PAGE]


def _list_earlier_files(folder: Path) -> list[str]:
    """Return the names of the files that an earlier report wrote in the folder. Raises InspectionError if its summary is
    damaged."""
    remedy = f"Remove {folder}, or choose another --out."
    try:
        summary = read_state(folder / SUMMARY, Summary, InspectionError, remedy)
    except FileNotFoundError:
        return []
    return [PAGE, *(f"{name}.{kind}" for name in summary.pictures for kind in ("png", "json"))]
