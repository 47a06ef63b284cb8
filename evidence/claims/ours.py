"""What no paper has: the best of our compositions against the students of the four papers."""

from __future__ import annotations

from collections.abc import Mapping

from evidence.claims.claim import LAWCAT, LOLCATS, PASSKEY, RECALL, STORIES, TEACHER, Claim
from evidence.verdict import Place, above, below, near

LOLA, MACCHIATO, BEST = "lola-lengths/lola", "students/macchiato-full", "students/alternating-delta"
ROWS = {"teacher": TEACHER, "LoLCATs": LOLCATS, "LoLA": LOLA, "LAWCAT": LAWCAT, "Macchiato": MACCHIATO, "alternating-delta": BEST}


MIXED = (
    "specs/alternating-delta.yaml",
    "Windows in every other layer, a gated delta rule in the others: what is near is seen exactly, what is far is found by "
    "what it says. At a third of the state of LoLCATs ([choosing.md](choosing.md)).",
)
PURE = (
    "evidence/specs/delta-alone.yaml",
    "The far layers of alternating-delta alone: a gated delta rule behind LAWCAT's convolution and map, without positions and "
    "without a window. At a third of the state of LoLCATs ([choosing.md](choosing.md)).",
)
"""Of two compositions of ours, the spec and what it is."""


def best(title: str, rows: Mapping[str, str], columns: tuple[str, ...], remark: str, ours: tuple[str, str] = MIXED) -> Claim:
    """By the mean of all columns. rows: as ``ROWS`` has them, the teacher first and our composition last."""
    *papers, (own, run) = list(rows.items())[1:]
    return Claim(
        title,
        *ours,
        dict(rows),
        columns,
        tuple(above(f"{own} above {name}, mean of all", Place(run, columns), Place(other, columns)) for name, other in papers),
        remark,
    )


EQUAL = {
    "alternating-delta": BEST,
    "delta alone": "students/delta-alone",
    "alternating-lawcat": "students/alternating-lawcat",
    "LAWCAT": LAWCAT,
}
"""Each with what stands below it, at as many bytes of state."""
CACHED = {
    "as it is": "students/cached",
    "no sparse cache": "students/cached-without-sparse",
    "positions in the window": "students/cached-near-positions",
    "LAWCAT": LAWCAT,
}


def _cached(name: str) -> Place:
    return Place(CACHED[name], STORIES[0])


CLAIMS = (
    best(
        "The best composition beats every paper's student",
        ROWS,
        PASSKEY + RECALL,
        "The same training for all; LoLA is LoLCATs with λ = 32, and learns nothing more.",
    ),
    best(
        "The delta rule in every layer beats every paper's student",
        {**{name: run for name, run in ROWS.items() if run != BEST}, "delta-alone": EQUAL["delta alone"]},
        PASSKEY + RECALL,
        "Found by the runs of the next claim, and written after them: it was not expected.",
        PURE,
    ),
    Claim(
        "At equal state, windows between layers with states are ahead of states alone",
        "evidence/specs/delta-alone.yaml",
        "Of two layers, the window of alternating layers takes the bytes of one state: 66.8 KiB for 68.5 of the delta rule in "
        "both, and 67.8 KiB for LAWCAT's 70.5.",
        EQUAL,
        PASSKEY + RECALL,
        tuple(
            above(f"{mixed} above {pure}, mean of all", Place(EQUAL[mixed], PASSKEY + RECALL), Place(EQUAL[pure], PASSKEY + RECALL))
            for mixed, pure in (("alternating-delta", "delta alone"), ("alternating-lawcat", "LAWCAT"))
        ),
        "The runs of LAWCAT and of what alternates were there before this was asked; those of the delta rule alone came after. "
        "What differs: one seed of alternating-delta loses passkeys at two and at eight times that the delta rule alone keeps, and "
        "two of LAWCAT's three are ahead of what alternates.",
    ),
    Claim(
        "Why `cached` learns badly: nothing in it knows positions, not its sparse cache",
        "evidence/specs/cached-positions.yaml",
        "A window, a sparse cache and a state under one convolution, none of them with positions: softmax attention in a window is "
        "blind to order but for what a convolution of four tokens says.",
        CACHED,
        (*STORIES[:1], PASSKEY[0], RECALL[0]),
        (
            below("with positions in the window below `cached`, stories", _cached("positions in the window"), _cached("as it is")),
            below(
                "with positions in the window below that without a sparse cache, stories",
                _cached("positions in the window"),
                _cached("no sparse cache"),
            ),
            near(
                "with positions in the window within a tenth of LAWCAT, stories",
                _cached("positions in the window"),
                Place(LAWCAT, STORIES[0]),
                0.1,
            ),
        ),
    ),
)
