"""Fine-tuning with and without on-policy steps, at equal processor time, on instructions.

    python benchmarks/on_policy.py TEACHER INSTRUCTIONS.jsonl [--seconds 60] [--out FOLDER]

The student is the teacher with a window of 16 tokens behind 4 sinks (`streaming`). LoRA learns the teacher's distribution: in all
steps at the tokens of the data (*texts*), or in half of the steps at tokens that the student wrote (*on-policy*). Both train for so
many seconds of processor time. On the last 100 records, which neither has seen, the table has the mean divergence at the tokens of
the answers, KL(teacher ‖ student), and, after the same prompts, at the student's own tokens: KL(student ‖ teacher), and the
teacher's loss. Writes benchmarks/results/on_policy.json.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

import composer
from benchmarks.harness import describe_machine, write
from composer.data.loading import load_rows
from composer.data.packing import PackedRows
from composer.errors import Stopped
from composer.model.modeling import ComposedForCausalLM
from composer.spec.recipe import OnPolicy
from composer.training.distill import distill
from composer.training.finetune import divergence, logits_at_targets
from composer.training.on_policy import continue_batch, generalised_divergence
from composer.training.rows import tokenizer_of
from composer.training.run import TrainingOptions
from composer.training.student import read_student
from composer.training.teacher import open_language_model
from composer.weights.load import load_model

SEQUENCE, SCORED, BATCH, RECORDS = 128, 24, 12, 100
FINETUNE = "{lr: 1e-3, steps: 100000, batch: 4, warmup: 10, lora: {rank: 8}, fresh: false, next_token: 0, distill: 1}"
RECIPE = f"recipe={{sequence: {SEQUENCE}, rows: padded, finetune: {FINETUNE}}}"
WAYS = {"texts": (), "on-policy": ("recipe.finetune.on_policy={share: 0.5, tokens: 24}",)}
WRITTEN = OnPolicy(share=1.0, tokens=32)


def train(student: Path, out: Path, data: str, overrides: tuple[str, ...], seconds: float) -> int:
    """Train for so many seconds of processor time. Return the number of steps."""
    end, steps = float("inf"), 0

    def watch(step: Any) -> None:
        nonlocal end, steps
        steps = step.step
        end = min(end, time.process_time() + seconds)  # the first step warms up
        if time.process_time() >= end:
            os.kill(os.getpid(), signal.SIGTERM)  # a process in the background may ignore SIGINT

    options: dict[str, Any] = {"data": [data], "share": 0.0, "checkpoint_seconds": 1e9, "force": True}
    try:
        distill(read_student(student, overrides), out, TrainingOptions(**options, watch=watch))
    except Stopped:
        distill(read_student(student, overrides), out, TrainingOptions(**{**options, "force": False}, finish=True))
    return steps


@torch.no_grad()
def score(student: ComposedForCausalLM, teacher: ComposedForCausalLM, rows: PackedRows) -> dict[str, float]:
    """Return the mean divergence at the answers of the data, and divergence and the teacher's loss at the student's own tokens."""
    sums, counts = {"answers": 0.0, "own": 0.0, "loss": 0.0}, {"answers": 0, "own": 0, "loss": 0}

    def add(name: str, losses: torch.Tensor) -> None:
        sums[name], counts[name] = sums[name] + float(losses.sum()), counts[name] + len(losses)

    for step, batch in enumerate(rows.in_order(BATCH)):
        (own, _), (wanted, _) = (logits_at_targets(model.eval(), batch) for model in (student, teacher))
        add("answers", divergence(own, wanted, 1.0))
        written = continue_batch(student, teacher, batch, WRITTEN, 1, step)
        (own, tokens), (wanted, _) = (logits_at_targets(model, written) for model in (student, teacher))
        add("own", generalised_divergence(own, wanted, WRITTEN))
        add("loss", functional.cross_entropy(wanted, tokens, reduction="none"))
    return {name: sums[name] / counts[name] for name in sums}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher")
    parser.add_argument("instructions", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=Path("build-output/on-policy"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    records = sum(1 for line in options.instructions.open(encoding="utf-8") if line.strip())
    student = options.out / "student"
    composer.build_folder(
        "streaming", options.teacher, student, overrides=["head.memory.1.size=16", RECIPE], dtype="float32", force=True
    )
    rows = load_rows(
        [f"{options.instructions},skip={records - RECORDS}"], tokenizer_of(student), SEQUENCE, split="train", how="padded",
        vocabulary=10**9, longest=SEQUENCE, share=0.0,
    )  # fmt: skip
    rows = rows.take(torch.arange(min(SCORED, len(rows))).numpy())
    teacher = open_language_model(options.teacher).load("cpu")

    def scores(folder: Path) -> dict[str, float]:
        model: Any = load_model(folder, "float32", "cpu")
        return score(model, teacher, rows)

    results: dict[str, Any] = {"before": {"steps": 0} | scores(student)}
    for name, overrides in WAYS.items():
        out = options.out / name
        data = f"{options.instructions},limit={records - RECORDS}"
        steps = train(student, out, data, overrides, options.seconds)
        results[name] = {"steps": steps} | scores(out)
        print(name, results[name], flush=True)
    table = Table("", "steps", "KL at the answers", "KL at its own tokens", "teacher's loss at these")
    for name, row in results.items():
        table.add_row(name, f"{row['steps']:,}", *(f"{row[key]:.3f}" for key in ("answers", "own", "loss")))
    Console(width=120).print(table)
    write("on_policy", {"about": describe_machine("cpu"), "seconds": options.seconds, "results": results})


if __name__ == "__main__":
    main()
