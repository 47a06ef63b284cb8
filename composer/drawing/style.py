"""The look of the pictures, light and dark: text, written as SVG, and the colours.

Widths of text are those of DejaVu Sans, which ships with matplotlib. None of the usual fonts among those that the pictures name is
wider, so text that fits by this table fits in every viewer. All text of a user is escaped, and characters that XML forbids are
replaced.

The colours are those of Okabe and Ito, which colour-blind readers can distinguish, on a card below them. A picture has its own
background, so that it is legible on any page, whether or not that follows the reader's system.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from html import escape

from composer.reporting.escape import mask

FAMILY = "-apple-system, 'Segoe UI', 'Noto Sans', 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif"

# Thousandths of the font's size, from the space to the tilde.
_PLAIN = (
    "318 401 460 838 637 951 780 275 391 391 500 838 318 361 318 337 637 637 637 637 637 637 637 637 637 637 337 337 838 "
    "838 838 531 1000 685 687 699 771 632 576 775 752 295 295 656 558 863 749 788 604 788 695 635 611 732 685 989 686 611 "
    "686 391 337 391 838 500 500 613 635 550 635 616 353 635 634 278 278 580 278 975 634 612 635 635 412 521 393 634 592 "
    "818 592 592 525 637 337 637 838"
)
_BOLD = (
    "349 457 521 838 696 1002 873 307 458 458 523 838 380 416 380 366 696 696 696 696 696 696 696 696 696 696 400 400 838 "
    "838 838 581 1000 774 763 734 831 684 684 821 837 373 373 775 638 996 837 851 733 851 771 721 683 813 774 1104 771 725 "
    "726 458 366 458 838 500 500 675 716 593 716 679 436 716 712 343 343 666 343 1042 712 688 716 716 494 596 479 712 652 "
    "924 646 652 583 712 366 712 838"
)
_TABLES = {
    bold: dict(zip(map(chr, range(32, 127)), map(int, widths.split()), strict=True))
    for bold, widths in ((False, _PLAIN), (True, _BOLD))
}
_OTHER, _WIDE = 1250, 1400
"""The width of any other character, and of one with two columns of a terminal: all but a few are narrower."""
CUT = "…"


def width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of one line of text, in the units of ``size``."""
    return sum(_width_of(character, _TABLES[bold]) for character in text) * size / 1000


def _width_of(character: str, table: dict[str, int]) -> int:
    advance = table.get(character)
    if advance is not None:
        return advance
    return _WIDE if unicodedata.east_asian_width(character) in "WF" else _OTHER


def fit_text(text: str, max_width: float, size: float, *, bold: bool = False) -> str:
    """Return the text, or as much of its beginning as leaves room for ``…``."""
    if width(text, size, bold=bold) <= max_width:
        return text
    beginning = text
    while beginning and width(beginning.rstrip() + CUT, size, bold=bold) > max_width:
        beginning = beginning[:-1]
    return beginning.rstrip() + CUT


def lines_of(pieces: list[str], max_width: float, size: float, between: str = " · ") -> list[str]:
    """Return pieces one after another, in as many lines as they need. A piece that is too long for a line is cut."""
    lines: list[str] = []
    for piece in (fit_text(text, max_width, size) for text in pieces):
        longer = f"{lines[-1]}{between}{piece}" if lines else piece
        if lines and width(longer, size) <= max_width:
            lines[-1] = longer
        else:
            lines.append(piece)
    return lines


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


# What a shape is: light fill, light stroke, dark fill, dark stroke.
_SHAPES = {
    "input": ("#f1f3f5", "#57606a", "#21262d", "#8b949e"),
    "result": ("#f1f3f5", "#57606a", "#21262d", "#8b949e"),
    "pairs": ("#ffffff", "#57606a", "#161b22", "#8b949e"),
    "mixing": ("#fdf3d7", "#9a6700", "#3a2f10", "#e3b341"),
    "features": ("#fbe6f1", "#a64d79", "#3d2233", "#e79ac0"),
    "control": ("#fde5d6", "#b34700", "#40230f", "#f0883e"),
    "memory": ("#dcecf8", "#00568f", "#10304a", "#6cb6ff"),
    "read": ("#d9f1e8", "#00664b", "#0f352a", "#56d4a5"),
    "after": ("#e9e4f7", "#5b4a9e", "#2b2450", "#b7a6f5"),
}
# What flows: light, dark, and how the line is broken.
_FLOWS = {
    "hidden": ("#6e7781", "#8b949e", ""),
    "query": ("#0072b2", "#6cb6ff", ""),
    "key": ("#b34700", "#f0883e", ""),
    "value": ("#00664b", "#56d4a5", ""),
    "pairs": ("#57606a", "#b1bac4", ""),
    "evicted": ("#24292f", "#e6edf3", "7 4"),
    "features": ("#a64d79", "#e79ac0", ""),
    "decay": ("#b34700", "#f0883e", "2 3"),
    "numbers": ("#b34700", "#f0883e", "2 3"),
    "weight": ("#9a6700", "#e3b341", "2 3"),
    "sinks": ("#9a6700", "#e3b341", "2 3"),
    "partial": ("#00568f", "#6cb6ff", ""),
    "output": ("#24292f", "#e6edf3", ""),
}
_GROUND = {False: ("#ffffff", "#d0d7de", "#1f2328", "#57606a"), True: ("#0d1117", "#30363d", "#e6edf3", "#9da7b3")}
"""Colours of the card, its rim, its text, and fainter text; by whether they are dark."""
HEADS = (("#dcecf8", "#10304a"), ("#fdf3d7", "#3a2f10"), ("#d9f1e8", "#0f352a"), ("#fbe6f1", "#3d2233"), ("#fde5d6", "#40230f"))
"""Colours of the heads in the map of layers, which also have letters."""


def style(used: str) -> str:
    """Return the style sheet for the elements of a picture. All its names begin with ``cd-``, so that a page may embed the picture.

    used: the elements, as text.
    """
    always = (
        f".cd-picture text{{font-family:{FAMILY}}}"
        ".cd-flow{fill:none;stroke-width:1.5}.cd-flow.cd-evicted,.cd-flow.cd-partial,.cd-flow.cd-output{stroke-width:2.2}"
        ".cd-shape{stroke-width:1.3}.cd-memory .cd-shape{stroke-width:2}.cd-lid{fill:none;stroke-width:1.3}"
        ".cd-title,.cd-state,.cd-name{font-weight:700}.cd-marked{fill:none;stroke-width:2;stroke-dasharray:5 3}"
        + "".join(
            f".cd-flow.cd-{kind}{{stroke-dasharray:{dash}}}" for kind, (_, _, dash) in _FLOWS.items() if dash and kind in used
        )
    )
    return f"{always}{_colour(used, dark=False)}@media (prefers-color-scheme:dark){{{_colour(used, dark=True)}}}"


def _colour(used: str, *, dark: bool) -> str:
    ground, rim, text, faint = _GROUND[dark]
    rules = [
        f".cd-ground{{fill:{ground};stroke:{rim}}}",
        f".cd-picture text{{fill:{text}}}",
        f".cd-picture .cd-caption,.cd-picture .cd-detail,.cd-picture .cd-said{{fill:{faint}}}",
        f".cd-rule,.cd-cell{{stroke:{rim}}}",
        f".cd-marked{{stroke:{'#ff7b72' if dark else '#cf222e'}}}",
    ]
    for look, (fill, stroke, dark_fill, dark_stroke) in _SHAPES.items():
        if f"cd-{look}" not in used:
            continue
        inside, line = (dark_fill, dark_stroke) if dark else (fill, stroke)
        rules.append(f".cd-{look} .cd-shape{{fill:{inside};stroke:{line}}}")
        if look == "memory":
            rules.append(f".cd-{look} .cd-lid{{stroke:{line}}}")
    for kind, (light, darker, _) in _FLOWS.items():
        if f"cd-{kind}" not in used:
            continue
        colour = darker if dark else light
        rules.append(f".cd-flow.cd-{kind}{{stroke:{colour}}}.cd-tip.cd-{kind},.cd-picture .cd-label.cd-{kind}{{fill:{colour}}}")
    rules += [f".cd-head{index}{{fill:{pair[dark]}}}" for index, pair in enumerate(HEADS) if f"cd-head{index}" in used]
    return "".join(rules)
