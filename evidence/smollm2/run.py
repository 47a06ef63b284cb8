"""Builds, trains and scores the models of a plan with the commands of the product, and keeps what each run found in one file.

A step of a run is one command. A step that ended is not run again, so a stopped run continues.
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
from composer.devices import device_name
from composer.errors import ComposerError, EvaluationError
from composer.evaluation.folder import SAMPLES, SAMPLES_AGAIN
from composer.evaluation.report import LoggedSample
from composer.files import write_whole
from composer.state import read_log
from composer.versions import versions_of
from composer.weights.record import TrainedStage, read_record
from evidence.smollm2.plan import HERE, Inputs, Plan, Student, identity
from evidence.smollm2.result import RUNS, Result, keep, read_result

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
        """The plan's entry; None for the teacher."""
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
"""Runs Python with the arguments that follow. Linux ends it by SIGTERM when its parent ends, also where the parent is killed. A
``preexec_fn`` would do the same, but is not safe where several threads start processes."""

Step = tuple[str, list[str]]
"""The name of a step, and the arguments of ``compose``."""


def runs_of(plan: Plan, inputs: Inputs, work: Path) -> Iterator[Run]:
    """The runs of a plan: the teacher, all students with their first seed, then the other seeds."""
    yield Run(plan, inputs, plan.baseline, 0, work)
    most = max(len(student.seeds) for student in plan.students)
    for number in range(most):
        for student in plan.students:
            if number < len(student.seeds):
                yield Run(plan, inputs, student.name, student.seeds[number], work)


def is_kept(run: Run, kept: Path = RUNS) -> bool:
    """Whether a result of this run, with its present settings, is kept."""
    result = read_result(run.name, run.seed, kept)
    return result is not None and result.identity == identity(run.plan, run.name, run.seed, run.inputs)


def run_model(run: Run, tell: Listener, kept: Path = RUNS) -> Result:
    """Build, train and score one model, and keep the result. Raises ComposerError if a command fails."""
    run.folder.mkdir(parents=True, exist_ok=True)
    for step, arguments in steps_of(run):
        execute_once(run.folder, step, arguments, tell, run.inputs.rows)
    result = result_of(run)
    keep(result, kept)
    return result


def steps_of(run: Run) -> Iterator[Step]:
    """The commands of a run, in their order."""
    if run.student is not None:
        yield from training_of(run, run.student)
    plan, inputs, model = run.plan, run.inputs, str(run.model.resolve() if run.model.exists() else run.model)
    common = ["eval", model, "--dtype", inputs.dtype, "--device", inputs.device]
    for step, harness, folder in (("general", plan.general, inputs.tasks), ("written", plan.written, TASKS)):
        if harness is not None:
            names = list(harness.tasks) if folder is None else [task.local for task in harness.tasks.values()]
            own = ["--lm-eval", ",".join(names), "--limit", str(harness.rows), "--log-samples"]
            local = [] if folder is None else ["--include-path", str(folder)]
            yield step, [*common, *own, *local, "-o", str(run.folder / step)]
    for step, scored, option, file in (
        ("text", plan.text, "--text", inputs.text),
        ("retrieval", plan.retrieval, "--haystack", inputs.haystack),
    ):
        if scored is not None:
            words = ["--tasks", ",".join(scored.tasks), "--lengths", ",".join(map(str, scored.lengths))]
            words += ["--samples", str(scored.samples), *([] if file is None else [option, str(file)])]
            yield step, [*common, *words, "-o", str(run.folder / step)]


def training_of(run: Run, student: Student) -> Iterator[Step]:
    """The commands that build and train a student."""
    recipe, seed, folder = run.plan.recipe(student), ["--seed", str(run.seed)], run.folder
    spec, source = student.spec, run.inputs.teacher
    data = [word for reference in student.data or run.inputs.data for word in ("--data", reference)]
    values = [word for value in student.set for word in ("--set", value)]
    stages = [stage for stage in STAGES if stage in recipe]
    values += ["--set", "recipe=null"]  # a mapping alone would be merged with the spec's own recipe
    values += ["--set", f"recipe={json.dumps(recipe)}"] if stages else []
    if student.source is not None:
        source = str(Run(run.plan, run.inputs, student.source, run.seed, run.work).model)
    if student.keep is not None:
        chosen = ["--keep", str(student.keep), *data, *values, *seed, "--device", run.inputs.device]
        yield "select", ["select", spec, "--from", source, *chosen, "-o", str(folder / "selected")]
        spec, values = str(folder / "selected" / "spec.yaml"), []
    yield "build", ["build", spec, "--from", source, *values, *seed, "--force", "-o", str(folder / "built")]
    before = "built"
    for stage in stages:
        after = "trained" if stage == stages[-1] else "transferred"
        words = ["distill", str(folder / before), "--stage", stage, *data, *seed, "-o", str(folder / after)]
        words += ["--held-out-rows", str(run.plan.held_out_rows), "--device", run.inputs.device]
        words += ["--bfloat16"] if run.inputs.bfloat16 else []
        if run.inputs.accumulate is not None:
            words += ["--set", f"recipe.{stage}.accumulate={run.inputs.accumulate}"]
        yield stage, [*words, *(["--merge"] if stage == "finetune" else [])]
        before = after


def ended(folder: Path, step: str) -> dict[str, Any] | None:
    """What is noted of a step that ended: its command and its seconds; None where it has not."""
    path = folder / f"{step}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def execute_once(folder: Path, step: str, arguments: list[str], tell: Listener, rows: Path | None = None) -> None:
    """Run a command of ``compose`` and note it, unless it has ended before. rows: the working directory of lm-eval's tasks.

    One thread of the processor computes, or as many as OMP_NUM_THREADS states. A command that was stopped continues, and its time
    is then unknown. Raises ComposerError if the command fails.
    """
    if ended(folder, step) is not None:
        return
    tell(f"{folder.name}: {step}")
    started = folder / f"{step}.started"
    again = started.exists()
    started.touch()
    resumed = ["--resume"] if arguments[0] == "distill" and Path(arguments[arguments.index("-o") + 1] + ".run").exists() else []
    words = [sys.executable, "-c", ENDS_WITH_PARENT, "-m", "composer", *arguments, *resumed]
    environment = {"OMP_NUM_THREADS": "1"} | os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    shown = sys.stderr.isatty()
    began = time.monotonic()
    with (folder / f"{step}.log").open("a", encoding="utf-8") as log:
        process = Popen(
            words if shown else [*words, "--quiet"],
            stdout=log,
            stderr=None if shown else log,
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
    note = {
        "command": arguments,
        "seconds": None if again else round(time.monotonic() - began, 1),
    }
    write_whole(folder / f"{step}.json", json.dumps(note, indent=1) + "\n")


def result_of(run: Run) -> Result:
    """The result of a run whose steps have ended."""
    notes = {step: note for step, _ in steps_of(run) if (note := ended(run.folder, step)) is not None}
    stages = _stages(run)
    return Result(
        name=run.name,
        seed=run.seed,
        identity=identity(run.plan, run.name, run.seed, run.inputs),
        commands={step: _public(run, note["command"]) for step, note in notes.items()},
        seconds={step: note["seconds"] for step, note in notes.items()},
        tokens={stage.stage: stage.tokens for stage in stages},
        held_out={
            f"{stage.stage} {when}": fmean(losses.values())
            for stage in stages
            for when, losses in (("before", stage.before), ("after", stage.after))
            if losses
        },
        harness=dict(_harness(run)),
        text=_samples(run.folder / "text", lambda sample: sample.score),
        positions={
            task: {length: _means(samples) for length, samples in lengths.items()}
            for task, lengths in _samples(run.folder / "text", lambda sample: sample.nats).items()
        },
        retrieval=_samples(run.folder / "retrieval", lambda sample: sample.score),
        state_bytes=_state_bytes(run),
        versions=versions_of(PACKAGES),
        device=device_name(run.inputs.device),
    )


def _stages(run: Run) -> tuple[TrainedStage, ...]:
    """The stages of training that a student has been through, as its record has them."""
    record = None if run.student is None else read_record(run.model)
    return () if record is None else record.training


def _state_bytes(run: Run) -> dict[int, int]:
    """The bytes of the state, or the cache, of one text, in bfloat16, by its length in tokens."""
    of = ("softmax", run.inputs.teacher) if run.student is None else (run.model, None)
    lengths = {length for scored in (run.plan.text, run.plan.retrieval) if scored is not None for length in scored.lengths}
    return {length: composer.explain(*of, sequence=length, dtype="bfloat16").state_bytes for length in sorted(lengths)}


def _public(run: Run, command: list[str]) -> list[str]:
    """A command with names in place of this machine's paths."""
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


def _harness(run: Run) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """The scores of each row, by task, named as in lm-eval, and metric."""
    for step, harness in (("general", run.plan.general), ("written", run.plan.written)):
        local = {} if harness is None else {task.local: name for name, task in harness.tasks.items()}
        for path in sorted((run.folder / step).glob("lm-eval/*/samples_*.jsonl")):
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            rows.sort(key=lambda row: row["doc_id"])
            metrics = [metric for metric in rows[0]["metrics"] if isinstance(rows[0][metric], int | float)]
            name = path.stem.removeprefix("samples_")
            yield local.get(name, name), {metric: [round(float(row[metric]), 4) for row in rows] for metric in metrics}


def _samples(folder: Path, value: Callable[[LoggedSample], Any]) -> dict[str, dict[int, list[Any]]]:
    """A value of each sample of an evaluation, in the samples' order, by task and length."""
    values: dict[str, dict[int, list[Any]]] = {}
    lines = read_log(folder / SAMPLES, LoggedSample, EvaluationError, SAMPLES_AGAIN)
    for sample in sorted(lines, key=lambda sample: sample.index):
        values.setdefault(sample.task, {}).setdefault(sample.length, []).append(value(sample))
    return values


def _means(samples: Sequence[Sequence[float | None]]) -> list[float | None]:
    """The mean of each column, without missing values; None where all are missing."""
    columns = [[value for value in column if value is not None] for column in zip(*samples, strict=True)]
    return [round(sum(column) / len(column), 4) if column else None for column in columns]
