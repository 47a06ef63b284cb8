"""The claims, a file a paper."""

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
"""The groups that are claims of the papers, tried on the teacher that ships with this project."""
INTRODUCTIONS = {"Speed": speed.INTRODUCTION, "A second teacher": second.INTRODUCTION}
"""What the claims of a group have in common, in words."""
