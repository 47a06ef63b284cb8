"""Widths equal those of DejaVu Sans, measured from its file, and shortened or wrapped text fits."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.drawing.style import CUT, fit_text, lines_of, width
from tests.composer.drawing.looked_at import measured


@pytest.mark.parametrize("bold", [False, True])
def test_characters_are_at_most_as_wide_as_the_table(bold: bool) -> None:
    for character in string.printable.strip() + " ":
        assert measured(character, 100, bold) <= width(character, 100, bold=bold) <= measured(character, 100, bold) + 0.11, (
            character
        )
    for character in "×·…–→≤φαβσλΣéßЖ":
        assert measured(character, 100, bold) <= width(character, 100, bold=bold), character


@given(text=st.text(max_size=60), most=st.floats(20, 200), bold=st.booleans())
def test_fitted_text_fits(text: str, most: float, bold: bool) -> None:
    text_that_fits = fit_text(text, most, 11, bold=bold)
    assert width(text_that_fits, 11, bold=bold) <= most
    assert text_that_fits == text or (text_that_fits.endswith(CUT) and text.startswith(text_that_fits[: -len(CUT)]))


@given(pieces=st.lists(st.text(alphabet=string.ascii_letters + " ", min_size=1, max_size=40), min_size=1, max_size=6))
def test_lines_contain_all_pieces_in_order(pieces: list[str]) -> None:
    lines = lines_of(pieces, 120, 11)
    assert all(width(line, 11) <= 120 for line in lines)
    assert " · ".join(lines) == " · ".join(fit_text(piece, 120, 11) for piece in pieces)
