"""The look of the pictures, light and dark: the colours of Okabe and Ito, which colour-blind readers can distinguish, and a card
below them. A picture has its own background, so that it is legible on any page, whether or not that follows the reader's system.
"""

from __future__ import annotations

from composer.drawing.text import FAMILY

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
