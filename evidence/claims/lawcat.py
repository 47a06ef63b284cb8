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
        "LAWCAT retrieves beyond its training length, LoLCATs does not",
        "LAWCAT, section 5.2, table 5",
        "Passkeys found at 1K, 2K, 4K and 8K tokens by students trained on 1K: LAWCAT 1.0, 1.0, 1.0, 0.9; LoLCATs 0.9, 0.8, 0, 0.",
        {"teacher": TEACHER, "LoLCATs": LOLCATS, "LAWCAT": LAWCAT},
        PASSKEY + RECALL,
        (
            *(above(f"LAWCAT above LoLCATs, {column}", Place(LAWCAT, column), Place(LOLCATS, column)) for column in PASSKEY[1:]),
            *(
                beyond(above(f"LAWCAT above LoLCATs, {column}", Place(LAWCAT, column), Place(LOLCATS, column)))
                for column in RECALL[1:]
            ),
            at_least("LAWCAT keeps 0.9 at four times the training length", Place(LAWCAT, X4), 0.9),
            at_least("LAWCAT keeps 0.9 at eight times", Place(LAWCAT, X8), 0.9),
            at_most("LoLCATs is at 0.1 or less at four times", Place(LOLCATS, X4), 0.1),
        ),
        "What differs: at eight times the training length LAWCAT finds 36, 35 and 34 of 40 passkeys, so one seed of "
        "three reaches 0.9. Tried: a quarter of the training (0.36 found there), and three other seeds (34, 34 and 39 "
        "of 40).",
    ),
    Claim(
        "Without normalisation LAWCAT fails beyond the training length",
        "LAWCAT, table 2",
        "Passkeys without normalisation of the state: 0.9 at 1K tokens, 0 from 2K on. With it: 1.0 and 1.0.",
        {"LAWCAT": LAWCAT, "without normalisation": WITHOUT_NORM},
        PASSKEY + RECALL,
        (
            at_least("without it, 0.5 or more at the training length", Place(WITHOUT_NORM, X1), 0.5),
            *(above(f"LAWCAT above it, {column}", Place(LAWCAT, column), Place(WITHOUT_NORM, column)) for column in PASSKEY[1:]),
            at_most("without it, 0.1 or less at twice the training length", Place(WITHOUT_NORM, X2), 0.1),
        ),
        "What differs: the student also retrieves without normalisation. At eight times the training length all three "
        "seeds lose passkeys (0.95, 0.48 and 0.40 are found), but none is near 0. Recall is lower with every seed at "
        "four and eight times. Tried: a quarter of the training, after which one seed of three found passkeys.",
    ),
    Claim(
        "The convolution matters little for passkeys and much for harder retrieval",
        "LAWCAT, tables 2 and 3",
        "Passkeys at 8K tokens: 0.8 without the convolution, 0.9 with it. S-NIAH-3 at 1K: 0 without, 56 % with.",
        {"LAWCAT": LAWCAT, "without convolution": WITHOUT_CONV},
        PASSKEY + RECALL,
        (
            *(at_least(f"without it, 0.8 or more, {column}", Place(WITHOUT_CONV, column), 0.8) for column in (X1, X2)),
            *(above(f"LAWCAT above it, {column}", Place(LAWCAT, column), Place(WITHOUT_CONV, column)) for column in RECALL),
        ),
        "The small vocabulary has no UUIDs, so recall of 32 pairs replaces S-NIAH-3. What differs: without the "
        "convolution, 0.45, 0.18 and 0.88 of the passkeys are found at the training length. Students of the [second "
        "teacher](#the-convolution-matters-little-for-passkeys-and-much-for-harder-retrieval-a-second-teacher) find all "
        "of them; the reason is unknown. The best seed misses 5 of 40, each after a digit that occurs twice in the key "
        "(`python -m evidence.repeats`). Tried: a quarter of the training, with which no seed found more than one "
        "passkey of 40.",
    ),
    Claim(
        "With rotary positions LAWCAT fails beyond the training length",
        "LAWCAT, table 5",
        "Passkeys with RoPE at 1K, 2K and 3K tokens: 1.0, 0.8 and 0.",
        {"LAWCAT": LAWCAT, "with RoPE": WITH_ROPE},
        PASSKEY + RECALL,
        (
            at_least("with RoPE, 0.9 at the training length", Place(WITH_ROPE, X1), 0.9),
            *(above(f"LAWCAT above it, {column}", Place(LAWCAT, column), Place(WITH_ROPE, column)) for column in PASSKEY[1:]),
            at_most("with RoPE, 0.1 or less at four times the training length", Place(WITH_ROPE, X4), 0.1),
        ),
    ),
    Claim(
        "LoLCATs without rotary positions: worse on short text, better on long",
        "LAWCAT, table 5",
        "Passkeys without RoPE: 0.4 at 1K tokens and 0.2 at 8K. LoLCATs with RoPE: 0.9 and 0.",
        {"LoLCATs": LOLCATS, "RoPE in the window alone": LOCAL_ROPE, "no RoPE": NO_ROPE},
        PASSKEY + RECALL,
        (
            below("no RoPE below LoLCATs at the training length", Place(NO_ROPE, X1), Place(LOLCATS, X1)),
            *(above(f"no RoPE above LoLCATs, {column}", Place(NO_ROPE, column), Place(LOLCATS, column)) for column in (X4, X8)),
            *(
                above(f"RoPE in the window alone above LoLCATs, {column}", Place(LOCAL_ROPE, column), Place(LOLCATS, column))
                for column in (X4, X8)
            ),
        ),
        "The paper's “PE for linear attention” can mean either row, so both are tested. What differs: without positions "
        "and without a convolution this student has no information about order, and learns neither task. Tried: RoPE in "
        "the window only. It is ahead of LoLCATs at four times the training length with every seed, at eight times with "
        "two.",
    ),
    Claim(
        "LoLCATs needs its window to retrieve, LAWCAT is better without one",
        "LAWCAT, table 6",
        "Passkeys at 1K tokens: LoLCATs 0.9 with its window, 0.1 without; LAWCAT 0.5 with a window, 1.0 without.",
        {"LoLCATs": LOLCATS, "LoLCATs, no window": NO_WINDOW, "LAWCAT": LAWCAT, "LAWCAT with a window": WITH_WINDOW},
        PASSKEY + RECALL,
        (
            above("LoLCATs above itself without a window, at the training length", Place(LOLCATS, X1), Place(NO_WINDOW, X1)),
            *(
                above(f"LAWCAT above itself with a window, {column}", Place(LAWCAT, column), Place(WITH_WINDOW, column))
                for column in PASSKEY
            ),
        ),
        "What differs: a state with positions is enough for passkeys at the training length. Without its window LoLCATs "
        "loses the stories (next claim). Tried: the second teacher. Its LoLCATs find fewer passkeys without a window "
        "with every seed (0.93 instead of 0.99).",
    ),
    Claim(
        "A window helps on short text",
        "LAWCAT, table 7",
        "Mean of five LM Eval tasks without and with a window of 64: LAWCAT 55.8 and 59.9, LoLCATs 41.2 and 59.6. The "
        "teacher has 60.0, and 54.7 with a window only.",
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
        "Perplexity of stories replaces the LM Eval tasks, which the small vocabulary cannot encode.",
    ),
    Claim(
        "Sharing only the linear map is best",
        "LAWCAT, table 4",
        "Passkeys at 8K tokens: 0.9 if queries and keys share only the map, 0.1 if they share both or nothing, 0 if "
        "they share only the convolution.",
        {"map (LAWCAT)": LAWCAT, **SHARING},
        PASSKEY + RECALL,
        tuple(above(f"LAWCAT above {name}, {X8}", Place(LAWCAT, X8), Place(run, X8)) for name, run in SHARING.items()),
        "What differs: with only the convolution shared, the student finds at least as many passkeys as LAWCAT with "
        "every seed, and recalls slightly less. With nothing shared, two seeds of three are behind at eight times the "
        "training length, as in the paper. Tried: a quarter of the training, with which seeds differed in each "
        "comparison.",
    ),
    Claim(
        "A gate rank of 32 is best",
        "LAWCAT, table 8",
        "S-NIAH-3 at 1K tokens: 12 % with rank 16, 56 % with 32, 24 % with a full matrix.",
        {f"rank {rank}": run for rank, run in RANKS.items()},
        PASSKEY + RECALL,
        tuple(
            above(f"rank 32 above {rank}, {column}", Place(RANKS["32"], column), Place(RANKS[rank], column))
            for rank in ("4", "full")
            for column in (RECALL[0], RECALL[3])
        ),
        "The paper's models are 2,048 wide and these are 128 wide, so rank 4 replaces rank 16. What differs: all ranks "
        "recall 0.98 or more, and their seeds overlap. One seed of rank 4 loses passkeys beyond twice the training "
        "length (0.73 and 0.48). Tried: a quarter of the training, with which rank 32 recalled more than a full matrix "
        "with every seed.",
    ),
)
