"""The palette is distinguishable with every kind of colour vision and on white. Ticks, shares and legends have their formats."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest

from composer.inspection.pictures.attention import OF_MEMORIES
from composer.reporting.plotting import (
    COLOURS,
    LINES,
    STYLE,
    WIDTH,
    add_title,
    by_powers,
    colour,
    label,
    legend,
    line,
    marker,
    named_ticks,
    plotting,
    whole_ticks,
    within_shares,
)
from tests.composer.eyes import EYES, contrast, lab
from tests.composer.legible import assert_legible, words_of

APART = 15.0
"""CIE 1976 colour difference: 2.3 is just noticed."""


def nearest(colours: tuple[str, ...], eyes: str) -> float:
    return min(math.dist(lab(first, eyes), lab(other, eyes)) for first, other in itertools.combinations(colours, 2))


@pytest.mark.parametrize("eyes", EYES)
def test_colours_are_distinguishable(eyes: str) -> None:
    assert nearest(COLOURS, eyes) > APART


def test_the_distance_finds_colours_that_are_confused() -> None:
    """The distance finds matplotlib's green, red and orange, and two greens, too similar."""
    assert nearest(("#2ca02c", "#d62728", "#ff7f0e"), "all colours") > 40
    assert nearest(("#2ca02c", "#d62728"), "no middle cones") < APART
    assert nearest(("#2ca02c", "#ff7f0e"), "no long cones") < APART
    assert nearest(("#009E73", "#10A078"), "all colours") < APART


def test_colours_are_visible_on_white() -> None:
    """The yellow of Okabe and Ito would have 1.3."""
    for hex_colour in COLOURS:
        assert contrast(hex_colour, "#ffffff") > 2.2


def test_memories_have_colours_of_the_palette() -> None:
    assert sorted(OF_MEMORIES) == sorted(COLOURS)


def test_lines_of_one_colour_are_dashed_differently_and_marked_differently() -> None:
    looks = {(colour(index), str(line(index))) for index in range(len(COLOURS) * len(LINES))}
    assert len(looks) == len(COLOURS) * len(LINES)
    assert len({(colour(index), marker(index)) for index in range(2 * len(COLOURS))}) == 2 * len(COLOURS)


@pytest.mark.parametrize(("first", "last"), [(0, 3), (-3, 0), (0, 1), (2, 2), (0, 12_000)])
def test_ticks_are_whole_numbers(first: int, last: int) -> None:
    with plotting() as pyplot:
        figure, axis = pyplot.subplots()
        axis.plot(range(first, last + 1), [0] * (last + 1 - first))
        axis.set_yticks([])
        whole_ticks(axis)
        words = [text for text, _, _ in words_of(figure)]
        pyplot.close(figure)
    assert words
    assert all(float(word.replace(",", "").replace("\N{MINUS SIGN}", "-")).is_integer() for word in words)
    assert len(set(words)) == len(words)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda figure, axis: figure.set_size_inches(13, 4), "wider than a README"),
        (lambda figure, axis: axis.set_xlabel("x", fontsize=7), "'x' is small"),
        (lambda figure, axis: axis.text(0.5, 0.5, "one"), "meets"),
        (lambda figure, axis: axis.text(0.99, 0.2, "far too long to have room"), "leaves the picture"),
        (lambda figure, axis: axis.set_ylabel(""), "no name"),
        (lambda figure, axis: figure.suptitle(""), "no title"),
    ],
)
def test_illegible_pictures_are_detected(spoil: Callable[[Any, Any], Any], words: str) -> None:
    with plotting() as pyplot:
        figure, axis = pyplot.subplots(figsize=(WIDTH, 4), layout=None)
        axis.set(xlabel="x", ylabel="y")
        axis.text(0.5, 0.5, "two")
        add_title(figure, "title")
        assert_legible(figure)
        spoil(figure, axis)
        with pytest.raises(AssertionError, match=words):
            assert_legible(figure)
        pyplot.close(figure)


def test_an_axis_of_powers_without_a_number_above_0_stays_linear() -> None:
    with plotting() as pyplot:
        figure, (some, none) = pyplot.subplots(1, 2)
        some.plot([0, 1], [0.0, 2.0])
        none.plot([0, 1], [0.0, 0.0])
        for axis in (some, none):
            by_powers(axis)
        assert (some.get_yscale(), none.get_yscale()) == ("log", "linear")
        pyplot.close(figure)


def test_names_are_thinned_where_there_is_no_room() -> None:
    with plotting() as pyplot:
        figure, axis = pyplot.subplots()
        named_ticks(axis, [str(place) for place in range(10)], upright=4, limit=5)
        assert [label.get_text() for label in axis.get_xticklabels()] == ["0", "2", "4", "6", "8"]
        assert {label.get_rotation() for label in axis.get_xticklabels()} == {90}
        named_ticks(axis, ["a", "b"], upright=4, limit=5)
        assert {label.get_rotation() for label in axis.get_xticklabels()} == {0}
        pyplot.close(figure)


def test_names_are_no_formulas() -> None:
    """Dollar signs are not mathematics, and a name with a leading underscore is in the legend."""
    with plotting() as pyplot:
        figure, axis = pyplot.subplots(layout="constrained")
        for name in ("_mine", "run$1_$2"):
            axis.plot([0, 1], label=label(name))
        add_title(figure, "run$1_$2")
        legend(figure, axis)
        figure.canvas.draw()
        assert len(figure.legends[0].get_texts()) == 2
        pyplot.close(figure)


def test_legends_have_unique_entries() -> None:
    with plotting() as pyplot:
        figure, axes = pyplot.subplots(1, 2, layout="constrained")
        for axis, names in zip(axes, ("ab", "bc"), strict=True):
            for name in names:
                axis.plot([0, 1], label=name)
        legend(figure, *axes)
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"]
        pyplot.close(figure)


@pytest.mark.parametrize(
    ("mean", "spread", "wanted"), [(0.5, 0.1, (0.1, 0.1)), (0.9, 0.3, (0.3, 0.1)), (0.1, 0.3, (0.1, 0.3)), (1.0, 0.2, (0.2, 0))]
)
def test_spreads_of_shares_are_between_0_and_1(mean: float, spread: float, wanted: tuple[float, float]) -> None:
    assert within_shares(mean, spread) == pytest.approx(wanted)


def test_settings_of_users_are_ignored() -> None:
    import matplotlib as mpl

    with mpl.rc_context({"text.usetex": True, "savefig.bbox": "tight", "font.size": 40}):
        with plotting() as pyplot:
            assert (pyplot.rcParams["text.usetex"], pyplot.rcParams["savefig.bbox"]) == (False, None)
            assert pyplot.rcParams["font.size"] == STYLE["font.size"]
        assert mpl.rcParams["text.usetex"] is True
