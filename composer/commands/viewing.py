"""``view``: a page on which one edits a spec."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from composer.arguments import Reference
from composer.errors import SpecError, in_words
from composer.files import failing_as
from composer.numbers import check_count
from composer.spec.inherit import find_spec, not_found, shown
from composer.spec.shipped import shipped_specs
from composer.viewing.page import launch, page
from composer.viewing.reading import MOST_TEXT, EditorContext
from composer.weights.dimensions import dimensions
from composer.weights.sources import describe_model
from converters.bounded import read_bytes

if TYPE_CHECKING:
    from gradio import Blocks

LAST_PORT = 65_535


@dataclass(frozen=True)
class Served:
    """A page that is being served. address: where a browser finds it."""

    address: str
    made: Blocks

    def wait(self) -> None:
        """Until Ctrl-C."""
        self.made.block_thread()

    def close(self) -> None:
        """Ends it."""
        self.made.close(verbose=False)


@in_words
def view(
    spec: str | Path | None = None,
    source: Reference | None = None,
    *,
    port: int | None = None,
    browser: bool = True,
    revision: str | None = None,
) -> Served:
    """Serves a page on this machine alone: YAML on the left, what becomes of it on the right. It runs until ``close`` or the end.

    spec: a file or the name of a shipped one, which is read and never written. source: whose sizes it begins with; left out, those
    of Llama-3.2-1B. port: left out, the first free one from 7860. browser: opens the page. Raises ComposerError, also where Gradio
    (the extra ``view``) is not installed.

        composer.view("lolcats", "teacher").wait()
    """
    if port is not None:
        check_count("--port", port, most=LAST_PORT)
    text, place = _opened(spec)
    if source is not None:
        place = EditorContext(place.called, place.folder, dimensions(describe_model(source, revision).trunk))
    made = page(text, place)
    return Served(launch(made, port=port, open_browser=browser), made)


def _opened(spec: str | Path | None) -> tuple[str | None, EditorContext]:
    """The text, and where it stands: what a file extends is looked for beside it. Raises SpecError."""
    if spec is None:
        return None, EditorContext()
    path = find_spec(str(spec), Path())
    if path is None:
        raise SpecError(not_found(str(spec), Path()))
    own = path not in shipped_specs().values()
    try:
        with failing_as(SpecError, f"{shown(path)}: cannot be read"):
            text = read_bytes(path, 4 * MOST_TEXT).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SpecError(f"{shown(path)}: not UTF-8: save the file in that encoding") from None
    return text, EditorContext(path.name, path.parent if own else None)
