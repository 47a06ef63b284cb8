"""The page itself, made with Gradio, and its contents for a text: mistakes with their lines, picture, costs and program.

It loads nothing from other machines, no fonts and no scripts, and reports no use.
"""

from __future__ import annotations

import os
import re
import secrets
import webbrowser
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from composer.drawing.picture import picture
from composer.errors import ComposerError
from composer.options.arguments import named_dtype
from composer.reporting.escape import escape_html
from composer.spec.code import code_of
from composer.spec.explain import explain_resolved
from composer.spec.shipped import shipped_specs
from composer.system.versions import install_command, version_of
from composer.viewing.guard import ADDRESS, TOKEN, Guard
from composer.viewing.reading import MOST_TOKENS, TYPED, EditorContext, parse_whole_number, resolve_text
from converters.shard import BYTES

if TYPE_CHECKING:
    from gradio import Blocks

MOST_LINES = 20
"""Mistakes that are shown at once."""


@dataclass(frozen=True)
class Answer:
    """HTML, and a program as Python. Of a text with a mistake, everything but the first is None."""

    status: str
    picture: str | None = None
    costs: str | None = None
    program: str | None = None


def answer(text: str, context: EditorContext, sizes: tuple[float | None, ...], tokens: float | None, dtype: str) -> Answer:
    """Return the contents of the page for a text. tokens: at which caches are compared. No input of a user raises an error."""
    try:
        length = parse_whole_number(tokens, "tokens", MOST_TOKENS)
        named_dtype(dtype)
        resolved = resolve_text(text, context, sizes)
    except ComposerError as error:
        return Answer(mistakes(str(error), text, context.called))
    drawn = picture(resolved, sequence=length, dtype=dtype)
    costs = explain_resolved(resolved, sequence=length, dtype=dtype)
    program = code_of(resolved, "its own trunk" if resolved.trunk else "these sizes", dtype=dtype).text
    status = f'<div class="right">No mistakes. Its hash is <code>{resolved.hash[:12]}…</code></div>'
    return Answer(status, drawn.svg, costs.view().html(), program)


def mistakes(message: str, text: str, called: str) -> str:
    """Return each line of an error with the line of the text that it names, as HTML."""
    lines = text.splitlines()
    rows = []
    for line in message.splitlines()[:MOST_LINES]:
        match = re.match(rf"{re.escape(called)}:(\d+)(?::\d+)?\s+(.*)", line)
        if match is None:
            rows.append(f"<p>{escape_html(line)}</p>")
            continue
        number = int(match[1])
        source_line = lines[number - 1] if 0 < number <= len(lines) else ""
        rows.append(f"<p><b>line {number}</b> {escape_html(match[2])}</p><pre>{number:>4}  {escape_html(source_line[:200])}</pre>")
    return f'<div class="wrong" role="alert">{"".join(rows)}<p>The page below shows the last spec without a mistake.</p></div>'


OLDEST = 6
"""Major version of Gradio."""
INSTALL = install_command("view")
START = "lolcats"
LABELS = dict(zip(TYPED, ("layers", "width", "heads", "key heads", "head size"), strict=True))
STYLE = """
footer{display:none!important}
.wrong{border-left:4px solid #cf222e;padding:.2em 1em;background:color-mix(in srgb,#cf222e 8%,transparent)}
.right{border-left:4px solid #1a7f37;padding:.2em 1em;background:color-mix(in srgb,#1a7f37 8%,transparent)}
.wrong pre{white-space:pre-wrap}
#picture svg{max-width:100%;height:auto}
@media (max-width:800px){#picture svg{max-width:none}}
#picture,#costs{overflow-x:auto!important}
#costs td,#costs th{padding:.2em .6em;text-align:left;vertical-align:top;border:1px solid var(--border-color-primary)}
"""


def made_with() -> Any:
    """Gradio. Raises ComposerError, with what to do, where it is missing or too old."""
    version = version_of("gradio")
    if version is None:
        raise ComposerError(f"the page is made with Gradio, which is not installed: {INSTALL}")
    if int(version.partition(".")[0]) < OLDEST:
        raise ComposerError(f"the page needs Gradio {OLDEST} or later, and {version} is installed: {INSTALL}")
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    import gradio

    return gradio


def page(text: str | None = None, place: EditorContext | None = None) -> Blocks:
    """Return the page, ready to be launched. text: the first text on the left; a shipped spec where it is left out. Raises
    ComposerError if there is no Gradio."""
    gradio, at = made_with(), place or EditorContext()
    first = shipped_specs()[START].read_text(encoding="utf-8") if text is None else text
    numbers = tuple(getattr(at.base, name) for name in TYPED)

    def answer_fields(source_text: str | None, length: float | None, dtype: str, *sizes: float | None) -> tuple[Any, ...]:
        result = answer(source_text or "", at, sizes, length, dtype)
        others = (result.picture, result.costs, result.program)
        return (result.status, *(gradio.skip() if content is None else content for content in others))

    def read_shipped(name: str) -> str:
        return shipped_specs()[name].read_text(encoding="utf-8") if name in shipped_specs() else ""

    begun = answer(first, at, numbers, 4096, "float32")
    with gradio.Blocks(title="compose view", analytics_enabled=False) as blocks:
        with gradio.Row():
            with gradio.Column(scale=2, min_width=360):
                start = gradio.Dropdown(list(shipped_specs()), value=None, label="Begin with a shipped spec", elem_id="shipped")
                code = gradio.Code(first, language="yaml", label=at.called, elem_id="spec", lines=24, max_lines=40)
                with gradio.Row():
                    typed = [
                        gradio.Number(number, label=LABELS[name], precision=0, minimum=1, min_width=90, elem_id=name)
                        for name, number in zip(TYPED, numbers, strict=True)
                    ]
                with gradio.Row():
                    tokens = gradio.Number(4096, label="tokens", precision=0, minimum=1, min_width=90, elem_id="tokens")
                    dtype = gradio.Dropdown(list(BYTES), value=at.dtype, label="computes in", min_width=120, elem_id="dtype")
            with gradio.Column(scale=3, min_width=480):
                status = gradio.HTML(begun.status, elem_id="status")
                with gradio.Tab("Picture"):
                    drawn = gradio.HTML(begun.picture or "", elem_id="picture")
                with gradio.Tab("Costs"):
                    costs = gradio.HTML(begun.costs or "", elem_id="costs")
                with gradio.Tab("Program"):
                    listing = begun.program or ""
                    program = gradio.Code(listing, language="python", label="program", elem_id="program", interactive=False)
        inputs, shown = [code, tokens, dtype, *typed], [status, drawn, costs, program]
        quiet: dict[str, Any] = {"show_progress": "hidden", "trigger_mode": "always_last", "api_visibility": "private"}
        for component in inputs:
            component.change(answer_fields, inputs, shown, **quiet)
        start.input(read_shipped, start, code, show_progress="hidden", api_visibility="private")
    return blocks


def launch(blocks: Blocks, *, port: int | None = None, open_browser: bool = False) -> str:
    """Serve the page on this machine only, in separate threads, and return its address, which ends with a token.

    Raises ComposerError.
    """
    from starlette.middleware import Middleware

    token = secrets.token_urlsafe(24)
    try:
        _, address, _ = blocks.launch(
            server_name=ADDRESS,
            server_port=port,
            app_kwargs={"middleware": [Middleware(cast("Any", Guard), token=token)]},
            prevent_thread_lock=True,
            quiet=True,
            share=False,
            **look(),
        )
    except OSError as error:
        raise ComposerError(f"the page cannot be served: {error}") from None
    address = f"{address}?{TOKEN}={token}"
    if open_browser:
        webbrowser.open(address)
    return address


def look() -> dict[str, Any]:
    """Options for launching the page: its style, with the reader's own fonts, and no uploads."""
    theme = made_with().themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "Consolas", "monospace"])
    return {"css": STYLE, "theme": theme, "ssr_mode": False, "enable_monitoring": False, "max_file_size": 1}
