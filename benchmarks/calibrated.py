"""How many steps of attention transfer a calibrated start saves.

    python benchmarks/calibrated.py [--seeds 0,1,2] [--steps 50,100]

LoLCATs and LAWCAT on examples/teacher are trained by the first stage of the evidence page's recipe: 200 steps of 16 rows of 256
tokens (stories, passkeys, recall) at 3e-2. Other runs begin at calibrated starts, with fewer steps and a schedule for each number
of steps, or at the default start with half of the steps. Losses are means over the layers on held-out rows. Writes
benchmarks/results/calibrated.json; a new run adds only missing results.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

import composer
from composer.training.run import TrainingReport
from evidence.experiments import RECIPE, SKILLS, TEACHER

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "calibrated.json"
SPECS = {"lolcats": "LoLCATs", "lawcat": "LAWCAT"}
FULL, HELD_OUT = 200, 64
"""Steps from the default start; held-out rows for the losses."""


def build_overrides(start: str, steps: int) -> list[str]:
    """Return overrides that keep only the first stage, with so many steps from this start."""
    stage = {"steps": steps, "warmup": max(1, steps // 20), "evaluate": steps, "start": start}
    return [*RECIPE, "recipe.finetune=null", *(f"recipe.transfer.{name}={value}" for name, value in stage.items())]


def train(spec: str, start: str, steps: int, seed: int) -> dict[str, float]:
    """Return the losses before and after, and the seconds of the calibration and of the steps."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "student"
        composer.build_folder(spec, ROOT / TEACHER, model, seed=seed)
        report: TrainingReport = composer.distill(
            model,
            SKILLS,
            Path(folder) / "trained",
            stage="transfer",
            overrides=build_overrides(start, steps),
            held_out_rows=HELD_OUT,
            seed=seed,
            tell=lambda _: None,
        )
    (outcome,) = report.stages
    mean = {when: sum(losses.values()) / len(losses) for when, losses in (("before", outcome.before), ("after", outcome.after))}
    return {**mean, "calibrating": outcome.start.seconds if outcome.start else 0.0, "training": outcome.seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", default="50,100")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = (
        json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {"recipe": RECIPE, "runs": {}}
    )
    if list(RECIPE) != list(results["recipe"]):
        parser.error(f"{RESULTS} has runs by another recipe: remove it, and all of them are done anew")
    runs = results["runs"]
    numbers = [int(number) for number in options.steps.split(",")]
    for seed in (int(number) for number in options.seeds.split(",")):
        for spec in SPECS:
            for start, steps in [("parts", FULL), *(("calibrated", number) for number in numbers), ("parts", FULL // 2)]:
                key = f"{spec} {start} {steps} {seed}"
                if key not in runs:
                    runs[key] = train(spec, start, steps, seed)
                    RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
                    print(key, {name: round(figure, 5) for name, figure in runs[key].items()}, flush=True)
    print(format_table(runs))


def format_table(runs: dict[str, dict[str, float]]) -> str:
    """Return a Markdown table of the losses by start and steps, with one figure for each seed."""
    lines = ["| | start | steps | held-out loss, a figure a seed |", "|---|---|---|---|"]
    for spec, name in SPECS.items():
        kinds = {(start, int(steps)) for trained, start, steps, _ in map(str.split, runs) if trained == spec}
        rows = [(start, steps, "after", steps) for start, steps in sorted(kinds)]
        rows += [(start, 0, "before", steps) for start, steps in dict(sorted(kinds)).items()]
        for start, steps, when, run in sorted(rows, reverse=True):
            figures = [f"{losses[when]:.4f}" for key, losses in runs.items() if key.startswith(f"{spec} {start} {run} ")]
            lines.append(f"| {name} | `{start}` | {steps} | {', '.join(figures)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
