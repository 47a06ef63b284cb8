"""Text from files and models is escaped for terminals, JSON, Markdown and HTML."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest

from composer.reporting.escape import (
    escape_html,
    escape_json,
    escape_markdown,
    escape_message,
    escape_text,
    markdown_block,
    markdown_code,
    markdown_link,
    mask,
)

UNSAFE = [
    "\x00",
    "\x07",
    "\x08",
    "\r",
    "\x1b[31m",
    "\x1b]0;title\x07",
    "\x1b]8;;http://evil\x1b\\",
    "\x7f",
    "\x85",
    "\x9b31m",
    "\xad",
    "\u061c",
    "\u200b",
    "\u200e",
    "\u2028",
    "\u2029",
    "\u202a",
    "\u202e",
    "\u2060",
    "\u2066",
    "\u2069",
    "\ufeff",
    "\ud800",
    "\udce9",
    "\U000e0041",
]


@pytest.mark.parametrize("unsafe", UNSAFE, ids=ascii)
def test_unsafe_characters_are_written_as_python_writes_them(unsafe: str) -> None:
    first = unsafe[0]
    for escaped in (escape_message(f"a{unsafe}b"), escape_text(f"a{unsafe}b"), escape_html(f"a{unsafe}b"), markdown_code(unsafe)):
        assert ascii(first)[1:-1] in escaped
        assert not set(escaped) & set("\x00\x07\x08\r\x1b\x7f\x85\x9b\u200b\u202e\ud800")
        assert first not in escaped
        escaped.encode("utf-8")
    assert first not in mask(unsafe)


@pytest.mark.parametrize("unsafe", UNSAFE, ids=ascii)
def test_escaped_json_has_the_same_value(unsafe: str) -> None:
    written = escape_json(json.dumps({"a": f"x{unsafe}y"}, ensure_ascii=False))
    assert json.loads(written) == {"a": f"x{unsafe}y"}
    assert unsafe[0] not in written
    written.encode("utf-8")


def test_ordinary_text_is_unchanged() -> None:
    text = "Zürich 東京 Привет θ → ≤ 🙂\n\tnext line, 100 %"
    assert escape_message(text) == text
    assert escape_text("می\u200cخواهم 👩\u200d💻") == "می\u200cخواهم 👩\u200d💻"
    assert escape_message("a\u200cb") == "a\\u200cb"


def test_html_contains_no_tags_of_the_text() -> None:
    seen: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: seen.append(tag)  # pyright: ignore[reportAttributeAccessIssue]
    parser.feed(escape_html('<img src=x onerror="alert(1)"> \' & " \x1b'))
    assert seen == []


def test_markdown_contains_only_words_of_the_text() -> None:
    assert escape_markdown("a|b\\|c") == "a\\|b\\\\\\|c"
    assert escape_markdown("<script>`x`\n# b") == "&lt;script&gt;\\`x\\` # b"
    assert escape_markdown("[a](javascript:alert(1))") == "[a]\\(javascript:alert(1))"
    assert escape_markdown("![a][b]") == "![a]\\[b]"
    assert escape_markdown("&lt; a & b") == "&amp;lt; a & b"


def test_code_ends_where_its_text_ends() -> None:
    assert markdown_code("plain") == "`plain`"
    assert markdown_code("a``b\nc") == "```a``b c```"
    assert markdown_code("`a`") == "`` `a` ``"
    assert markdown_block("x: |\n  ```\n  <b>", "yaml") == "````yaml\nx: |\n  ```\n  <b>\n````"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://arxiv.org/abs/2410.10254", "<https://arxiv.org/abs/2410.10254>"),
        ("arXiv:2410.10254", "arXiv:2410.10254"),
        ("javascript:alert(1)", "javascript:alert(1)"),
        ("https://a.b/<script>", "https://a.b/&lt;script&gt;"),
        ("https://a.b/ [c](d)", "https://a.b/ [c]\\(d)"),
        ("http://[", "http://["),
        ("data:text/html,x", "data:text/html,x"),
    ],
)
def test_only_web_addresses_are_links(text: str, expected: str) -> None:
    assert markdown_link(text) == expected
