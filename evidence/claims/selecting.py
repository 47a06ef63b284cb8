"""What ``compose select`` should be good for; no paper's claim, and judged by rules all the same."""

from __future__ import annotations

from evidence.claims.claim import Claim
from evidence.selecting import BEATEN, BEFORE, CHANCE, CHOSEN, NAME, SETTING, STATE, TRAINED
from evidence.verdict import Place, above, at_least, below, beyond, near

REGULAR = SETTING.regular
OTHERS = (REGULAR, *CHANCE)
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


def _before(name: str) -> Place:
    return Place(f"{NAME}/{name}", BEFORE)


def _final(name: str, column: str) -> Place:
    return Place(f"{TRAINED}/{name}", column)


CLAIMS = (
    Claim(
        "Layers that `select` keeps are closer to the teacher than every fourth layer and than chance",
        "docs/select.md",
        "“finds the layers where that is worth most”: a student of eight layers of LAWCAT, two of which have the teacher's "
        "attention again, before any fine-tuning.",
        {name: f"{NAME}/{choice}" for name, choice in ROWS.items()},
        (BEFORE, BEATEN, STATE),
        (
            *(below(f"by restored below {other}, {BEFORE}", _before("restored"), _before(other)) for other in OTHERS),
            at_least("by restored, nine of ten choices of two layers are worse", Place(f"{NAME}/restored", BEATEN), 0.9),
            *(
                near(f"{other}: as much state", Place(f"{NAME}/{other}", STATE), Place(f"{NAME}/restored", STATE), 0.0)
                for other in OTHERS
            ),
            *(beyond(below(f"by {by} below {REGULAR}, {BEFORE}", _before(by), _before(REGULAR))) for by in CHOSEN[1:]),
        ),
        "KL(teacher ‖ student) in nats a token on 16 held-out rows, where low is good, and the share of all 28 choices of two "
        "layers that are worse. Of an earlier teacher, which the same command made on another machine, one seed of three had every "
        "fourth layer or a draw of chance ahead: the verdict is of this teacher.",
    ),
    Claim(
        "A student with the layers that `select` keeps learns more than with every fourth layer and than with chance",
        "docs/select.md",
        "The same choices, each built from the teacher, and trained in both stages.",
        {name: f"{TRAINED}/{choice}" for name, choice in ROWS.items()},
        FINAL,
        (
            *(
                below(f"by restored below {other}, {FINAL[0]}", _final("restored", FINAL[0]), _final(other, FINAL[0]))
                for other in OTHERS
            ),
            *(
                above(f"by restored above {other}, {column}", _final("restored", column), _final(other, column))
                for column in FINAL[1:3]
                for other in OTHERS
            ),
        ),
        "Ahead of chance with every seed in perplexity and recall at the training length, level with every fourth layer, and by "
        "the mean behind chance in passkeys at twice that length (0.67 for 0.96 and 0.78). What differs: every fourth layer ends "
        "where the chosen ones do (layer 3, which each score chooses, is one of them), and all students answer passkeys at 256, "
        "those without a kept layer, too. Layers that are kept have the teacher's positions, which it learned up to 256 tokens: "
        "at 512 passkeys are better without them. Tried: three scores, which end alike. Not tried: another number of layers to "
        "keep, and kept layers without positions.",
    ),
)
