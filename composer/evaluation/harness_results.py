"""The results of lm-eval's tasks: figures, the requests that were cut, and the options to repeat them with."""

from __future__ import annotations

from blocks.part import Closed
from composer.state import Count


class HarnessFacts(Closed):
    """The tasks that lm-eval runs, and its options. files: SHA-256 of those in the included folder."""

    tasks: tuple[str, ...]
    limit: Count | float | None
    files: dict[str, str]
    num_fewshot: Count | None = None
    max_length: Count | None = None
    chat_template: bool | str = False
    system_instruction: str | None = None
    fewshot_as_multiturn: bool = True


class CutRequests(Closed):
    """The requests of a task of lm-eval that were longer than ``max_length`` and lost their first tokens.

    requests: all requests of the task; of a multiple-choice task each choice is one. longest: in tokens. For a task that
    generates, a prompt also leaves room for the tokens to generate.
    """

    task: str
    requests: Count
    cut: Count
    longest: Count
    max_length: Count


class ModelCutRequests(CutRequests):
    """The same, with the model."""

    model: str


class HarnessResult(Closed):
    """lm-eval's results for one model: figures by task and ``metric,filter``, and the tasks whose requests were cut."""

    model: str
    results: dict[str, dict[str, float]]
    cut: tuple[CutRequests, ...] = ()


class HarnessFigure(Closed):
    """One figure of lm-eval."""

    model: str
    task: str
    metric: str
    filter: str
    value: float
    standard_error: float | None
