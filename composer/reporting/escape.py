"""Escape text of files, names and models before it is written to a terminal, JSON, Markdown or HTML. A terminal executes control
sequences, and reorders or hides text at Unicode's format characters. Each such character is written as Python writes it in a
string: ``\\x1b``, ``\\u202e``, ``\\ud800``. Newlines and tabs are kept.
"""

from __future__ import annotations

import html
import re
from urllib.parse import urlsplit

_JOINERS = "\u200c\u200d"
"""They join letters and emoji. Generated text in Persian or Hindi needs them, and they neither hide nor move text."""
_UNSAFE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL and C1, so all of ESC, CSI and OSC
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"  # invisible characters
    "\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"  # zero width, separators, directions
    "\ud800-\udfff"  # lone surrogates, which no encoding has
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"  # invisible characters and tags
)
_IN_TEXT = re.compile(f"[{_UNSAFE}]")
_IN_MESSAGE = re.compile(f"[{_UNSAFE}{_JOINERS}]")
_MARKDOWN = re.compile(r"[\\`|<>]|&(?=[#\w])|(?<=])[(\[]")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_LINKED = ("http", "https")


def escape_message(text: str) -> str:
    """Return a message, a name or a table cell for a terminal."""
    return _IN_MESSAGE.sub(_in_python, text)


def escape_text(text: str) -> str:
    """Return running text, such as generated text, for a terminal. Characters that join letters and emoji are kept."""
    return _IN_TEXT.sub(_in_python, text)


def mask(text: str) -> str:
    """Return text for a picture. Each unsafe character is replaced by one character, so that the width does not change."""
    return _IN_MESSAGE.sub("\ufffd", text)


def escape_json(text: str) -> str:
    """Return a JSON document with ``\\uXXXX`` for each unsafe character in its strings. It means the same."""
    return _IN_MESSAGE.sub(_in_json, text)


def escape_html(text: str) -> str:
    """Return text for HTML, between tags and in attributes."""
    return html.escape(escape_message(text))


def escape_markdown(text: str) -> str:
    """Return text for one line of Markdown, table cells included: no HTML, no code, no links, no line breaks."""
    line = " ".join(escape_message(text).splitlines())
    return _MARKDOWN.sub(lambda match: _ENTITIES.get(match[0], f"\\{match[0]}"), line)


def markdown_code(text: str) -> str:
    """Return text as inline code of Markdown. The fence is longer than any run of backticks in the text."""
    line = " ".join(escape_message(text).splitlines())
    fence = "`" * (1 + _longest_run("`", line))
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def markdown_block(text: str, language: str) -> str:
    """Return text as a block of code in Markdown. The fence is longer than any run of backticks in the text."""
    fence = "`" * max(3, 1 + _longest_run("`", text))
    return f"{fence}{language}\n{escape_text(text).strip()}\n{fence}"


def markdown_link(text: str) -> str:
    """Return text for Markdown, as a link where it is a web address (http or https)."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return escape_markdown(text)
    if parts.scheme in _LINKED and parts.netloc and re.fullmatch(r"[!#-;=?-Z_a-z~\[\]%]+", text):
        return f"<{text}>"
    return escape_markdown(text)


def _in_python(match: re.Match[str]) -> str:
    return ascii(match[0])[1:-1]


def _in_json(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _longest_run(character: str, text: str) -> int:
    return max(map(len, re.findall(f"{character}+", text)), default=0)
