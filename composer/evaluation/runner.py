"""Run an evaluation: everything is checked first, then one model after the other is loaded and scored on the missing samples."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from composer.errors import EvaluationError, Stopped, TaskError
from composer.evaluation.arguments import NamedTask, Perplexity, read_lengths, read_tasks
from composer.evaluation.cells import CellKey, EvaluationCell, make_cell
from composer.evaluation.folder import RESULTS, RUN, STORE, ScoreLog, all_cells, open_score_log
from composer.evaluation.harness import check_harness, harness_facts, harness_figures, open_harness, run_harness, samples_folder
from composer.evaluation.lengths import MadeSamples, OnMade, Subject, impossible_cells, open_subjects, task_facts
from composer.evaluation.options import SAMPLES, EvaluationOptions, EvaluationProgress
from composer.evaluation.report import HARNESS_PACKAGE, EvaluationReport, EvaluationSetting, ModelCutRequests
from composer.evaluation.scoring import CellFailed, draw_samples, score_cell
from composer.reporting.words import plural
from composer.spec.inherit import short_path
from composer.system.devices import check_device
from composer.system.versions import versions_of
from composer.tasks.base import Task
from composer.tasks.writer import Writer
from composer.weights.opened import check_backends

PACKAGES = ("attention-composer", "torch", "transformers", "tokenizers", "peft")


def evaluate(
    models: Sequence[str | Path] | Mapping[str, str | Path],
    tasks: Sequence[str | Task | Perplexity],
    lengths: Sequence[int],
    options: EvaluationOptions | None = None,
) -> EvaluationReport:
    """Score every model on every task at every length.

    - models: folders that were built or distilled, or sources that a model can be built from; a mapping has their labels as keys.
    - tasks: names with options, as for ``read_tasks``, or objects.
    - lengths: tokens of a sample, its answer included.

    Raises EvaluationError, SourceError, BuildError and TaskError before anything is loaded or written. A cell that is impossible,
    such as a length that is too short for its task, or that fails later, has its reason in the report. If the folder has an
    evaluation of the same settings, the report includes its cells.
    """
    options = options or EvaluationOptions()
    check_device(options.device)
    options.check()
    named = read_tasks(tasks, options)
    if not (named or options.lm_eval):
        raise EvaluationError("No task is set. Name tasks, such as --tasks passkey,recall.")
    lengths = read_lengths(lengths) if named else ()
    manager = open_harness(options) if options.lm_eval else None
    subjects = open_subjects(models, options.dtype)
    check_backends(options.backend, subjects)
    if options.lm_eval:
        check_harness(options, subjects)
    folder = None if options.out is None else options.out.expanduser()
    with _explain_interrupt(folder):
        impossible, samples_of = impossible_cells(subjects, named, lengths, _making(options))
        setting = _setting(subjects, named, lengths, options)
    with open_score_log(folder, setting, force=options.force) as log, _explain_interrupt(folder, log):
        run = _Evaluation(subjects, named, lengths, options, log, manager, impossible, samples_of)
        cells = [cell for subject in subjects for cell in run.subject(subject)]
        labels = [model.label for model in log.setting.models]
        results = [result for label in labels if (result := log.harness(label)) is not None]
        report = EvaluationReport(
            setting=log.setting,
            batch_tokens=options.batch_tokens,
            cells=tuple(all_cells(log.setting, cells, log.earlier, log.logged)),
            harness=tuple(figure for result in results for figure in harness_figures(result)),
            cut=tuple(ModelCutRequests(model=result.model, **dict(cut)) for result in results for cut in result.cut),
        )
        if folder is not None:
            write_report(report, folder)
    return report


def write_report(report: EvaluationReport, folder: Path) -> None:
    """``results.json``, ``table.md`` and pictures. Raises EvaluationError."""
    from composer.evaluation.pictures import draw

    with STORE.writing(folder):
        report.write(folder, RESULTS)
    draw(report, folder)


class _Evaluation:
    """Scores one model after the other, and reports the progress of all."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        tasks: Sequence[NamedTask],
        lengths: Sequence[int],
        options: EvaluationOptions,
        log: ScoreLog,
        manager: Any,
        impossible: Mapping[CellKey, str],
        samples_of: MadeSamples,
    ) -> None:
        """manager: lm-eval's, or None where it does not run. impossible: the reason for each cell that cannot be scored. made:
        samples that have been made already; those of a cell are removed as it begins."""
        self.options, self.log, self.manager = options, log, manager
        self._cells = [(task, length) for task in tasks for length in lengths]
        self._counts = {
            key: draw_samples(task.task, Writer(subject.tokenizer), length).count
            for subject in subjects
            for task, length in self._cells
            if (key := CellKey(subject.label, task.label, length)) not in impossible
        }
        self._impossible, self._samples_of = impossible, samples_of
        self._done = sum(len(log.results(key)) for key in self._counts)
        self._began = time.perf_counter()

    def subject(self, subject: Subject) -> list[EvaluationCell]:
        """Return all cells of one model, which is loaded if any of its samples is missing."""
        keys = [CellKey(subject.label, task.label, length) for task, length in self._cells]
        missing = any(self._lacks(key) for key in keys)
        harness = self.manager is not None and (self.log.harness(subject.label) is None or self._lacks_samples(subject))
        model = subject.load(self.options.dtype, self.options.device, self.options.backend) if missing or harness else None
        cells = [self._cell(subject, model, key, task) for key, (task, _) in zip(keys, self._cells, strict=True)]
        if harness:
            self.log.add_harness(run_harness(subject.label, model, subject.tokenizer, self.options, self.manager))
        return cells

    def _cell(self, subject: Subject, model: Any, key: CellKey, named: NamedTask) -> EvaluationCell:
        failure, samples_by_index = self._impossible.get(key), self._samples_of.pop(key, {})
        if self._lacks(key):
            self._report_progress(key)

            def keep(judged: Any) -> None:
                self.log.add(key, judged)
                self._done += 1
                self._report_progress(key)

            results = self.log.results(key).keys()
            try:
                score_cell(
                    model,
                    subject.tokenizer,
                    named.task,
                    key.length,
                    batch_tokens=self.options.batch_tokens,
                    scored_indices=frozenset(results),
                    samples_by_index=samples_by_index,
                    tell=keep,
                )
            except (CellFailed, TaskError) as error:
                failure = str(error)
        judged = [result for _, result in sorted(self.log.results(key).items())]
        return make_cell(key, named.task.scored, judged, failure)

    def _lacks_samples(self, subject: Subject) -> bool:
        """Whether lm-eval's samples of a model are to be logged, and are not."""
        folder = self.log.folder
        if not self.options.log_samples or folder is None:
            return False
        return not any(samples_folder(folder, subject.label).glob("samples_*.jsonl"))

    def _lacks(self, key: CellKey) -> bool:
        return key in self._counts and len(self.log.results(key)) < self._counts[key]

    def _report_progress(self, key: CellKey) -> None:
        if self.options.watch is not None:
            seconds = time.perf_counter() - self._began
            self.options.watch(EvaluationProgress(*key, done=self._done, total=sum(self._counts.values()), seconds=seconds))


def _making(options: EvaluationOptions) -> OnMade | None:
    watch, began = options.watch, time.perf_counter()
    if watch is None:
        return None
    return lambda key, done, count: watch(
        EvaluationProgress(*key, done=done, total=count, seconds=time.perf_counter() - began, making=True)
    )


@contextmanager
def _explain_interrupt(folder: Path | None, log: ScoreLog | None = None) -> Iterator[None]:
    """For the block, Ctrl-C prints what is kept, and how to continue."""
    try:
        yield
    except KeyboardInterrupt as error:
        if isinstance(error, Stopped):
            raise
        if folder is None:
            message = "Interrupted, and nothing is kept: with a folder (-o FOLDER), samples are kept as they are scored."
        elif log is None:
            message = "Interrupted while samples were made: nothing was scored yet. Run the same command again to start over."
            if (folder / RUN).is_file():
                unchanged = f"{short_path(folder)} is unchanged"
                message = f"Interrupted while samples were made: {unchanged}. Run the same command again to continue."
        else:
            count = sum(map(len, log.logged.values()))
            message = (
                f"Interrupted: {short_path(folder)} keeps {plural(count, 'scored sample')}. Run the same command again to continue."
            )
        raise Stopped(message, signal.SIGINT) from error


def _setting(
    subjects: Sequence[Subject], tasks: Sequence[NamedTask], lengths: Sequence[int], options: EvaluationOptions
) -> EvaluationSetting:
    return EvaluationSetting(
        models=tuple(subject.facts(options.dtype) for subject in subjects),
        tasks=tuple(task_facts(task) for task in tasks),
        lengths=tuple(lengths),
        samples=options.samples or SAMPLES,
        seed=options.seed,
        device=options.device,
        backend=options.backend,
        harness=harness_facts(options) if options.lm_eval else None,
        versions=versions_of((*PACKAGES, HARNESS_PACKAGE) if options.lm_eval else PACKAGES),
    )
