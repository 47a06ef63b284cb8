"""SVG as text. All text of a user is escaped, and characters that XML forbids are replaced."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from composer.escape import mask

_FORBIDDEN = re.compile("[\ufffe\uffff]")
"""What XML forbids beside control characters and surrogates, which ``mask`` replaces."""


def escape_svg(text: str) -> str:
    """Escape text for use between tags and in attributes."""
    return escape(_FORBIDDEN.sub("\ufffd", mask(text)), quote=False).replace('"', "&quot;")


def element(tag: str, children: Iterable[str] | str = (), **attributes: object) -> str:
    """Return one element. children: elements; of text, use ``escape_svg``. An attribute's trailing and inner underscores are
    hyphens or nothing: ``class_`` is class, ``stroke_width`` is stroke-width."""
    attribute_text = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape_svg(number(value) if isinstance(value, float) else str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    inside = children if isinstance(children, str) else "".join(children)
    return f"<{tag}{attribute_text}>{inside}</{tag}>" if inside else f"<{tag}{attribute_text}/>"


def number(value: float) -> str:
    """Return a coordinate, to a tenth."""
    return f"{value:.1f}".removesuffix(".0")
