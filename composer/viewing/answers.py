"""The contents of the page for a text: mistakes with their lines, the picture, the costs, and the program."""

from __future__ import annotations

import re
from dataclasses import dataclass

from composer.arguments import named_dtype
from composer.drawing.picture import picture
from composer.errors import ComposerError
from composer.escape import escape_html
from composer.spec.code import code_of
from composer.spec.explain import explain_resolved
from composer.viewing.reading import MOST_TOKENS, EditorContext, resolve_text, whole

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
        length = whole(tokens, "tokens", MOST_TOKENS)
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
