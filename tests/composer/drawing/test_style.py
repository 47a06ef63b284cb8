"""The pictures' colours: text stands out from what is below it, light and dark, and kinds differ for the colour-blind, too."""

from __future__ import annotations

import itertools
import re

import pytest

from composer.drawing.style import style

NORMAL = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
# Viénot, Brettel and Mollon 1999, on linear RGB.
EYES = {
    "all colours": NORMAL,
    "no long cones": ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0)),
    "no middle cones": ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0)),
}
LOOKS = ("input", "mixing", "features", "control", "memory", "read", "after")
FLOWS = ("pairs", "query", "key", "value", "fallen", "decay", "weight", "partial")
ENOUGH, APART = 4.5, 10.0
"""Contrast that the web's guidelines ask of text; and the least distance of two colours, in CIE Lab."""


def rules(dark: bool) -> dict[str, dict[str, str]]:
    """The colours by selector, of one scheme."""
    every = style(" ".join(f"cd-{name}" for name in (*LOOKS, *FLOWS)))
    light, _, night = every.partition("@media (prefers-color-scheme:dark)")
    found: dict[str, dict[str, str]] = {}
    for selectors, body in re.findall(r"([^{}]+)\{([^{}]+)\}", night if dark else light):
        for selector in selectors.split(","):
            colours = dict(re.findall(r"(fill|stroke):(#[0-9a-f]{6})", body))
            found.setdefault(selector.strip(), {}).update(colours)
    return found


def linear(colour: str) -> tuple[float, ...]:
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    return tuple(part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)


def contrast(one: str, other: str) -> float:
    weights = (0.2126, 0.7152, 0.0722)
    light = sorted(sum(w * part for w, part in zip(weights, linear(colour), strict=True)) for colour in (one, other))
    return (light[1] + 0.05) / (light[0] + 0.05)


def lab(colour: str, eye: str) -> tuple[float, ...]:
    seen = [max(0.0, sum(weight * part for weight, part in zip(row, linear(colour), strict=True))) for row in EYES[eye]]
    xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.089)
    x, y, z = (sum(w * part for w, part in zip(row, seen, strict=True)) / top for row, top in zip(xyz, white, strict=True))
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out(dark: bool) -> None:
    found = rules(dark)
    ground, text = found[".cd-ground"]["fill"], found[".cd-picture text"]["fill"]
    faint = found[".cd-picture .cd-detail"]["fill"]
    assert contrast(text, ground) >= ENOUGH
    for look in (*LOOKS, "pairs"):
        inside = found[f".cd-{look} .cd-shape"]["fill"]
        assert contrast(text, inside) >= ENOUGH, look
        assert contrast(faint, inside) >= ENOUGH, look
    labels = [colours["fill"] for selector, colours in found.items() if selector.startswith(".cd-picture .cd-label")]
    assert len(labels) == len(FLOWS) + 1  # features are a look, too
    assert all(contrast(label, ground) >= ENOUGH for label in labels)


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("dark", [False, True])
def test_queries_keys_and_values_are_told_apart(dark: bool, eye: str) -> None:
    found = rules(dark)
    colours = [found[f".cd-flow.cd-{kind}"]["stroke"] for kind in ("query", "key", "value")]
    for one, other in itertools.combinations(colours, 2):
        distance = sum((a - b) ** 2 for a, b in zip(lab(one, eye), lab(other, eye), strict=True)) ** 0.5
        assert distance >= APART, (one, other, eye)
