"""Evaluation takes at most a fifth of a stage, in all stages alike. Untrustworthy results give a warning or an error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from composer.errors import TrainingError
from composer.spec.loading import load_spec
from composer.spec.recipe import Finetune, Transfer
from composer.spec.resolve import Resolved, resolve
from composer.training.loop import Outcome, evaluation_interval, length_of
from composer.training.rows import rows_to_evaluate, some, too_few, warn_if_nothing_learned, within_windows
from tests.composer.spec.sources import SIZE
from tests.composer.training.runs import rows_of, run


@pytest.mark.parametrize(("steps", "batch", "evaluate"), [(20, 8, None), (1000, 8, None), (40, 4, 2), (1, 1, None)])
def test_evaluation_costs_at_most_a_fifth(steps: int, batch: int, evaluate: int | None) -> None:
    """The estimate assumes that a row costs as much to evaluate as to learn from, which is an upper bound."""
    rows = rows_of(lengths=(64,) * 40)
    stage = Transfer(lr=1e-2, steps=steps, batch=batch, evaluate=evaluate)
    count = rows_to_evaluate([stage], rows)
    evaluated = count * (1 + length_of(stage, rows) // evaluation_interval(stage, steps))
    assert count == 1 or evaluated / (evaluated + steps * batch) <= 0.2
    assert rows_to_evaluate([stage, Finetune(lr=1e-3, steps=10 * steps, batch=batch)], rows) == count, "all stages on the same"


def test_selected_rows_are_spread() -> None:
    rows = rows_of(lengths=(16,) * 12)
    few = some(rows, 4)
    assert len(few) == 4
    assert np.array_equal(few.ids[[0, -1]], rows.ids[[0, -1]])
    assert some(rows, 100) is rows


def test_the_number_of_evaluated_rows_is_reported(student: Path, texts: Path, tmp_path: Path) -> None:
    messages: list[str] = []
    run(student, tmp_path / "out", texts, which="transfer", held_out_rows=None, tell=messages.append)
    (message,) = [what for what in messages if "held-out rows" in what]
    assert "Evaluating on 1 of" in message
    messages.clear()
    run(student, tmp_path / "other", texts, which="transfer", held_out_rows=3, tell=messages.append)
    assert not any("held-out rows, which needs" in what for what in messages)


def test_runs_that_improve_nothing_are_warned_about(student: Path, texts: Path, tmp_path: Path) -> None:
    messages: list[str] = []
    run(student, tmp_path / "out", texts, "recipe.transfer.lr=1e-30", which="transfer", tell=messages.append)
    assert any("transfer made nothing better" in what for what in messages)
    with pytest.raises(TrainingError, match="transfer made nothing better.*--strict makes this an error"):
        run(student, tmp_path / "strict", texts, "recipe.transfer.lr=1e-30", which="transfer", strict=True)
    assert not (tmp_path / "strict").exists()
    messages.clear()
    run(student, tmp_path / "good", texts, "recipe.transfer.start=scaled", which="transfer", tell=messages.append, strict=True)
    assert not any("made nothing better" in what for what in messages)


def test_repeated_tokens_are_warned_about(student: Path, texts: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text("".join(texts.read_text().splitlines(keepends=True)[:6]))
    with pytest.raises(
        TrainingError,
        match=r"transfer has data of \d+ tokens in \d rows?, and repeats them \d+ times.*--strict makes this an error",
    ):
        run(student, tmp_path / "out", few, "recipe.transfer.steps=200", which="transfer", strict=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["few.jsonl"]


@pytest.mark.parametrize(
    ("lengths", "batch", "steps", "message"),
    [
        (
            (10,),
            8,
            1,
            "transfer has data of 10 tokens in 1 row. 1 step of 8 rows of 16 tokens need data of 8 rows, about 128 tokens, or "
            "more. Add data.",
        ),
        (
            (16,) * 10,
            8,
            100,
            "transfer has data of 160 tokens in 10 rows, and repeats them 80 times: it may memorise them. 100 steps of "
            "8 rows of 16 tokens need data of 40 rows, about 640 tokens, or more. Add data, or at most 25 steps: "
            "--set recipe.transfer.steps=25.",
        ),
        ((16,) * 8, 8, 20, None),
    ],
)
def test_the_warning_has_available_and_needed_tokens(lengths: tuple[int, ...], batch: int, steps: int, message: str | None) -> None:
    """The suggested number of tokens is enough."""
    stages = {"transfer": Transfer(lr=1e-2, steps=steps, batch=batch)}
    assert list(too_few(stages, rows_of(lengths=lengths, sequence=16))) == ([message] if message else [])
    if message and (enough := re.search(r"data of (\d+) rows, about", message)):
        assert not list(too_few(stages, rows_of(lengths=(16,) * int(enough[1]), sequence=16)))
    if message and (fewer := re.search(r"steps=(\d+)", message)):
        stages = {"transfer": Transfer(lr=1e-2, steps=int(fewer[1]), batch=batch)}
        assert not list(too_few(stages, rows_of(lengths=lengths, sequence=16)))


def test_the_warning_names_too_few_tokens_if_nothing_is_learned() -> None:
    stage, rows = Transfer(lr=1e-2, steps=1), rows_of(lengths=(10,))
    outcome = Outcome(stage="transfer", steps=1, tokens=10, seconds=1.0, before={"layer 0": 1.0}, after={"layer 0": 1.0})
    (message,) = warn_if_nothing_learned([outcome], {"transfer": stage}, rows)
    assert "fell below its start, so the weights of the start were kept." in message
    assert message.endswith("Its data are 10 tokens, and do not fill a step: add data.")
    (message,) = warn_if_nothing_learned([outcome], {"transfer": stage.model_copy(update={"keep": "last"})}, rows)
    assert "no loss on the held-out rows fell below its start. Its data" in message, "what it began with is gone"
    nothing = outcome.model_copy(update={"before": {"layer 0": 0.0}, "after": {"layer 0": 0.0}})
    assert not list(warn_if_nothing_learned([nothing], {"transfer": stage}, rows)), "there is nothing to gain"


WINDOW, STATE, FULL = {"kind": "window", "size": 12}, "state", "full"
LINEAR = {"feature_map": "hedgehog", "memory": [WINDOW, STATE]}
LOLA = LINEAR | {"memory": [WINDOW, {"kind": "sparse", "size": 3}, STATE]}
TERRACED = LINEAR | {"memory": [{"kind": "window", "size": 6, "shape": "terraced"}, STATE]}


def resolved_head(**head: Any) -> Resolved:
    return resolve(load_spec({"compose": 1, "name": "tiny", "head": head}), SIZE)


@pytest.mark.parametrize(
    ("head", "lengths", "held_out", "named"),
    [
        (LINEAR, (16, 5), (12, 3), ["held-out text in a row has 12"]),
        (LINEAR, (5, 9), (16,), ["training text in a row has 9"]),
        (LINEAR, (5, 9), (7,), ["training", "held-out"]),
        (LINEAR, (13,), (13,), []),
        (LINEAR, (13,), None, []),
        (LOLA, (13,), (15,), ["training text in a row has 13", "held-out text in a row has 15"]),
        (LOLA, (16,), (16,), []),
        (TERRACED, (13,), (12,), ["held-out text in a row has 12"]),
        (LINEAR | {"memory": [STATE]}, (5,), (5,), []),
        ({"memory": [WINDOW | {"evict": "drop"}]}, (5,), (5,), []),
        ({"memory": [FULL]}, (5,), (5,), []),
    ],
)
def test_texts_shorter_than_the_window_are_warned_about(
    head: dict[str, Any], lengths: tuple[int, ...], held_out: tuple[int, ...] | None, named: list[str]
) -> None:
    rows, judged = rows_of(lengths=lengths), None if held_out is None else rows_of(lengths=held_out)
    messages = list(within_windows(resolved_head(**head), rows, judged, "packed"))
    assert len(messages) == len(named)
    for message, words in zip(messages, named, strict=True):
        assert words in message
        assert f"the heads keep {15 if head is LOLA else 12} pairs exactly" in message
        assert message.endswith("--set recipe.rows=joined.")


def test_parallel_memories_receive_every_pair() -> None:
    rows = rows_of(lengths=(5,))
    assert not list(within_windows(resolved_head(**LINEAR, flow="parallel"), rows, rows, "packed"))


def test_joined_texts_need_more_tokens_than_the_window(student: Path, texts: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.jsonl"
    short.write_text('{"text": "once upon a"}\n')
    with pytest.raises(
        TrainingError, match=r"3 tokens, and the heads keep 4 pairs exactly: .* Use more or longer texts\. --strict"
    ):
        run(student, tmp_path / "out", texts, "recipe.rows=joined", which="transfer", held_out=(str(short),), strict=True)
