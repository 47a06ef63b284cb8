"""Speed of prefill and decode, and size of the state: ``compose bench`` of untrained students."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from composer import build_folder
from composer.ablation.plan import PACKAGES
from composer.benching.options import BenchOptions
from composer.benching.report import BenchCell
from composer.benching.runner import bench
from composer.system.versions import versions_of
from evidence.experiments import OUT, SEEDS, TEACHER
from evidence.kept import RUNS, Run, hash_files, keep_run, path_of, read_run

NAME = "speed"
STUDENTS = ("lawcat", "lolcats", "latte-macchiato")
PREFILL, DECODE, BATCHES = (256, 1024, 4096, 16384), (512, 8192), (1, 8)
FIRST = "teacher"
MODELS = f"{TEACHER} {' '.join(f'{OUT}/{NAME}/{spec}' for spec in STUDENTS)}"
COMMANDS = (
    *(f"compose build {spec} --from {TEACHER} -o {OUT}/{NAME}/{spec}" for spec in STUDENTS),
    f"compose bench {MODELS} --prefill {','.join(map(str, PREFILL))} --repeats 3 --seed SEED",
    f"compose bench {MODELS} --decode {','.join(map(str, DECODE))} --batch {','.join(map(str, BATCHES))} --seed SEED",
)


def compute_identity(seed: int) -> str:
    """Return the identity of a seed's bench."""
    inputs = {"commands": COMMANDS, "seed": seed, "source": hash_files(Path(TEACHER))}
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]


def column_titles() -> set[str]:
    """Return the titles of all columns of a run."""
    prefill = {speed_title("prefill", length) for length in PREFILL}
    decode = {speed_title("decode", position, batch) for position in DECODE for batch in BATCHES}
    return prefill | decode | {state_title(position) for position in DECODE} | {time_title(position) for position in DECODE}


def speed_title(kind: str, length: int, batch: int = 1) -> str:
    """Return the title of a column of speeds relative to the teacher's."""
    return f"{kind} {length:,}" + (f" × {batch}" if batch > 1 else "")


def state_title(position: int) -> str:
    return f"KiB at {position:,}"


def time_title(position: int) -> str:
    return f"ms a token at {position:,}"


def run_missing(work: Path, tell: Callable[[str], None], device: str = "cpu", runs_folder: Path = RUNS) -> None:
    """Run a bench for each seed that is not kept. On a CPU, only ratios of its times are reliable."""
    missing = [seed for seed in SEEDS if not _is_kept(seed, runs_folder)]
    tell(f"{NAME}: {len(missing)} benches to do")
    models: dict[str, str | Path] = {FIRST: TEACHER}
    for spec in STUDENTS if missing else ():
        models[spec] = work / NAME / spec
        build_folder(spec, TEACHER, work / NAME / spec, force=True)
    for seed in missing:
        cells = [
            *bench(models, PREFILL, (), BenchOptions(repeats=3, seed=seed, device=device)).cells,
            *bench(models, (), DECODE, BenchOptions(batch=BATCHES, seed=seed, device=device)).cells,
        ]
        for name in models:
            _keep_run(name, seed, [cell for cell in cells if cell.model == name], runs_folder)
        tell(f"{NAME}: seed {seed}")


def _is_kept(seed: int, runs_folder: Path) -> bool:
    runs = [read_run(path_of(NAME, name, seed, runs_folder)) for name in (FIRST, *STUDENTS)]
    return all(run is not None and run.identity == compute_identity(seed) for run in runs)


def _keep_run(name: str, seed: int, cells: list[BenchCell], runs_folder: Path) -> None:
    figures: dict[str, float] = {}
    for cell in cells:
        if cell.speed is not None:
            figures[speed_title(cell.kind, cell.length, cell.batch)] = cell.speed
        if cell.kind == "decode" and cell.batch == 1 and cell.median is not None and cell.state_bytes is not None:
            figures[state_title(cell.length)] = cell.state_bytes / 1024
            figures[time_title(cell.length)] = cell.median * 1000
    run = Run(
        experiment=NAME,
        variant=name,
        seed=seed,
        identity=compute_identity(seed),
        values={},
        figures=figures,
        teacher_perplexity=None,
        seconds=round(sum(sum(cell.seconds) for cell in cells), 1),
        versions=versions_of(PACKAGES),
    )
    keep_run(run, runs_folder)
