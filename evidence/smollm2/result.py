"""What a run found, in a small file that is committed, so that no run is repeated."""

from __future__ import annotations

from pathlib import Path

from blocks.part import Closed
from composer.files import write_whole
from converters.bounded import MOST_LOG, read_text

RUNS = Path(__file__).parent / "runs"


class Result(Closed):
    """The figures of one model with one seed.

    - identity: a hash of the inputs and settings.
    - commands: the arguments of ``compose``, by step, with names in place of paths.
    - seconds: of each step, on the clock; None where the step was stopped and went on.
    - tokens: of training, by stage. held_out: mean losses before and after each stage.
    - harness: the score of each row, by task of lm-eval and metric.
    - text: nats a token of each sample, by task and length; positions: their means in equal parts of the text.
    - retrieval: the score of each sample, by task and length.
    - state_bytes: of the state of one text, by its length in tokens.
    """

    name: str
    seed: int
    identity: str
    commands: dict[str, list[str]]
    seconds: dict[str, float | None]
    tokens: dict[str, int]
    held_out: dict[str, float]
    harness: dict[str, dict[str, list[float]]]
    text: dict[str, dict[int, list[float]]]
    positions: dict[str, dict[int, list[float | None]]]
    retrieval: dict[str, dict[int, list[float]]]
    state_bytes: dict[int, int]
    versions: dict[str, str]
    device: str


def path_of(name: str, seed: int, kept: Path = RUNS) -> Path:
    """The file of a run."""
    return kept / f"{name}-{seed}.json"


def keep(result: Result, kept: Path = RUNS) -> None:
    """Write a result, whole or not at all."""
    kept.mkdir(parents=True, exist_ok=True)
    write_whole(path_of(result.name, result.seed, kept), result.model_dump_json() + "\n")


def read_result(name: str, seed: int, kept: Path = RUNS) -> Result | None:
    """The kept result of a run; None where there is none."""
    path = path_of(name, seed, kept)
    return Result.model_validate_json(read_text(path, MOST_LOG)) if path.is_file() else None
