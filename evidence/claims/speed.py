"""What LAWCAT's and LoLCATs' papers say of speed and memory."""

from __future__ import annotations

from itertools import pairwise

from evidence.claims.claim import Claim
from evidence.speed import BATCHES, DECODE, PREFILL, state_title, time_title, title
from evidence.verdict import Place, above, at_least, at_most, near

TEACHER, LAWCAT, LOLCATS = "speed/teacher", "speed/lawcat", "speed/lolcats"
STUDENTS = {"LAWCAT": LAWCAT, "LoLCATs": LOLCATS, "Macchiato": "speed/latte-macchiato"}
ROWS = {"teacher": TEACHER, **STUDENTS}
LENGTHS = tuple(title("prefill", length) for length in PREFILL)
NEAR, FAR = DECODE
STATES, TIMES = (state_title(NEAR), state_title(FAR)), (time_title(NEAR), time_title(FAR))
SHIPPED = (
    "Macchiato is `latte-macchiato` as it ships, with a window of 128 and 128 latents (165 KiB); elsewhere on this page, onto this "
    "teacher, it has 64 of each (83 KiB)."
)
ONE, SHALLOW, DEEP = title("decode", FAR), title("decode", NEAR, BATCHES[-1]), title("decode", FAR, BATCHES[-1])

CLAIMS = (
    Claim(
        "Prefill is slower on short text and faster on long",
        "LAWCAT, section 5.5, figure 4",
        "“LAW-CAT incurs slightly higher prefill latency than LLaMA3.2 1B with FA2 for sequences shorter than 8K tokens. Beyond "
        "this point, however, LAW-CAT achieves significantly lower latency, with the gap widening as sequence length increases.”",
        ROWS,
        LENGTHS,
        (
            at_most(f"LAWCAT slower than the teacher, {LENGTHS[0]}", Place(LAWCAT, LENGTHS[0]), 1.0),
            at_least(f"LAWCAT faster than the teacher, {LENGTHS[-1]}", Place(LAWCAT, LENGTHS[-1]), 1.0),
            *(above(f"the gap widens to {more}", Place(LAWCAT, more), Place(LAWCAT, less)) for less, more in pairwise(LENGTHS)),
        ),
        "How many times as fast as the teacher, in turn: one thread of a CPU, float32, PyTorch's own attention in the teacher. "
        f"{SHIPPED}",
    ),
    Claim(
        "The state does not grow, and neither does the time of a token",
        "LoLCATs (workshop), section 4.3, figure 2",
        "Memory grows by a factor of 1.1 from 512 to 131K generated tokens, where FlashAttention-2 runs out of it beyond 64K; at"
        " large batches 2.5 to 4 times its throughput.",
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
        "The last three columns: how many times as fast as the teacher it decodes, at that position, one row or eight at a time. "
        f"{SHIPPED}",
    ),
)
