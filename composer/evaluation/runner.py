"""Runs an evaluation: everything is checked first, then each model is loaded in turn and scored on the samples that are missing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composer.devices import check_device
from composer.errors import EvaluationError, TaskError
from composer.evaluation.arguments import NamedTask, read_lengths, read_tasks
from composer.evaluation.folder import RESULTS, TABLE, ScoreLog, open_score_log, write_whole
from composer.evaluation.harness import harness_facts, harness_figures, open_harness, run_harness
from composer.evaluation.options import SAMPLES, EvaluationOptions, EvaluationProgress
from composer.evaluation.perplexity import Perplexity
from composer.evaluation.report import CellKey, EvaluationCell, EvaluationReport, EvaluationSetting, TaskFacts, make_cell
from composer.evaluation.scoring import MORE, CellFailed, check_tokens, drawn, score_cell
from composer.evaluation.subjects import Subject, open_subjects
from composer.tasks.base import Task
from composer.tasks.writer import Writer
from composer.versions import versions_of
from composer.weights.contents import sha256
from composer.weights.opened import check_backends

PACKAGES = ("attention-composer", "torch", "transformers", "tokenizers", "peft")
HARNESS_PACKAGE = "lm-eval"


def evaluate(
    models: Sequence[str | Path] | Mapping[str, str | Path],
    tasks: Sequence[str | Task | Perplexity],
    lengths: Sequence[int],
    options: EvaluationOptions | None = None,
) -> EvaluationReport:
    """Scores every model on every task at every length.

    - models: folders that were built or distilled, or whatever a model can be built from; a mapping gives them labels.
    - tasks: names with options, as ``read_tasks`` has them, or objects.
    - lengths: tokens of a sample, its answer included.

    Raises EvaluationError, SourceError, BuildError and TaskError before anything is loaded or written. A cell that fails later
    says why in the report.
    """
    options = options or EvaluationOptions()
    check_device(options.device)
    _check_numbers(options)
    asked = read_tasks(tasks, options)
    if not (asked or options.harness):
        raise EvaluationError("Nothing says what to evaluate on: name tasks, such as --tasks passkey,recall.")
    lengths = read_lengths(lengths) if asked else ()
    manager = open_harness(options) if options.harness else None
    subjects = open_subjects(models)
    check_backends(options.backend, subjects)
    _check_room(subjects, asked, lengths)
    for subject in subjects:
        check_texts(subject.tokenizer, subject.source.trunk.vocabulary_size, asked, lengths)
    setting = _setting(subjects, asked, lengths, options)
    folder = None if options.out is None else options.out.expanduser()
    with open_score_log(folder, setting, force=options.force) as log:
        run = _Evaluation(subjects, asked, lengths, options, log, manager)
        cells = [cell for subject in subjects for cell in run.subject(subject)]
        found = [harness_figures(subject.label, log.harness(subject.label)) for subject in subjects if options.harness]
        report = EvaluationReport(
            setting=setting,
            batch_tokens=options.batch_tokens,
            cells=tuple(cells),
            harness=tuple(one for every in found for one in every),
        )
        if folder is not None:
            write_report(report, folder)
    return report


def write_report(report: EvaluationReport, folder: Path) -> None:
    """``results.json``, ``table.md`` and pictures. Raises EvaluationError."""
    from composer.evaluation.plots import draw
    from composer.evaluation.table import markdown

    write_whole(folder / RESULTS, report.model_dump_json(indent=2) + "\n")
    write_whole(folder / TABLE, markdown(report))
    draw(report, folder)


class _Evaluation:
    """Scores models in turn, and reports the progress of all."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        asked: Sequence[NamedTask],
        lengths: Sequence[int],
        options: EvaluationOptions,
        log: ScoreLog,
        manager: Any,
    ) -> None:
        """manager: lm-eval's, or None where it does not run."""
        self.options, self.log, self.manager = options, log, manager
        self._cells = [(one, length) for one in asked for length in lengths]
        self._counts = {
            CellKey(subject.label, one.label, length): drawn(one.task, Writer(subject.tokenizer), length).count
            for subject in subjects
            for one, length in self._cells
        }
        self._done = sum(len(log.results(key)) for key in self._counts)
        self._began = time.perf_counter()

    def subject(self, subject: Subject) -> list[EvaluationCell]:
        """All cells of one model, which is loaded if any of its samples is missing."""
        keys = [CellKey(subject.label, one.label, length) for one, length in self._cells]
        missing = any(len(self.log.results(key)) < self._counts[key] for key in keys)
        harness = self.manager is not None and self.log.harness(subject.label) is None
        model = subject.load(self.options.dtype, self.options.device, self.options.backend) if missing or harness else None
        cells = [self._cell(subject, model, key, one) for key, (one, _) in zip(keys, self._cells, strict=True)]
        if harness:
            self.log.add_harness(subject.label, run_harness(model, subject.tokenizer, self.options, self.manager))
        return cells

    def _cell(self, subject: Subject, model: Any, key: CellKey, asked: NamedTask) -> EvaluationCell:
        failure = None
        if len(self.log.results(key)) < self._counts[key]:
            self._tell(key)

            def keep(judged: Any) -> None:
                self.log.add(key, judged)
                self._done += 1
                self._tell(key)

            known = self.log.results(key).keys()
            try:
                score_cell(
                    model,
                    subject.tokenizer,
                    asked.task,
                    key.length,
                    batch_tokens=self.options.batch_tokens,
                    known=frozenset(known),
                    tell=keep,
                )
            except (CellFailed, TaskError) as error:
                failure = str(error)
        judged = [one for _, one in sorted(self.log.results(key).items())]
        return make_cell(key, asked.task.scored, judged, failure)

    def _tell(self, key: CellKey) -> None:
        if self.options.watch is not None:
            seconds = time.perf_counter() - self._began
            self.options.watch(EvaluationProgress(*key, done=self._done, total=sum(self._counts.values()), seconds=seconds))


def _check_numbers(options: EvaluationOptions) -> None:
    for name, number in (("--samples", options.samples), ("--batch-tokens", options.batch_tokens)):
        if number is not None and number < 1:
            raise EvaluationError(f"{name} {number}: say at least 1.")
    if options.seed < 0:
        raise EvaluationError(f"--seed {options.seed}: say 0 or more.")


def _check_room(subjects: Sequence[Subject], asked: Sequence[NamedTask], lengths: Sequence[int]) -> None:
    """Raises EvaluationError where a length exceeds a model's table of learned positions. Other kinds of positions have no end."""
    for subject in subjects:
        trunk = subject.source.trunk
        if not trunk.learns_positions or not lengths:
            continue
        more = MORE if any(one.task.scored == "written" for one in asked) else 0
        if lengths[-1] + more > trunk.max_positions:
            room = f", with {MORE} more for what is written" if more else ""
            raise EvaluationError(
                f"{subject.reference} has learned {trunk.max_positions:,} positions, too few for {lengths[-1]:,} tokens{room}: "
                f"ask for lengths up to {trunk.max_positions - more:,}."
            )


def check_texts(tokenizer: Any, vocabulary: int, asked: Sequence[NamedTask], lengths: Sequence[int]) -> None:
    """Raises TaskError and EvaluationError where a task cannot be written in a model's tokens at one of the lengths.

    All samples are made at the shortest length, since what fits there fits into more, and one at each other length.
    """
    writer = Writer(tokenizer)
    for one in asked:
        for length in lengths:
            samples = drawn(one.task, writer, length)
            for index in range(samples.count if length == lengths[0] else 1):
                check_tokens([samples.draw(index)], vocabulary, one.label)


def _setting(
    subjects: Sequence[Subject], asked: Sequence[NamedTask], lengths: Sequence[int], options: EvaluationOptions
) -> EvaluationSetting:
    return EvaluationSetting(
        models=tuple(subject.facts(options.dtype) for subject in subjects),
        tasks=tuple(task_facts(one) for one in asked),
        lengths=tuple(lengths),
        samples=options.samples or SAMPLES,
        seed=options.seed,
        device=options.device,
        backend=options.backend,
        harness=harness_facts(options) if options.harness else None,
        versions=versions_of((*PACKAGES, HARNESS_PACKAGE) if options.harness else PACKAGES),
    )


def task_facts(asked: NamedTask) -> TaskFacts:
    """All that decides the samples of a task."""
    task = asked.task
    return TaskFacts(
        label=asked.label,
        scored=task.scored,
        source=task.source,
        options=task.model_dump(mode="json"),
        files={name: sha256(path) for name, path in named_files(task).items()},
        provenance=_provenance(task),
    )


def named_files(task: Task | Perplexity) -> dict[str, Path]:
    """The files that a task's options name, by option and name."""
    named = {key: value for key in type(task).model_fields if isinstance(value := getattr(task, key), Path)}
    return {f"{key}/{path.name}": path for key, value in named.items() for path in _files(value)}


def _provenance(task: Any) -> Any:
    """Where a task's texts come from, if it says so."""
    told = getattr(task, "provenance", None)
    return told() if callable(told) else told


def _files(path: Path) -> list[Path]:
    """A file, or the text files of a folder."""
    return sorted(path.glob("*.txt")) if path.is_dir() else [path]
