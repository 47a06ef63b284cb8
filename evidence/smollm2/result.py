"""The result of each run, in a small committed file, so that no run is repeated."""

from __future__ import annotations

from pathlib import Path

from blocks.part import Closed
from composer.system.files import write_whole
from converters.bounded import MOST_LOG, read_text

RUNS = Path(__file__).parent / "runs"
"""A folder for each plan, such as ``runs/heads`` for ``heads.yaml``."""


class Result(Closed):
    """The figures of one model with one seed.

    - identity: a hash of the inputs and settings.
    - commands: the arguments of ``compose``, by step, with names in place of paths.
    - seconds: wall-clock time of each step; None if the step was stopped and continued.
    - tokens: tokens of training, by stage. held_out: mean losses before and after each stage.
    - harness: the score of each row, by task of lm-eval and metric.
    - text: nats per token of each sample, by task and length. positions: their means in equal parts of the text.
    - retrieval: the score of each sample, by task and length.
    - state_bytes: the size of one text's state, by the text's length in tokens.
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


def path_of(name: str, seed: int, runs_folder: Path) -> Path:
    """Return the file of a run."""
    return runs_folder / f"{name}-{seed}.json"


def keep_result(result: Result, runs_folder: Path) -> None:
    """Write a result, whole or not at all."""
    runs_folder.mkdir(parents=True, exist_ok=True)
    write_whole(path_of(result.name, result.seed, runs_folder), result.model_dump_json() + "\n")


def read_result(name: str, seed: int, runs_folder: Path) -> Result | None:
    """Return the kept result of a run, or None if there is none."""
    path = path_of(name, seed, runs_folder)
    return Result.model_validate_json(read_text(path, MOST_LOG)) if path.is_file() else None
