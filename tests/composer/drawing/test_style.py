"""Text has enough contrast in light and dark, and kinds differ for colour-blind readers."""

from __future__ import annotations

import itertools
import re

import pytest

from composer.drawing.style import style
from tests.composer.eyes import EYES, contrast, lab

LOOKS = ("input", "mixing", "features", "control", "memory", "read", "after")
FLOWS = ("pairs", "query", "key", "value", "evicted", "decay", "weight", "partial")
ENOUGH, APART = 4.5, 10.0
"""Contrast that the web's guidelines ask of text; and the least distance of two colours, in CIE Lab."""


def rules(dark: bool) -> dict[str, dict[str, str]]:
    """Return the colours by selector of one scheme."""
    every = style(" ".join(f"cd-{name}" for name in (*LOOKS, *FLOWS)))
    light, _, night = every.partition("@media (prefers-color-scheme:dark)")
    rules_by_selector: dict[str, dict[str, str]] = {}
    for selectors, body in re.findall(r"([^{}]+)\{([^{}]+)\}", night if dark else light):
        for selector in selectors.split(","):
            colours = dict(re.findall(r"(fill|stroke):(#[0-9a-f]{6})", body))
            rules_by_selector.setdefault(selector.strip(), {}).update(colours)
    return rules_by_selector


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_enough_contrast(dark: bool) -> None:
    colours_of = rules(dark)
    ground, text = colours_of[".cd-ground"]["fill"], colours_of[".cd-picture text"]["fill"]
    faint = colours_of[".cd-picture .cd-detail"]["fill"]
    assert contrast(text, ground) >= ENOUGH
    for look in (*LOOKS, "pairs"):
        inside = colours_of[f".cd-{look} .cd-shape"]["fill"]
        assert contrast(text, inside) >= ENOUGH, look
        assert contrast(faint, inside) >= ENOUGH, look
    labels = [colours["fill"] for selector, colours in colours_of.items() if selector.startswith(".cd-picture .cd-label")]
    assert len(labels) == len(FLOWS) + 1  # features are a look, too
    assert all(contrast(label, ground) >= ENOUGH for label in labels)


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("dark", [False, True])
def test_queries_keys_and_values_are_distinguishable(dark: bool, eye: str) -> None:
    colours_of = rules(dark)
    colours = [colours_of[f".cd-flow.cd-{kind}"]["stroke"] for kind in ("query", "key", "value")]
    for first, other in itertools.combinations(colours, 2):
        distance = sum((a - b) ** 2 for a, b in zip(lab(first, eye), lab(other, eye), strict=True)) ** 0.5
        assert distance >= APART, (first, other, eye)
