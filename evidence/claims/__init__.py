"""The claims, with a module for each paper or subject."""

from __future__ import annotations

from evidence.claims import latte, lawcat, lola, lolcats, ours, second, selecting, speed
from evidence.claims.claim import Claim

CLAIMS: dict[str, tuple[Claim, ...]] = {
    "LAWCAT": lawcat.CLAIMS,
    "LoLCATs": lolcats.CLAIMS,
    "LoLA": lola.CLAIMS,
    "Latte": latte.CLAIMS,
    "Speed": speed.CLAIMS,
    "Compositions of this project": ours.CLAIMS,
    "A second teacher": second.CLAIMS,
    "Which layers to keep": selecting.CLAIMS,
}
PAPERS = ("LAWCAT", "LoLCATs", "LoLA", "Latte", "Speed")
"""The groups with claims of papers, tested on the shipped teacher."""
INTRODUCTIONS = {"Speed": speed.INTRODUCTION, "A second teacher": second.INTRODUCTION}
"""The introductions of groups."""
