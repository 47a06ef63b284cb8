"""What no paper has: the best of our compositions against the students of the four papers."""

from __future__ import annotations

from collections.abc import Mapping

from evidence.claims.claim import LAWCAT, LOLCATS, PASSKEY, RECALL, TEACHER, Claim
from evidence.verdict import Place, above

LOLA, MACCHIATO, BEST = "lola-full/lola", "full/macchiato-full", "full/alternating-delta"
ROWS = {"teacher": TEACHER, "LoLCATs": LOLCATS, "LoLA": LOLA, "LAWCAT": LAWCAT, "Macchiato": MACCHIATO, "alternating-delta": BEST}


def best(title: str, rows: Mapping[str, str], columns: tuple[str, ...], remark: str) -> Claim:
    """By the mean of all columns. rows: as ``ROWS`` has them, the teacher first and our composition last."""
    *papers, (own, run) = list(rows.items())[1:]
    return Claim(
        title,
        "specs/alternating-delta.yaml",
        "Windows in every other layer, a gated delta rule in the others: what is near is seen exactly, what is far is found by "
        "what it says. At a third of the state of LoLCATs ([choosing.md](choosing.md)).",
        dict(rows),
        columns,
        tuple(above(f"{own} above {name}, mean of all", Place(run, columns), Place(other, columns)) for name, other in papers),
        remark,
    )


CLAIMS = (
    best(
        "The best composition beats every paper's student",
        ROWS,
        PASSKEY + RECALL,
        "The same training for all, by the long recipe; LoLA is LoLCATs with λ = 32, and learns nothing more.",
    ),
)
