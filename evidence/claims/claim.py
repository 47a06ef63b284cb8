"""A claim: a statement of a paper, the expectation that follows for these runs, and the table that shows it."""

from __future__ import annotations

from dataclasses import dataclass

from evidence.verdict import Expected


@dataclass(frozen=True)
class Claim:
    """title: the claim, in our words. says: the paper's own, and its figures; where: in which paper, table or figure.

    rows: by what the table calls them, EXPERIMENT/VARIANT. columns: titles of the ablation's report. remark: how ours differs.
    """

    title: str
    where: str
    says: str
    rows: dict[str, str]
    columns: tuple[str, ...]
    expected: tuple[Expected, ...]
    remark: str = ""


TIMES = ("256", "512", "1,024", "2,048")
"""Once, twice, four and eight times the training length, as columns are titled."""
PASSKEY, RECALL = (tuple(f"{task} {length}" for length in TIMES) for task in ("passkey", "recall"))
STORIES = tuple(f"stories {length} perplexity" for length in TIMES)
TEACHER = "teacher/softmax"
LOLCATS, LAWCAT = "students/lolcats", "students/lawcat"
