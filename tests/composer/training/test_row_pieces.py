"""Processes that share rows compute the losses and gradients of whole rows, also with sharded parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed

from composer.errors import DataError, TrainingError
from composer.spec.recipe import Finetune
from composer.training.finetune import FinetuneCourse, finetune_unit
from composer.training.processes import add_over_processes, count, process_group, shares, sharing_rows
from composer.training.row_pieces import check_row_processes
from composer.training.run import TrainingOptions
from tests.composer.model.models import llama
from tests.composer.training.processes import several
from tests.composer.training.runs import (
    RECIPE,
    SMALL,
    SPEC,
    gradients,
    make_student,
    make_teacher,
    rows_of,
    run,
    student_of,
    teacher_of,
    write_texts,
)
from tests.composer.training.test_processes import close, same_numbers
from tests.composer.weights.students import weights

STAGE = Finetune(lr=1e-3, steps=1, batch=4, distill=0.5, trunk=True, average="rows")


def learned(spec: str, how: Any) -> tuple[float, float, dict[str, Tensor]]:
    """Return the loss of a batch, its loss without gradients, and all gradients summed over the processes."""
    student = student_of(llama(**SMALL | {"num_hidden_layers": 4}), spec)
    teacher = teacher_of(llama(**SMALL | {"num_hidden_layers": 4}))
    course, rows = FinetuneCourse(student, finetune_unit(student, STAGE), STAGE, teacher), rows_of(16, how)
    batch = rows.batch(range(min(4, len(rows))))
    total, losses = course.count(batch), {"learned": 0.0, "judged": 0.0}
    for part, divisor in shares(batch, 2, total):
        losses["learned"] += float(course.compute_gradients(part, divisor)["model"])
    for part, divisor in shares(batch, 1, total):
        losses["judged"] += float(course.compute_losses(part, divisor)["model"])
    losses, slopes = add_over_processes(losses), gradients(student)
    if count() > 1:
        for name in sorted(slopes):
            distributed.all_reduce(slopes[name])
    return losses["learned"], losses["judged"], slopes


@pytest.mark.parametrize(("spec", "processes"), [("lolcats", 2), ("lawcat", 3), ("gated-delta", 2), ("gdn-hybrid", 2)], ids=str)
def test_losses_and_gradients_equal_those_of_whole_rows(spec: str, processes: int, tmp_path: Path) -> None:
    """Documents begin and end within pieces, rows have padding, and a hybrid passes keys and values on."""

    def act(rank: int) -> None:
        with process_group(), sharing_rows(processes):
            learned_by = {how: learned(spec, how) for how in ("packed", "padded")}
            if rank == 0:
                torch.save(learned_by, tmp_path / "found.pt")

    expected = {how: learned(spec, how) for how in ("packed", "padded")}
    assert several(processes, act) == [0] * processes
    for how, (loss, judged, slopes) in torch.load(tmp_path / "found.pt").items():
        assert (loss, judged) == pytest.approx(expected[how][:2], abs=1e-5)
        assert slopes.keys() == expected[how][2].keys()
        for name, slope in slopes.items():
            torch.testing.assert_close(slope, expected[how][2][name], rtol=0, atol=1e-12)


def test_groups_of_processes_share_rows_and_parameters(tmp_path: Path) -> None:
    """Four processes, two per row, with adapters and held-out rows take the steps of one process and write the same."""
    texts = write_texts(tmp_path / "texts.jsonl")
    student = make_student(tmp_path / "student", make_teacher(tmp_path / "teacher"), SPEC | {"recipe": RECIPE})
    chosen = ("recipe.finetune.steps=3", "recipe.finetune.batch=3", "recipe.finetune.lr=0.001", "recipe.finetune.distill=0.5")
    run(student, tmp_path / "one", texts, *chosen, which="finetune", held_out_rows=3)
    four = {"which": "finetune", "held_out_rows": 3, "row_processes": 2}
    assert several(4, lambda rank: run(student, tmp_path / "four", texts, *chosen, **four)) == [0] * 4
    close(tmp_path / "one", tmp_path / "four")
    same_numbers(weights(tmp_path / "one"), weights(tmp_path / "four"))


def test_pieces_predict_each_token_once() -> None:
    batch = rows_of(16, "padded").batch(range(3))
    pieces = [batch.piece(index, 3) for index in range(3)]
    assert torch.equal(torch.cat([piece.ids for piece in pieces], dim=1), batch.ids)
    predicted = torch.cat([piece.predicted for piece in pieces], dim=1)
    assert torch.equal(predicted, batch.predicted)
    assert all(torch.equal(piece.targets, batch.targets) for piece in pieces)
    with pytest.raises(DataError, match=r"17 processes cannot share rows of 16 tokens\. Make the rows longer"):
        batch.piece(0, 17)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"row_processes": 2}, "torchrun started 1 processes, which is no multiple of 2. Start torchrun --nproc-per-node 2."),
        ({"gradient_checkpointing": True}, "Leave out --gradient-checkpointing, or use more processes."),
        ({"teacher_logits": "logits"}, "Leave out --teacher-logits or --row-processes."),
    ],
)
def test_runs_that_need_whole_rows_are_refused(options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "row_processes" not in options:
        monkeypatch.setattr("composer.training.row_pieces.count", lambda: 2)
    with pytest.raises(TrainingError) as caught:
        check_row_processes({"finetune": STAGE}, TrainingOptions([], **{"row_processes": 2} | options))
    assert message in str(caught.value)


def test_attention_transfer_needs_whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    from composer.spec.recipe import Transfer

    monkeypatch.setattr("composer.training.row_pieces.count", lambda: 2)
    with pytest.raises(TrainingError, match="attention transfer compares layers on whole rows"):
        check_row_processes({"transfer": Transfer(lr=1e-3, steps=1), "finetune": STAGE}, TrainingOptions([], row_processes=2))
