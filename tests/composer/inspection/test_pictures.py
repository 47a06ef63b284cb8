"""Pictures of an inspection are legible, each memory has one colour in all of them, and there are no empty panels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex

import composer
from composer.inspection.findings import Findings
from composer.inspection.pictures import draw_all
from composer.inspection.pictures.attention import OF_MEMORIES, DrawnFigure, memory_colours
from composer.inspection.pictures.parts import LEAST
from composer.reporting.plotting import offscreen
from tests.composer.inspection.conftest import TEACHER, student
from tests.composer.legible import assert_legible

ONE_LAYER = ("gated-delta", "lola", "latte-macchiato")
"""Specs whose layers are alike, so that one layer is inspected. All layers of lawcat are drawn beside each other."""
SIZES = {"lola": ["head.memory.0.size=16", "head.memory.1.size=8"], "latte-macchiato": ["head.memory.0.size=16"]}
"""Small enough that pairs fall in a short text."""
WINDOW, LATENTS = OF_MEMORIES[3], OF_MEMORIES[0]


Found = Callable[[str], Findings]
Pictures = Callable[[str], list[DrawnFigure]]
SPECS = ("lawcat", "lola", "latte-macchiato", "gated-delta", "mixed-heads")
"""Of states with convolutions and gates a channel, of three memories, of latents, of the delta rule with gates a head, and of heads
that differ."""


@pytest.fixture(scope="module")
def findings_of(tokenizer: Any) -> Found:
    """Return the findings of a spec's student, computed at first use."""

    @cache
    def inspected(spec: str) -> Findings:
        model = student(spec, *SIZES.get(spec, ()))
        layers = [0] if spec in ONE_LAYER else None
        looked = {"teacher": TEACHER, "tasks": "passkey", "length": 96, "queries": 8, "layers": layers}
        return composer.inspect(model, tokenizer=tokenizer, **looked)

    return inspected


@pytest.fixture(scope="module")
def pictures(findings_of: Found) -> Iterator[Pictures]:
    """Return the pictures of a spec's student, still open."""
    kept: dict[str, list[DrawnFigure]] = {}

    def of(spec: str) -> list[DrawnFigure]:
        if spec not in kept:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(offscreen(), "close", lambda _: None)
                kept[spec] = list(draw_all(findings_of(spec)))
        return kept[spec]

    yield of
    for picture in chain.from_iterable(kept.values()):
        offscreen().close(picture.figure)


@pytest.mark.parametrize("spec", SPECS)
def test_all_pictures_are_legible(pictures: Pictures, spec: str) -> None:
    names = []
    for picture in pictures(spec):
        assert_legible(picture.figure)
        assert picture.figure.get_suptitle() == f"{picture.title} (model)"
        names.append(picture.name)
    assert {"answers", "weights-0", "spectra", "likeness", "norms"} <= set(names)


def test_a_memory_has_its_colour_in_every_picture_of_every_model(pictures: Pictures) -> None:
    seen: dict[str, set[str]] = {}
    for picture in chain.from_iterable(map(pictures, SPECS)):
        if picture.name.partition("-")[0] not in ("shares", "stands"):
            continue
        (legend,) = picture.figure.legends
        for text, patch in zip(legend.get_texts(), legend.get_patches(), strict=True):
            seen.setdefault(text.get_text(), set()).add(to_hex(patch.get_facecolor()).upper())
    assert set(seen) >= {"window", "sparse", "state", "latents"}
    assert all(len(colours) == 1 for colours in seen.values())
    assert len(set.union(*seen.values())) == len(seen)
    assert seen["window"] == {WINDOW}


def test_two_of_a_model_never_share_a_colour(findings_of: Found) -> None:
    (first, *_) = findings_of("lola").heads
    names = ("full", "latents", "again", "window")
    head = first.model_copy(update={"memories": names, "kinds": ("full", "latents", "window", "window"), "shares": {"sinks": None}})
    colours = memory_colours(findings_of("lola").model_copy(update={"heads": (head,)}))
    assert set(colours) == {*names, "sinks"}
    assert len(set(colours.values())) == len(colours)
    assert WINDOW in (colours["window"], colours["again"])
    assert LATENTS in (colours["full"], colours["latents"])


def test_there_is_no_empty_panel(pictures: Pictures) -> None:
    """The delta rule has negative weights, so they have no divergence."""
    for spec, panels in (("lawcat", 4), ("gated-delta", 3)):
        for picture in pictures(spec):
            if picture.name == "likeness":
                visible = [axis for axis in picture.figure.axes if axis.get_visible()]
                assert len(visible) == panels
                assert all(axis.has_data() for axis in visible)
                assert any("KL" in axis.get_ylabel() for axis in visible) == (panels == 4)


def test_half_lives_of_heads_are_dots(pictures: Pictures) -> None:
    for spec, dots in (("lawcat", False), ("gated-delta", True)):
        for picture in pictures(spec):
            if picture.name == "half-lives":
                (legend,) = picture.figure.legends
                handles = legend.get_lines()
                assert {handle.get_marker() for handle in handles} == {"o" if dots else "None"}
                assert {handle.get_linestyle() == "None" for handle in handles} == {dots}


def test_panels_have_enough_room(pictures: Pictures) -> None:
    """Panels that share an axis have the height of the highest, and a spectrum ends at its stated length."""
    for picture in pictures("lawcat"):
        if picture.name not in ("recall", "conv-taps-key", "spectra"):
            continue
        picture.figure.draw_without_rendering()
        if picture.name != "spectra":
            for axis in picture.figure.axes:
                numbers = np.concatenate([line.get_ydata() for line in axis.lines])
                assert np.nanmax(numbers) <= axis.get_ylim()[1]
                assert axis.get_ylim()[0] == 0
        else:
            for axis in picture.figure.axes:
                assert axis.get_ylim()[0] == LEAST
                assert all(np.nanmin(line.get_ydata()) >= LEAST for line in axis.lines)
