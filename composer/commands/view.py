"""``view``: a page on which one edits a spec."""

from __future__ import annotations

import webbrowser
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from composer.errors import SpecError, translate_errors
from composer.options.classes import argument, function_of, option, options_class
from composer.options.command import Screen, command
from composer.options.shared import PartsOption, SourceOfRevision, to_optional_text
from composer.reporting.terminal import say
from composer.spec.inherit import find_spec, not_found, short_path
from composer.spec.shipped import shipped_specs
from composer.system.files import failing_as
from composer.viewing.page import launch, page
from composer.viewing.reading import MOST_TEXT, EditorContext
from composer.weights.config import dimensions
from composer.weights.sources import describe_model
from converters.bounded import read_bytes

if TYPE_CHECKING:
    from gradio import Blocks

LAST_PORT = 65_535


@dataclass(frozen=True)
class Served:
    """A page that is being served. address: where a browser finds it."""

    address: str
    blocks: Blocks

    def wait(self) -> None:
        """Until Ctrl-C."""
        self.blocks.block_thread()

    def close(self) -> None:
        """Ends it."""
        self.blocks.close(verbose=False)


@options_class
class OfShownSpec(PartsOption):
    spec: str | None = argument(
        "A YAML file, or the name of a shipped spec. It is read, and never written.", default=None, converter=to_optional_text
    )


@options_class
class ViewOptions(SourceOfRevision, OfShownSpec):
    """Edit a spec on a web page.

    On the left is the YAML. On the right, as you type, are mistakes with their lines, the picture, the program and its cost. The
    sizes are the source's, if one is named, otherwise Llama-3.2-1B's, and can be changed on the page. The page is served on this
    machine alone, and needs Gradio: pip install '.[view]'.
    """

    example: ClassVar[str] = 'composer.view("lolcats", "teacher").wait()'
    port: int | None = option(
        "Port of the page. Left out, the first free one from 7860.", default=None, minimum=1, maximum=LAST_PORT
    )
    browser: bool = option("Open the page in a browser.", default=True, flags=("--browser/--no-browser",))


@translate_errors
def run_view(options: ViewOptions) -> Served:
    text, place = _read_spec(options.spec)
    if options.source is not None:
        trunk = describe_model(options.source, options.revision).trunk
        place = EditorContext(place.called, place.folder, dimensions(trunk), trunk.dtype)  # as `explain` counts
    blocks = page(text, place)
    return Served(launch(blocks, port=options.port, open_browser=options.browser), blocks)


view = function_of(ViewOptions, run_view)


def _read_spec(spec: str | None) -> tuple[str | None, EditorContext]:
    """Return the text, and its place: files that it extends are looked for beside it. Raises SpecError."""
    if spec is None:
        return None, EditorContext()
    path = find_spec(spec, Path())
    if path is None:
        raise SpecError(not_found(spec, Path()))
    is_own = path not in shipped_specs().values()
    try:
        with failing_as(SpecError, f"{short_path(path)}: cannot be read"):
            text = read_bytes(path, 4 * MOST_TEXT).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SpecError(f"{short_path(path)}: not UTF-8: save the file in that encoding") from None
    return text, EditorContext(path.name, path.parent if is_own else None)


@command(ViewOptions)
def view_command(options: ViewOptions, screen: Screen) -> None:
    served = run_view(replace(options, browser=False))
    say(f"{served.address}  (Ctrl-C ends it)")
    if options.browser:  # after the address, because a browser in a terminal returns when it is closed
        webbrowser.open_new_tab(served.address)
    served.wait()
