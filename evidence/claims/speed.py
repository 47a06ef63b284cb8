"""The claims of LAWCAT's and LoLCATs' papers about speed and memory."""

from __future__ import annotations

from itertools import pairwise

from evidence.claims.claim import Claim
from evidence.speed import BATCHES, DECODE, PREFILL, speed_title, state_title, time_title
from evidence.verdict import Place, above, at_least, at_most, near

TEACHER, LAWCAT, LOLCATS = "speed/teacher", "speed/lawcat", "speed/lolcats"
STUDENTS = {"LAWCAT": LAWCAT, "LoLCATs": LOLCATS, "Macchiato": "speed/latte-macchiato"}
ROWS = {"teacher": TEACHER, **STUDENTS}
LENGTHS = tuple(speed_title("prefill", length) for length in PREFILL)
NEAR, FAR = DECODE
STATES, TIMES = (state_title(NEAR), state_title(FAR)), (time_title(NEAR), time_title(FAR))
INTRODUCTION = """\
Students are built, not trained. Macchiato is the shipped `latte-macchiato`, with a window of 128 and 128 latents (165 KiB);
elsewhere on this page it has 64 of each (83 KiB). Speed is relative to the teacher, which uses PyTorch's own attention: one CPU
thread, float32, models in turn.
"""
ONE, SHALLOW, DEEP = speed_title("decode", FAR), speed_title("decode", NEAR, BATCHES[-1]), speed_title("decode", FAR, BATCHES[-1])

CLAIMS = (
    Claim(
        "Prefill is slower on short text and faster on long",
        "LAWCAT, section 5.5, figure 4",
        "“slightly higher prefill latency than LLaMA3.2 1B with FA2 for sequences shorter than 8K tokens. Beyond this "
        "point … significantly lower latency, with the gap widening as sequence length increases.”",
        ROWS,
        LENGTHS,
        (
            at_most(f"LAWCAT slower than the teacher, {LENGTHS[0]}", Place(LAWCAT, LENGTHS[0]), 1.0),
            at_least(f"LAWCAT faster than the teacher, {LENGTHS[-1]}", Place(LAWCAT, LENGTHS[-1]), 1.0),
            *(above(f"the gap widens to {more}", Place(LAWCAT, more), Place(LAWCAT, less)) for less, more in pairwise(LENGTHS)),
        ),
    ),
    Claim(
        "State size and time per token do not grow",
        "LoLCATs (workshop), section 4.3, figure 2",
        "From 512 to 131K generated tokens memory grows by a factor of 1.1; FlashAttention-2 runs out of memory beyond "
        "64K. At large batches throughput is 2.5 to 4 times that of FlashAttention-2.",
        ROWS,
        (*STATES, *TIMES, ONE, SHALLOW, DEEP),
        (
            *(
                near(f"{name}: {STATES[1]} as before", Place(run, STATES[1]), Place(run, STATES[0]), 0.0)
                for name, run in STUDENTS.items()
            ),
            above("the teacher's cache grows by ten and more", Place(TEACHER, STATES[1]), Place(TEACHER, STATES[0]), 10),
            *(
                near(f"{name}: {TIMES[1]} as before, within a quarter", Place(run, TIMES[1]), Place(run, TIMES[0]), 0.25)
                for name, run in STUDENTS.items()
            ),
            at_least(f"LoLCATs 2.5 times as fast as the teacher, {DEEP}", Place(LOLCATS, DEEP), 2.5),
        ),
        "The last three columns are the decode speed at that position, with one row or eight.",
    ),
)
