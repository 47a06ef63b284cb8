"""Kill a run at ten random moments with SIGKILL, resume it after each, and compare the final weights bit for bit.

    python benchmarks/killed.py [--kills 10] [--seed 0] [--kind "finetune in memory"]

Attention transfer in memory, fine-tuning in memory, and streamed attention transfer of `examples/lolcats-small.yaml` on the shipped
teacher, a few steps each. Every run is a fork of this process, so nothing is imported again. It saves a checkpoint after each step,
and writes a byte to a pipe. A random number of further steps is drawn, at most twice all steps divided by the number of kills. The
run is killed at a random moment after the last of these steps, or before the first one. Moments drawn in seconds alone would mostly
lie in the start of a run, which takes longer than a step. If a run ends before it is killed, its weights are compared and it begins
again, until all kills are done. Writes benchmarks/results/killed.json with the kinds that were run. The exit code is 1 if any
weight differs, or if all kills of a kind came before its first step.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors.torch import load_file

from composer import build_folder
from composer.reporting.progress import silent_transformers
from composer.training.distill import distill
from composer.training.run import TrainingOptions
from composer.training.student import read_student

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "killed.json"
STEPS, BATCH, SAMPLES = 12, 2, 60
KINDS: dict[str, tuple[Literal["transfer", "finetune"], bool]] = {
    "transfer in memory": ("transfer", False),
    "finetune in memory": ("finetune", False),
    "transfer streamed": ("transfer", True),
}
"""The stage, and whether it is streamed, by the name in the result."""


class Course(NamedTuple):
    """The course of an undisturbed run: its steps, and the seconds before the first one, of each other one, and after the last."""

    steps: int
    start: float
    each: float
    end: float


def run(model: Path, out: Path, kind: str, *, resume: bool, step: Callable[[], None]) -> None:
    """Begin or resume a run. step: called after each step."""
    which, stream = KINDS[kind]
    options = TrainingOptions(
        [f"stories,samples={SAMPLES}"], resume=resume, stream=stream, checkpoint_seconds=0.0, watch=lambda _: step()
    )
    overrides = [f"recipe.{which}.steps={STEPS}", f"recipe.{which}.batch={BATCH}"]
    distill(read_student(model, overrides), out, options, which=which)


def run_whole(model: Path, out: Path, kind: str) -> Course:
    """Run without kills, and return the course."""
    steps, began = [], time.monotonic()
    run(model, out, kind, resume=False, step=lambda: steps.append(time.monotonic() - began))
    first, last = steps[0], steps[-1]
    return Course(len(steps), first, (last - first) / (len(steps) - 1), time.monotonic() - began - last)


def fork(model: Path, out: Path, kind: str) -> tuple[int, int]:
    """Fork this process. Return the id of the child, which begins or resumes the run, and a pipe with a byte for each step."""
    resume = out.with_name(f"{out.name}.run").exists()
    reader, writer = os.pipe()
    process = os.fork()
    if process:
        os.close(writer)
        return process, reader

    def step() -> None:
        os.write(writer, b".")

    code = 1
    try:
        run(model, out, kind, resume=resume, step=step)
        code = 0
    finally:
        os._exit(code)


def read_weights(out: Path) -> dict[str, torch.Tensor]:
    """Return the tensors in the folder of a finished run."""
    return {
        f"{path.name}/{name}": tensor for path in sorted(out.rglob("*.safetensors")) for name, tensor in load_file(path).items()
    }


def are_equal(tensors: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return tensors.keys() == expected.keys() and all(torch.equal(tensor, expected[name]) for name, tensor in tensors.items())


def count_steps(folder: Path) -> int:
    """Return the number of steps in the log of a killed run."""
    log = folder / "log.jsonl"
    return log.read_text(encoding="utf-8").count('"norm"') if log.is_file() else 0


def wait(reader: int, steps_left: int, course: Course, kills: int, choice: random.Random) -> None:
    """Wait until a run with this number of steps left is to be killed, or has ended."""
    steps = choice.randint(0, max(1, 2 * course.steps // kills))
    for _ in range(min(steps, steps_left)):
        if not os.read(reader, 1):
            return
    longest = course.end if steps > steps_left else course.each if steps else course.start
    time.sleep(choice.uniform(0.0, longest))


def run_with_kills(model: Path, folder: Path, kind: str, kills: int, choice: random.Random) -> dict[str, Any]:
    course = run_whole(model, folder / "whole", kind)
    expected = read_weights(folder / "whole")
    out, moments, compared, different = folder / "out", [], 0, 0
    while True:
        is_last = len(moments) == kills
        steps_left = course.steps - count_steps(folder / "out.run")
        process, reader = fork(model, out, kind)
        if not is_last:
            wait(reader, steps_left, course, kills, choice)
            os.kill(process, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        os.close(reader)
        if code == -signal.SIGKILL:
            moments.append(count_steps(folder / "out.run"))
            if not out.exists():
                continue
        elif code:
            sys.exit(f"{kind}: a continued run ended with {code}")
        # It ended by itself, or was killed during its cleanup.
        shutil.rmtree(folder / "out.run", ignore_errors=True)
        compared += 1
        different += not are_equal(expected, read_weights(out))
        shutil.rmtree(out)
        if is_last:
            return {"kills": kills, "steps_logged_when_killed": moments, "ends_compared": compared, "different": different}


def main() -> None:
    """Kill, continue, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, action="append", help="what to run; left out, all of them")
    options = parser.parse_args()
    torch.set_num_threads(1)
    choice, folder = random.Random(options.seed), Path(tempfile.mkdtemp(prefix="killed-"))
    try:
        build_folder(str(ROOT / "examples" / "lolcats-small.yaml"), ROOT / "examples" / "teacher", folder / "model")
        figures = {}
        for kind in options.kind or KINDS:
            (folder / kind).mkdir()
            figures[kind] = run_with_kills(folder / "model", folder / kind, kind, options.kills, choice)
            print(f"{kind}: {figures[kind]}", flush=True)
    finally:
        shutil.rmtree(folder)
    RESULTS.write_text(json.dumps({"seed": options.seed, "steps": STEPS, "kinds": figures}, indent=1) + "\n")
    if any(run_figures["different"] for run_figures in figures.values()):
        sys.exit("a run ended with other numbers")
    if not all(any(run_figures["steps_logged_when_killed"]) for run_figures in figures.values()):
        sys.exit("no run had finished a step when it was killed")


if __name__ == "__main__":
    with silent_transformers():
        main()
