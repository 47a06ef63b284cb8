"""A claim: a statement of a paper, the expectation that follows for these runs, and the table that shows it."""

from __future__ import annotations

from dataclasses import dataclass

from evidence.verdict import Expectation


@dataclass(frozen=True)
class Claim:
    """A claim and its table.

    - title: the claim in our words.
    - reference: the paper, and its section, table or figure.
    - statement: the paper's own words or figures.
    - rows: EXPERIMENT/VARIANT, by the label of the table's row.
    - columns: titles of the ablation's report.
    - remark: how the results differ, and what else was tried.
    """

    title: str
    reference: str
    statement: str
    rows: dict[str, str]
    columns: tuple[str, ...]
    expectations: tuple[Expectation, ...]
    remark: str = ""


TIMES = ("256", "512", "1,024", "2,048")
"""One, two, four and eight times the training length, as in the titles of columns."""
PASSKEY, RECALL = (tuple(f"{task} {length}" for length in TIMES) for task in ("passkey", "recall"))
STORIES = tuple(f"stories {length} perplexity" for length in TIMES)
TEACHER = "teacher/softmax"
LOLCATS, LAWCAT = "students/lolcats", "students/lawcat"
