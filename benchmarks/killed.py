"""Kill a run at ten random moments with SIGKILL, go on with --resume after each, and compare what it ends with bit for bit.

    python benchmarks/killed.py [--kills 10] [--seed 0] [--kind "finetune in memory"]

Attention transfer in memory, fine-tuning in memory, and streamed attention transfer of `examples/lolcats-small.yaml` on the shipped
teacher, a few steps each. Every run is a copy of this process (a fork: nothing is imported anew), takes a checkpoint after each
step, and tells of the step through a pipe. How many more steps it takes is drawn up to twice all of them divided by the number of
kills, and the kill falls at any moment after the last of these, or before the first: seconds alone would fall into the start of a
run, which takes longer than a step. So the kills fall all over it, from its first file to its last. Where a run comes to its end
before it is killed, its result is compared and it begins again, until all kills are done. Writes benchmarks/results/killed.json,
of the kinds that were run; exit code 1 where any number differs, or where no kill fell behind a step.
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
from composer.progress import silent_transformers
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
"""By what is reported: the stage, and whether it is streamed."""


class Course(NamedTuple):
    """The course of an undisturbed run: its steps, and the seconds before the first one, of each other one, and after the last."""

    steps: int
    start: float
    each: float
    end: float


def run(model: Path, out: Path, kind: str, *, resume: bool, step: Callable[[], None]) -> None:
    """step: is called after each."""
    which, stream = KINDS[kind]
    options = TrainingOptions(
        [f"stories,samples={SAMPLES}"], resume=resume, stream=stream, checkpoint_seconds=0.0, watch=lambda _: step()
    )
    overrides = [f"recipe.{which}.steps={STEPS}", f"recipe.{which}.batch={BATCH}"]
    distill(read_student(model, overrides), out, options, which=which)


def run_whole(model: Path, out: Path, kind: str) -> Course:
    """Run from the start to the end, and return the course."""
    steps, began = [], time.monotonic()
    run(model, out, kind, resume=False, step=lambda: steps.append(time.monotonic() - began))
    first, last = steps[0], steps[-1]
    return Course(len(steps), first, (last - first) / (len(steps) - 1), time.monotonic() - began - last)


def fork(model: Path, out: Path, kind: str) -> tuple[int, int]:
    """Return the process id of a copy of this process that begins or continues the run, and the pipe in which it writes a byte per
    step."""
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


def weights(out: Path) -> dict[str, torch.Tensor]:
    """Return all that a finished run has learned: the tensors in its folder."""
    return {
        f"{path.name}/{name}": tensor for path in sorted(out.rglob("*.safetensors")) for name, tensor in load_file(path).items()
    }


def same(tensors: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return tensors.keys() == expected.keys() and all(torch.equal(tensor, expected[name]) for name, tensor in tensors.items())


def steps_taken(folder: Path) -> int:
    """Return the lines of the log with steps: the progress of a killed run."""
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
    expected = weights(folder / "whole")
    out, moments, compared, different = folder / "out", [], 0, 0
    while True:
        done = len(moments) == kills
        steps_left = course.steps - steps_taken(folder / "out.run")
        process, reader = fork(model, out, kind)
        if not done:
            wait(reader, steps_left, course, kills, choice)
            os.kill(process, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        os.close(reader)
        if code == -signal.SIGKILL:
            moments.append(steps_taken(folder / "out.run"))
            if not out.exists():
                continue
        elif code:
            sys.exit(f"{kind}: a continued run ended with {code}")
        # It ended by itself, or was killed during its cleanup.
        shutil.rmtree(folder / "out.run", ignore_errors=True)
        compared += 1
        different += not same(expected, weights(out))
        shutil.rmtree(out)
        if done:
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
