"""Build, train and score the models of a plan by commands of ``compose``, and write the result of each run to one file.

A step of a run is one command. A finished step is not run again, so a stopped run continues.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from signal import Signals
from statistics import fmean
from subprocess import Popen
from typing import Any

import composer
from composer.ablation.plan import PACKAGES
from composer.errors import ComposerError, EvaluationError
from composer.evaluation.cells import LoggedSample
from composer.evaluation.folder import SAMPLES, SAMPLES_AGAIN
from composer.system.devices import device_name
from composer.system.files import write_whole
from composer.system.json_files import read_log
from composer.system.versions import versions_of
from composer.weights.record import TrainedStage, read_record
from evidence.smollm2.choices import build_rules, choose_heads, read_scores
from evidence.smollm2.plan import FILES, HERE, Inputs, Plan, Student, compute_identity
from evidence.smollm2.result import Result, keep_result, read_result

Listener = Callable[[str], None]
TASKS = HERE / "tasks"
STAGES = ("transfer", "finetune")


@dataclass(frozen=True)
class Run:
    """One model of a plan with one seed, and the folder for its steps."""

    plan: Plan
    inputs: Inputs
    name: str
    seed: int
    work: Path

    @property
    def folder(self) -> Path:
        return self.work / f"{self.name}-{self.seed}"

    @property
    def student(self) -> Student | None:
        """The plan's student; None for the teacher."""
        return None if self.name == self.plan.baseline else self.plan.student(self.name)

    @property
    def model(self) -> Path:
        """The folder of the finished model."""
        student = self.student
        if student is None:
            return Path(self.inputs.teacher)
        return self.folder / ("built" if student.transfer is None and student.finetune is None else "trained")


ENDS_WITH_PARENT = """
import ctypes, os, signal, sys
if prctl := getattr(ctypes.CDLL(None), "prctl", None):
    prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""A program that runs Python with the arguments that follow. Linux ends it by SIGTERM when its parent ends, even if the parent is
killed. A ``preexec_fn`` would do the same, but is not safe if several threads start processes."""

Step = tuple[str, list[str]]
"""The name of a step, and the arguments of ``compose``."""


def runs_of(plan: Plan, inputs: Inputs, work: Path) -> Iterator[Run]:
    """Yield the runs of a plan: the teacher, all students with their first seeds, then the other seeds."""
    yield Run(plan, inputs, plan.baseline, 0, work)
    seed_count = max(len(student.seeds) for student in plan.students)
    for number in range(seed_count):
        for student in plan.students:
            if number < len(student.seeds):
                yield Run(plan, inputs, student.name, student.seeds[number], work)


def is_kept(run: Run, runs_folder: Path) -> bool:
    """True if a result of this run with its present settings is kept."""
    result = read_result(run.name, run.seed, runs_folder)
    return result is not None and result.identity == compute_identity(run.plan, run.name, run.seed, run.inputs)


def run_model(run: Run, tell: Listener, runs_folder: Path) -> Result:
    """Build, train and score one model, and write the result to its file. Raises ComposerError if a command fails."""
    run.folder.mkdir(parents=True, exist_ok=True)
    for step, arguments in steps_of(run):
        execute_once(run.folder, step, arguments, tell, run.inputs.rows)
    result = build_result(run)
    keep_result(result, runs_folder)
    return result


def steps_of(run: Run) -> Iterator[Step]:
    """Yield the steps of a run in order: their names and the arguments of ``compose``."""
    if run.student is None:
        yield from evaluations_of(run)
        return
    yield from training_of(run, run.student)
    chosen = run.student.evaluations
    yield from (step for step in evaluations_of(run) if chosen is None or step[0] in chosen)


def evaluations_of(run: Run) -> Iterator[Step]:
    """Yield the steps that score a model."""
    plan, inputs, model = run.plan, run.inputs, str(run.model.resolve() if run.model.exists() else run.model)
    common = ["eval", model, "--dtype", inputs.dtype, "--device", inputs.device]
    for step, harness, folder in (("general", plan.general, inputs.tasks), ("written", plan.written, TASKS)):
        if harness is not None:
            names = list(harness.tasks) if folder is None else [task.local for task in harness.tasks.values()]
            options = ["--lm-eval", ",".join(names), "--limit", str(harness.rows), "--log-samples"]
            local = [] if folder is None else ["--include-path", str(folder)]
            yield step, [*common, *options, *local, "-o", str(run.folder / step)]
    for step, evaluation, option, file in (
        ("text", plan.text, "--text", inputs.text),
        ("retrieval", plan.retrieval, "--haystack", inputs.haystack),
    ):
        if evaluation is not None:
            own_lengths = None if run.student is None or step == "text" else run.student.lengths
            words = ["--tasks", ",".join(evaluation.tasks), "--lengths", ",".join(map(str, own_lengths or evaluation.lengths))]
            words += ["--samples", str(evaluation.samples), *([] if file is None else [option, str(file)])]
            yield step, [*common, *words, "-o", str(run.folder / step)]


def training_of(run: Run, student: Student) -> Iterator[Step]:
    """Yield the steps that build and train a student."""
    recipe, seed, folder = run.plan.recipe(student), ["--seed", str(run.seed)], run.folder
    spec, source = student.spec, run.inputs.teacher
    references = [given for name in student.data or (FILES,) for given in (run.inputs.data if name == FILES else (name,))]
    data = [word for reference in references for word in ("--data", reference)]
    values = [word for value in student.set for word in ("--set", value)]
    stages = [stage for stage in STAGES if stage in recipe]
    values += ["--set", "recipe=null"]  # a mapping alone would be merged with the spec's own recipe
    values += ["--set", f"recipe={json.dumps(recipe)}"] if stages else []
    if student.source is not None:
        source = str(Run(run.plan, run.inputs, student.source, run.seed, run.work).model)
    if student.keep is not None:
        kept_heads = choose_heads(student.keep, read_scores(run.plan, student.keep), run.seed)
        rules = build_rules(spec, values[1::2], source, kept_heads)
        values += ["--set", f"layers={json.dumps(rules)}"]
    yield "build", ["build", spec, "--from", source, *values, *seed, "--force", "-o", str(folder / "built")]
    folder_before = "built"
    for stage in stages:
        folder_after = "trained" if stage == stages[-1] else "transferred"
        words = ["distill", str(folder / folder_before), "--stage", stage, *data, *seed, "-o", str(folder / folder_after)]
        words += ["--held-out-rows", str(run.plan.held_out_rows), "--device", run.inputs.device]
        words += ["--bfloat16"] if run.inputs.bfloat16 else []
        if run.inputs.accumulate is not None:
            words += ["--set", f"recipe.{stage}.accumulate={run.inputs.accumulate}"]
        yield stage, [*words, *(["--merge"] if stage == "finetune" else [])]
        folder_before = folder_after


def read_step_record(folder: Path, step: str) -> dict[str, Any] | None:
    """Return the record of a finished step, with its command and its seconds, or None if the step has not finished."""
    path = folder / f"{step}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def execute_once(folder: Path, step: str, arguments: list[str], tell: Listener, rows: Path | None = None) -> None:
    """Run a command of ``compose`` and write its record, unless the step has a record.

    rows: the working directory of lm-eval's tasks. The command uses OMP_NUM_THREADS threads, by default one. A stopped command
    continues, and its record then has no time. Raises ComposerError if the command fails.
    """
    if read_step_record(folder, step) is not None:
        return
    tell(f"{folder.name}: {step}")
    started = folder / f"{step}.started"
    was_stopped = started.exists()
    started.touch()
    resumed = ["--resume"] if arguments[0] == "distill" and Path(arguments[arguments.index("-o") + 1] + ".run").exists() else []
    command = [sys.executable, "-c", ENDS_WITH_PARENT, "-m", "composer", *arguments, *resumed]
    environment = {"OMP_NUM_THREADS": "1"} | os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    has_terminal = sys.stderr.isatty()
    start = time.monotonic()
    with (folder / f"{step}.log").open("a", encoding="utf-8") as log:
        process = Popen(
            command if has_terminal else [*command, "--quiet"],
            stdout=log,
            stderr=None if has_terminal else log,
            env=environment,
            cwd=rows if "--lm-eval" in arguments else None,
        )
        try:
            status = process.wait()
        except KeyboardInterrupt:
            process.wait()
            raise
    if status < 0:
        name = Signals(-status).name
        memory = ", which Linux sends where memory runs out" if name == "SIGKILL" else ""
        raise ComposerError(f"compose {' '.join(arguments)} was ended by {name}{memory}. Run the same again: it continues.")
    if status:
        tail = (folder / f"{step}.log").read_text(encoding="utf-8").strip().splitlines()[-3:]
        raise ComposerError(f"compose {' '.join(arguments)} failed:\n" + "\n".join(tail))
    record = {
        "command": arguments,
        "seconds": None if was_stopped else round(time.monotonic() - start, 1),
    }
    write_whole(folder / f"{step}.json", json.dumps(record, indent=1) + "\n")


def build_result(run: Run) -> Result:
    """Build the result of a run whose steps have finished."""
    records = {step: record for step, _ in steps_of(run) if (record := read_step_record(run.folder, step)) is not None}
    stages = _read_stages(run)
    return Result(
        name=run.name,
        seed=run.seed,
        identity=compute_identity(run.plan, run.name, run.seed, run.inputs),
        commands={step: _hide_paths(run, record["command"]) for step, record in records.items()},
        seconds={step: record["seconds"] for step, record in records.items()},
        tokens={stage.stage: stage.tokens for stage in stages},
        held_out={
            f"{stage.stage} {when}": fmean(losses.values())
            for stage in stages
            for when, losses in (("before", stage.before), ("after", stage.after))
            if losses
        },
        harness=dict(_read_harness(run)),
        text=_read_samples(run.folder / "text", lambda sample: sample.score),
        positions={
            task: {length: _mean_columns(samples) for length, samples in lengths.items()}
            for task, lengths in _read_samples(run.folder / "text", lambda sample: sample.nats).items()
        },
        retrieval=_read_samples(run.folder / "retrieval", lambda sample: sample.score),
        state_bytes=_state_bytes(run),
        versions=versions_of(PACKAGES),
        device=device_name(run.inputs.device),
    )


def _read_stages(run: Run) -> tuple[TrainedStage, ...]:
    """Read the stages of training from a student's record."""
    record = None if run.student is None else read_record(run.model)
    return () if record is None else record.training


def _state_bytes(run: Run) -> dict[int, int]:
    """Return the size of one text's state or cache in bfloat16, in bytes, by the text's length in tokens."""
    subject = ("softmax", run.inputs.teacher) if run.student is None else (run.model, None)
    lengths = {
        length for evaluation in (run.plan.text, run.plan.retrieval) if evaluation is not None for length in evaluation.lengths
    }
    return {length: composer.explain(*subject, sequence=length, dtype="bfloat16").state_bytes for length in sorted(lengths)}


def _hide_paths(run: Run, command: list[str]) -> list[str]:
    """Return a command with names in place of this machine's paths."""
    names = {
        str(run.work.resolve()): "WORK",
        str(run.work): "WORK",
        str(run.inputs.teacher): "TEACHER",
        str(TASKS): "evidence/smollm2/tasks",
    }
    names |= {str(Path(run.inputs.teacher).resolve()): "TEACHER"}
    names |= {str(path): path.name for path in (run.inputs.text, run.inputs.haystack) if path is not None}
    names |= {reference: Path(reference).name for reference in run.inputs.data}
    names |= {} if run.inputs.tasks is None else {str(run.inputs.tasks): "TASKS"}
    return [reduce(lambda text, item: text.replace(*item), names.items(), word) for word in command]


def _read_harness(run: Run) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """Yield the name of each task in lm-eval, and the scores of its rows by metric."""
    for step, harness in (("general", run.plan.general), ("written", run.plan.written)):
        local = {} if harness is None else {task.local: name for name, task in harness.tasks.items()}
        for path in sorted((run.folder / step).glob("lm-eval/*/samples_*.jsonl")):
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            rows.sort(key=lambda row: row["doc_id"])
            metrics = [metric for metric in rows[0]["metrics"] if isinstance(rows[0][metric], int | float)]
            name = path.stem.removeprefix("samples_")
            yield local.get(name, name), {metric: [round(float(row[metric]), 4) for row in rows] for metric in metrics}


def _read_samples(folder: Path, value: Callable[[LoggedSample], Any]) -> dict[str, dict[int, list[Any]]]:
    """Read a value of each sample of an evaluation, in the samples' order, by task and length."""
    values: dict[str, dict[int, list[Any]]] = {}
    lines = read_log(folder / SAMPLES, LoggedSample, EvaluationError, SAMPLES_AGAIN)
    for sample in sorted(lines, key=lambda sample: sample.index):
        values.setdefault(sample.task, {}).setdefault(sample.length, []).append(value(sample))
    return values


def _mean_columns(samples: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Return the mean of each column without missing values, or None if all are missing."""
    columns = [[value for value in column if value is not None] for column in zip(*samples, strict=True)]
    return [round(sum(column) / len(column), 4) if column else None for column in columns]
