"""Several processes compute the same as one, each with a share of parameters and rows, and end, stop and continue together."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn
from torch.distributed.tensor import DTensor

from composer.errors import TrainingError
from composer.model.modeling import ComposedForCausalLM
from composer.spec.recipe import Stage
from composer.system.devices import seed_for_block
from composer.training import checkpoint, distill, loop, processes
from composer.training.distill import train
from composer.training.processes import (
    add_over_processes,
    broadcast_from_first,
    by_first,
    gather_shards,
    process_group,
    shard,
    shares,
    take_gpu,
)
from composer.training.run import TrainingOptions
from composer.training.student import read_student
from composer.training.unit import Unit
from tests.composer.training.processes import FAILED, killed_at, several
from tests.composer.training.runs import make_student, make_teacher, rows_of, run
from tests.composer.training.stages import log
from tests.composer.weights.students import weights

pytestmark = pytest.mark.long

STEPS = 6
SCALED = "recipe.transfer.start=scaled"
"""Nearer starts enlarge the rounding errors by which processes differ."""
# Rows that two processes cannot share evenly.
LONG = (
    f"recipe.transfer.steps={STEPS}",
    "recipe.transfer.batch=3",
    SCALED,
    "recipe.transfer.accumulate=1",
    "recipe.transfer.evaluate=3",
    f"recipe.finetune.steps={STEPS}",
    "recipe.finetune.lr=0.001",  # faster, it passes places where rounding errors grow a thousandfold
    "recipe.finetune.batch=5",
    "recipe.finetune.evaluate=3",
    "recipe.finetune.distill=0.5",
)
BRIEF = 3
FEW: dict[str, Any] = {"held_out_rows": 3}
"""Enough that two processes cannot share them evenly."""
SHORT = (
    *(f"recipe.{stage}.steps={BRIEF}" for stage in ("transfer", "finetune")),
    "recipe.transfer.cross_entropy=0.1",
    SCALED,
)


def close(first: Path, other: Path) -> None:
    """Return whether two runs took the same steps: losses and evaluations within 1e-5, norms within 1e-4 of themselves."""
    bounds: dict[str, dict[str, float]] = {"loss": {"abs": 1e-5}, "held_out": {"abs": 1e-5}, "norm": {"rel": 1e-4}}
    for line, other_line in zip(log(first / "training"), log(other / "training"), strict=True):
        assert line.keys() == other_line.keys()
        for name, figure in line.items():
            assert other_line[name] == (pytest.approx(figure, **bounds[name]) if name in bounds else figure)


def same_numbers(first: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert first.keys() == other.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(other[name], tensor, rtol=0, atol=1e-5)


def parts(model: nn.Module) -> dict[str, float]:
    """Return this process's share of each parameter, or 1 if it is not sharded."""
    return {
        name: parameter.to_local().numel() / parameter.numel() if isinstance(parameter, DTensor) else 1.0
        for name, parameter in model.named_parameters()
    }


def watched(student: Path, out: Path, texts: Path, file: Path) -> Callable[[int], None]:
    """Run and record each process's share of both models during training, and the rows of each call."""

    def act(rank: int) -> None:
        held: dict[str, list[Any]] = {"shares": [], "rows": []}
        course_of, learn_in = distill._course, loop.shares

        def course(stage: Any, learner: ComposedForCausalLM, teacher: ComposedForCausalLM, options: TrainingOptions) -> Any:
            made = course_of(stage, learner, teacher, options)
            held["shares"] += [parts(learner), parts(teacher)]
            return made

        def watch(*arguments: Any) -> Any:
            for share, divisor in learn_in(*arguments):
                held["rows"].append((len(share), math.isinf(divisor)))
                yield share, divisor

        distill._course, loop.shares = course, watch
        run(student, out, texts, *LONG)
        (file / f"{rank}.json").write_text(json.dumps(held))

    return act


@pytest.fixture(scope="module")
def alone(student: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of both stages in one process."""
    out = tmp_path_factory.mktemp("alone") / "out"
    run(student, out, texts, *LONG)
    return out


@pytest.fixture(scope="module")
def pair(student: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The results of both stages in two processes, and their shares."""
    folder = tmp_path_factory.mktemp("pair")
    assert several(2, watched(student, folder / "out", texts, folder)) == [0, 0]
    return folder / "out", [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_two_processes_equal_one(alone: Path, pair: tuple[Path, list[dict[str, Any]]]) -> None:
    """All steps of both stages and the written weights match."""
    out, _ = pair
    assert [line["step"] for line in log(out / "training") if "loss" in line] == [*range(1, STEPS + 1)] * 2
    close(alone, out)
    same_numbers(weights(alone), weights(out))
    adapters = "adapter/adapter_model.safetensors"
    same_numbers(load_file(alone / adapters), load_file(out / adapters))
    assert {path.relative_to(out) for path in out.rglob("*")} == {path.relative_to(alone) for path in alone.rglob("*")}


def test_parameters_and_rows_are_sharded(pair: tuple[Path, list[dict[str, Any]]]) -> None:
    """No process holds a whole model. Independent processes would compute the same."""
    _, held = pair
    assert [len(share["shares"]) for share in held] == [4, 4], "student and teacher, in both stages"
    for first, other in zip(held[0]["shares"], held[1]["shares"], strict=True):
        assert all(".composed." in name or share == 0.5 for name, share in first.items())
        assert all(share + other[name] == 1 and 0 < share < 1 for name, share in first.items())
    taken = [tuple(rows for rows, left_out in share["rows"] if not left_out) for share in held]
    assert taken[0].count(3) >= STEPS, "of 5 rows, the first takes 3"
    assert taken[1].count(3) == 0
    assert 1 in taken[1]
    assert sum(taken[0]) > sum(taken[1]) > 0
    assert any(left_out for _, left_out in held[1]["rows"]), "the last held-out row is for one process alone"


def stopped(count: int, at: int, student: Path, out: Path, texts: Path, **options: Any) -> None:
    """Return a run whose processes are killed after checkpoint ``at`` (from 1)."""

    def act(rank: int) -> None:
        killed_at(pytest.MonkeyPatch(), checkpoint, "save", at, behind=True)
        run(student, out, texts, *SHORT, **FEW, checkpoint_seconds=0.0, **options)

    assert several(count, act) == [-signal.SIGKILL] * count
    assert (out.parent / f"{out.name}.run").is_dir()


def test_runs_resume_with_another_number_of_processes(student: Path, texts: Path, tmp_path: Path) -> None:
    """The run starts with two processes and continues with one, then with three in the second stage. Adapters are merged as with
    one.
    """
    single, out = tmp_path / "one", tmp_path / "out"
    run(student, single, texts, *SHORT, **FEW, merge=True)
    stopped(2, 2, student, out, texts, merge=True)
    stopped(1, 2, student, out, texts, merge=True, resume=True)
    assert several(3, lambda rank: run(student, out, texts, *SHORT, **FEW, merge=True, resume=True)) == [0, 0, 0]
    close(single, out)
    same_numbers(weights(single), weights(out))


@pytest.mark.full  # beside the test above, and test_killed.py for one process
def test_runs_resume_with_the_same_number_to_the_same_bits(student: Path, texts: Path, tmp_path: Path) -> None:
    """This holds also if only one process was killed during a checkpoint. The other does not wait for it."""

    def act(rank: int) -> None:
        if rank == 1:
            killed_at(pytest.MonkeyPatch(), checkpoint, "_tensors", BRIEF + 2, behind=False)
        run(student, tmp_path / "out", texts, *SHORT, checkpoint_seconds=0.0)

    assert several(2, lambda rank: run(student, tmp_path / "pair", texts, *SHORT)) == [0, 0]
    assert several(2, act, tmp_path / "printed") == [FAILED, -signal.SIGKILL]
    assert several(2, lambda rank: run(student, tmp_path / "out", texts, *SHORT, resume=True)) == [0, 0]
    for file in ("fresh.safetensors", "adapter/adapter_model.safetensors", "training/log.jsonl"):
        assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "pair" / file).read_bytes()


def test_fewer_rows_than_processes_and_gradient_checkpointing_equal_one_process(texts: Path, tmp_path: Path) -> None:
    """Training of all parameters with tied embeddings and padding: three processes on two rows equal one without gradient
    checkpointing.
    """
    student = make_student(tmp_path / "student", make_teacher(tmp_path / "teacher", tie_word_embeddings=True))
    overrides = [f"recipe.train.{setting}" for setting in ("lr=0.01", "steps=4", "batch=2", "accumulate=2", "evaluate=2")]
    overrides.append("recipe.rows=padded")

    def act(out: str, **options: Any) -> None:
        train(read_student(student, overrides), tmp_path / out, TrainingOptions([str(texts)], share=0.2, **options))

    act("one")
    assert several(3, lambda rank: act("three", gradient_checkpointing=True)) == [0, 0, 0]
    close(tmp_path / "one", tmp_path / "three")
    same_numbers(weights(tmp_path / "one"), weights(tmp_path / "three"))


class Branching(nn.Module):
    """A module that uses one of two parameters, depending on its input."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (inputs * (self.left if inputs[0] < 0 else self.right)).sum()


def test_unused_parameters_get_the_gradients_of_other_processes() -> None:
    """All processes have the sum of their gradients, even if only one process uses a parameter."""

    def act(rank: int) -> None:
        with process_group():
            model = Branching()
            shard(model, [], "cpu")
            model(torch.tensor([-2.0, 1.0] if rank else [3.0, 4.0])).backward()
            model(torch.tensor([5.0, 6.0])).backward()
            for parameter, expected in ((model.left, [-2.0, 1.0]), (model.right, [13.0, 16.0])):
                assert isinstance(parameter.grad, DTensor)
                assert parameter.grad.full_tensor().tolist() == expected

    assert several(2, act) == [0, 0]


def test_the_first_process_decides_when_checkpoints_are_written(student: Path, texts: Path, tmp_path: Path) -> None:
    """With separate clocks, processes would write different numbers of checkpoints and wait for each other for ever."""

    def act(rank: int) -> None:
        clock, original = time.monotonic, checkpoint.save
        saved: list[int] = []
        patch = pytest.MonkeyPatch()
        if rank:
            patch.setattr(loop.time, "monotonic", lambda: 1e6 * clock())
        patch.setattr(checkpoint, "save", lambda folder, step, *rest: (saved.append(step), original(folder, step, *rest)))
        run(student, tmp_path / "out", texts, *SHORT, which="transfer")
        assert saved == [BRIEF]

    assert several(2, act) == [0, 0]


def test_processes_have_separate_random_states(tmp_path: Path) -> None:
    """Each process continues with its own random state."""

    def act(rank: int) -> None:
        with process_group(), seed_for_block(loop.seed_of(0, "finetune"), "cpu"):
            unit = Unit("unit", Stage(lr=1, steps=1), [(1.0, {"weight": nn.Parameter(torch.zeros(2))})])
            checkpoint.save(tmp_path, 1, [unit], {})
            drawn = torch.rand(3)
            assert broadcast_from_first(float(drawn[0])) != float(drawn[0]) or rank == 0
            newest = checkpoint.newest(tmp_path)
            assert newest is not None
            checkpoint.restore(newest, [unit])
            assert torch.equal(torch.rand(3), drawn)

    assert several(2, act) == [0, 0]


def full(*arguments: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_errors_of_the_first_process_reach_all(tmp_path: Path) -> None:
    def act(rank: int) -> None:
        with process_group():
            assert by_first(lambda: f"of {rank}") == "of 0"
            assert broadcast_from_first(float(rank)) == 0.0
            assert add_over_processes({"a": rank + 0.5, "b": math.inf * rank}) == pytest.approx(
                {"a": 2.0, "b": math.nan}, nan_ok=True
            )
            assert gather_shards({"a": torch.ones(1)}, for_first=True).keys() == ({"a"} if rank == 0 else set())
            with pytest.raises(OSError, match="No space left"):
                by_first(full)
            with pytest.raises(TrainingError, match="cuda:0 is one GPU, and 2 processes need one each: set --device cuda"):
                take_gpu("cuda:0")
        assert processes.count() == 1

    assert several(2, act) == [0, 0]


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 5))
def test_every_row_is_used_once(rows: int, accumulate: int, count: int) -> None:
    """All processes run equally often, and none has more rows at a time than a single process would."""
    accumulate = min(accumulate, rows)
    data = rows_of(4, lengths=[4] * rows)
    batch, taken = data.batch(range(rows)), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "count", lambda: count)
        for rank in range(count):
            patch.setattr(processes, "rank", lambda rank=rank: rank)
            taken.append(list(shares(batch, accumulate, 7.0)))
    assert len({len(own) for own in taken}) == 1
    assert all(1 <= len(share) <= math.ceil(rows / accumulate) for own in taken for share, _ in own)
    assert {divisor for own in taken for _, divisor in own} <= {7.0, math.inf}
    counted = [
        row for of_all in zip(*taken, strict=True) for share, divisor in of_all if divisor == 7.0 for row in share.ids.tolist()
    ]
    assert counted == batch.ids.tolist()
