"""LAWCAT (Liu et al. 2025)."""

from __future__ import annotations

from evidence.claims.claim import LAWCAT, LOLCATS, PASSKEY, RECALL, STORIES, TEACHER, Claim
from evidence.verdict import Place, above, at_least, at_most, below, beyond, near

WITHOUT_NORM = "students/lawcat-normalisation-without"
WITHOUT_CONV = "students/lawcat-convolution-without"
WITH_ROPE = "students/lawcat-rope-rope"
WITH_WINDOW = "students/lawcat-window-with"
LOCAL_ROPE = "students/lolcats-rope-in-window"
NO_ROPE = "students/lolcats-no-rope"
NO_WINDOW = "students/lolcats-no-window"
SHARING = {name: f"students/lawcat-sharing-{name}" for name in ("both", "convolution", "neither")}
RANKS = {"4": "students/gate-rank-4", "32": LAWCAT, "full": "students/gate-rank-full"}
X1, X2, X4, X8 = PASSKEY
SHORT = STORIES[0]

CLAIMS = (
    Claim(
        "LAWCAT retrieves beyond the length that it was trained on, LoLCATs does not",
        "LAWCAT, section 5.2, table 5",
        "“even when distilled and fine-tuned solely on 1K-length sequences, the resulting model retains competitive performance "
        "up to 12K tokens”. Passkeys at 1K, 2K, 4K, 8K: LAWCAT 1.0, 1.0, 1.0, 0.9; LoLCATs 0.9, 0.8, 0, 0.",
        {"teacher": TEACHER, "LoLCATs": LOLCATS, "LAWCAT": LAWCAT},
        PASSKEY + RECALL,
        (
            *(above(f"LAWCAT above LoLCATs, {at}", Place(LAWCAT, at), Place(LOLCATS, at)) for at in PASSKEY[1:]),
            *(beyond(above(f"LAWCAT above LoLCATs, {at}", Place(LAWCAT, at), Place(LOLCATS, at))) for at in RECALL[1:]),
            at_least("LAWCAT keeps 0.9 at four times the training length", Place(LAWCAT, X4), 0.9),
            at_least("LAWCAT keeps 0.9 at eight times", Place(LAWCAT, X8), 0.9),
            at_most("LoLCATs is at 0.1 or less at four times", Place(LOLCATS, X4), 0.1),
        ),
        "What differs: at eight times the training length LAWCAT finds 36, 35 and 34 of 40 passkeys, so that one seed keeps 0.9. "
        "Tried: a quarter of the training, with which it found 0.36 of them there, as a mean; and three other seeds, which find "
        "34, 34 and 39 ([below](#it-does-so-with-seeds-that-nothing-was-chosen-by)). More training was not tried.",
    ),
    Claim(
        "Without normalisation LAWCAT fails beyond the training length",
        "LAWCAT, table 2",
        "“removing GLA normalization significantly degrades performance on passkey retrieval tasks involving longer contexts, "
        "although the model maintains reasonable accuracy at the 1K-length scale”: 0.9 at 1K, 0 from 2K; LAWCAT 1.0 and 1.0.",
        {"LAWCAT": LAWCAT, "without normalisation": WITHOUT_NORM},
        PASSKEY + RECALL,
        (
            at_least("without it, 0.5 or more at the training length", Place(WITHOUT_NORM, X1), 0.5),
            *(above(f"LAWCAT above it, {at}", Place(LAWCAT, at), Place(WITHOUT_NORM, at)) for at in PASSKEY[1:]),
            at_most("without it, 0.1 or less at twice the training length", Place(WITHOUT_NORM, X2), 0.1),
        ),
        "What differs: here the student retrieves without it, too: one seed loses some passkeys at twice the training length, two "
        "at four times and all three at eight (0.95, 0.48 and 0.40 are left), and none comes near 0. Recall falls with every seed "
        "at four and eight times. Tried: a quarter of the training, with which one seed of three learned passkeys at all without "
        "it.",
    ),
    Claim(
        "The convolution matters little for passkeys and much for harder retrieval",
        "LAWCAT, tables 2 and 3",
        "“the Conv1D layer offers limited benefit for the relatively simpler passkey retrieval task … its importance becomes "
        "evident in more complex scenarios”. Passkeys at 8K: 0.8 without, 0.9 with; S-NIAH-3 at 1K: 0 without, 56 % with.",
        {"LAWCAT": LAWCAT, "without convolution": WITHOUT_CONV},
        PASSKEY + RECALL,
        (
            *(at_least(f"without it, 0.8 or more, {at}", Place(WITHOUT_CONV, at), 0.8) for at in (X1, X2)),
            *(above(f"LAWCAT above it, {at}", Place(LAWCAT, at), Place(WITHOUT_CONV, at)) for at in RECALL),
        ),
        "The vocabulary of the small teacher has no UUIDs to hide; recall of 32 pairs stands for the harder task. What differs: "
        "without it passkeys are found with 0.45, 0.18 and 0.88 at the training length, where the students of the [second "
        "teacher](#the-convolution-matters-little-for-passkeys-and-much-for-harder-retrieval-a-second-teacher), of two layers as "
        "well, find all of them, as in the paper; why the two differ is not settled. The one seed that was looked at, the best, "
        "misses 5 of 40 at 256 tokens, each right after a digit that the key has twice (`python -m evidence.repeats`): it goes by "
        "the digit before alone, and a filter of four tokens sees more. Tried: a quarter of the training, with which no seed "
        "found more than one passkey of 40 without it. Not tried: more layers.",
    ),
    Claim(
        "With rotary positions LAWCAT fails beyond the training length",
        "LAWCAT, table 5",
        "“the variant without RoPE maintained high accuracy up to 8K tokens, whereas the RoPE-equipped variant's performance "
        "collapsed beyond 3K tokens”: 1.0, 0.8 and 0 at 1K, 2K and 3K.",
        {"LAWCAT": LAWCAT, "with RoPE": WITH_ROPE},
        PASSKEY + RECALL,
        (
            at_least("with RoPE, 0.9 at the training length", Place(WITH_ROPE, X1), 0.9),
            *(above(f"LAWCAT above it, {at}", Place(LAWCAT, at), Place(WITH_ROPE, at)) for at in PASSKEY[1:]),
            at_most("with RoPE, 0.1 or less at four times the training length", Place(WITH_ROPE, X4), 0.1),
        ),
    ),
    Claim(
        "LoLCATs without rotary positions: worse on short text, better on long",
        "LAWCAT, table 5",
        "“removing RoPE decreases performance on shorter contexts (1K-3K tokens) but slightly improves performance on longer "
        "contexts (4K-8K tokens)”: 0.4 at 1K, 0.2 at 8K, against 0.9 and 0.",
        {"LoLCATs": LOLCATS, "RoPE in the window alone": LOCAL_ROPE, "no RoPE": NO_ROPE},
        PASSKEY + RECALL,
        (
            below("no RoPE below LoLCATs at the training length", Place(NO_ROPE, X1), Place(LOLCATS, X1)),
            *(above(f"no RoPE above LoLCATs, {at}", Place(NO_ROPE, at), Place(LOLCATS, at)) for at in (X4, X8)),
            *(above(f"RoPE in the window alone above LoLCATs, {at}", Place(LOCAL_ROPE, at), Place(LOLCATS, at)) for at in (X4, X8)),
        ),
        "The paper's “PE for linear attention” can be read either way, so both stand here. They are the control that separates "
        "positions from the memory, too: heads, windows and states are the same in all three rows. What differs: with no "
        "positions and no convolution nothing in this student knows an order, and two layers make up none; it learns neither "
        "task. Tried: RoPE in the window alone, the second reading, which is ahead of LoLCATs at four times with every seed and "
        "at eight with two. Not tried: more layers, or more training.",
    ),
    Claim(
        "LoLCATs needs its window to retrieve, LAWCAT is better without one",
        "LAWCAT, table 6",
        "“removing SWA significantly impaired LoLCATs, confirming its reliance on this mechanism. Conversely, LAWCAT performed "
        "better without SWA, especially at longer contexts”. At 1K: LoLCATs 0.9 with, 0.1 without; LAWCAT 0.5 with, 1.0 without.",
        {"LoLCATs": LOLCATS, "LoLCATs, no window": NO_WINDOW, "LAWCAT": LAWCAT, "LAWCAT with a window": WITH_WINDOW},
        PASSKEY + RECALL,
        (
            above("LoLCATs above itself without a window, at the training length", Place(LOLCATS, X1), Place(NO_WINDOW, X1)),
            *(above(f"LAWCAT above itself with a window, {at}", Place(LAWCAT, at), Place(WITH_WINDOW, at)) for at in PASSKEY),
        ),
        "What differs: here a state alone, with its positions, is enough for passkeys at the training length; what LoLCATs loses "
        "with its window is the text (next claim). Tried: the second teacher, whose LoLCATs do find fewer without a window (0.93 "
        "for 0.99), with every seed. Texts longer than 256 tokens to learn from were not tried.",
    ),
    Claim(
        "A window helps on short text",
        "LAWCAT, table 7",
        "“adding SWA (window size 64) significantly boosts performance for both models”: LAWCAT 55.8 without and 59.9 with, "
        "LoLCATs 41.2 and 59.6, of five tasks of LM Eval; the teacher with a window alone 54.7, and 60.0 as it is.",
        {
            "teacher": TEACHER,
            "teacher, window alone": "teacher/window",
            "LoLCATs, no window": NO_WINDOW,
            "LoLCATs": LOLCATS,
            "LAWCAT": LAWCAT,
            "LAWCAT with a window": WITH_WINDOW,
        },
        STORIES,
        (
            below("LAWCAT with a window below LAWCAT", Place(WITH_WINDOW, SHORT), Place(LAWCAT, SHORT)),
            below("LoLCATs below itself without a window", Place(LOLCATS, SHORT), Place(NO_WINDOW, SHORT)),
            near(
                "the teacher with a window alone within a tenth of itself",
                Place("teacher/window", SHORT),
                Place(TEACHER, SHORT),
                0.1,
            ),
        ),
        "Perplexity of stories (low is good) stands for LM Eval's tasks, which the small vocabulary cannot write.",
    ),
    Claim(
        "Sharing the linear map and not the convolution is best",
        "LAWCAT, table 4",
        "Passkeys at 8K: 0.9 where queries and keys share the map alone, 0.1 where they share both or nothing, 0 where they "
        "share the convolution alone.",
        {"map (LAWCAT)": LAWCAT, **SHARING},
        PASSKEY + RECALL,
        tuple(above(f"LAWCAT above {name}, {X8}", Place(LAWCAT, X8), Place(run, X8)) for name, run in SHARING.items()),
        "What differs: here sharing the convolution alone retrieves as far as LAWCAT or farther, with every seed, and recalls a "
        "little less; sharing nothing is behind at eight times, as in the paper, with two seeds of three. Tried: a quarter of the "
        "training, with which seeds differed in each comparison.",
    ),
    Claim(
        "A rank of 32 suits the gate best",
        "LAWCAT, table 8",
        "“an optimal gate function rank—around 32”: S-NIAH-3 at 1K 12 % at 16, 56 % at 32, 24 % with a full matrix.",
        {f"rank {rank}": run for rank, run in RANKS.items()},
        PASSKEY + RECALL,
        tuple(
            above(f"rank 32 above {rank}, {at}", Place(RANKS["32"], at), Place(RANKS[rank], at))
            for rank in ("4", "full")
            for at in (RECALL[0], RECALL[3])
        ),
        "Where the paper's models are 2,048 wide, ours is 128: rank 4 stands for its 16, as too small. What differs: all ranks "
        "recall 0.98 or more, and their seeds overlap. Passkeys beyond twice the training length, which were not asked for, are "
        "lost by one seed of rank 4 (0.73 and 0.48); all others keep 0.82 or more. Tried: a quarter of the training, with which "
        "rank 32 was above a full matrix in recall with every seed. Harder tasks were not tried.",
    ),
)
