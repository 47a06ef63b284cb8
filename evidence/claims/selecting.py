"""Claims about ``compose select``. They are not from a paper."""

from __future__ import annotations

from evidence.claims.claim import Claim
from evidence.selecting import BEATEN, BEFORE, CHANCE, NAME, SCORES, SETTING, STATE, TRAINED
from evidence.verdict import Place, above, at_least, below, beyond, near

REGULAR = SETTING.regular_name
BASELINES = (REGULAR, *CHANCE)
FINAL = ("stories 256 perplexity", "passkey 256", "recall 256", "passkey 512", "recall 512")
ROWS = {
    "chosen by `restored`": "restored",
    "by `swapped`": "swapped",
    "by `error`": "error",
    f"every {SETTING.layers // SETTING.keep}th layer": REGULAR,
    "chance": CHANCE[0],
    "chance, another draw": CHANCE[1],
    "no layer": "none",
}


def _locate_before(name: str) -> Place:
    return Place(f"{NAME}/{name}", BEFORE)


def _locate_final(name: str, column: str) -> Place:
    return Place(f"{TRAINED}/{name}", column)


CLAIMS = (
    Claim(
        "Layers chosen by `select` are closer to the teacher than every fourth layer and than random layers",
        "docs/select.md",
        "A LAWCAT student of eight layers, two of which keep the teacher's attention, before any fine-tuning.",
        {name: f"{NAME}/{choice}" for name, choice in ROWS.items()},
        (BEFORE, BEATEN, STATE),
        (
            *(
                below(f"by restored below {baseline}, {BEFORE}", _locate_before("restored"), _locate_before(baseline))
                for baseline in BASELINES
            ),
            at_least("by restored, nine of ten choices of two layers are worse", Place(f"{NAME}/restored", BEATEN), 0.9),
            *(
                near(f"{baseline}: as much state", Place(f"{NAME}/{baseline}", STATE), Place(f"{NAME}/restored", STATE), 0.0)
                for baseline in BASELINES
            ),
            *(
                beyond(below(f"by {score} below {REGULAR}, {BEFORE}", _locate_before(score), _locate_before(REGULAR)))
                for score in SCORES[1:]
            ),
        ),
        "KL(teacher ‖ student) in nats per token on 16 held-out rows (lower is better), and the share of all 28 choices "
        "of two layers that are worse. With an earlier teacher, made by the same command on another machine, every "
        "fourth layer or a random choice was ahead with one seed of three.",
    ),
    Claim(
        "After training, layers chosen by `select` are ahead of every fourth layer and of random layers",
        "docs/select.md",
        "The same choices, each built from the teacher and trained in both stages.",
        {name: f"{TRAINED}/{choice}" for name, choice in ROWS.items()},
        FINAL,
        (
            *(
                below(
                    f"by restored below {baseline}, {FINAL[0]}",
                    _locate_final("restored", FINAL[0]),
                    _locate_final(baseline, FINAL[0]),
                )
                for baseline in BASELINES
            ),
            *(
                above(f"by restored above {baseline}, {column}", _locate_final("restored", column), _locate_final(baseline, column))
                for column in FINAL[1:3]
                for baseline in BASELINES
            ),
        ),
        "What differs: the chosen layers are ahead of random ones in perplexity and recall at the training length with "
        "every seed, but level with every fourth layer, one of which (layer 3) each score chooses. All students find "
        "the passkeys at 256 tokens. At 512 tokens the chosen layers find fewer passkeys on average than random ones "
        "(0.67 against 0.96 and 0.78): kept layers have the teacher's positions, trained up to 256 tokens. Tried: three "
        "scores, with equal results. Not tried: another number of kept layers, kept layers without positions.",
    ),
)
