"""The folder of an evaluation: its settings, a log of the samples that have been scored, and the results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from composer.errors import EvaluationError
from composer.evaluation.cells import CellKey, EvaluationCell, LoggedSample, SampleResult, make_cell
from composer.evaluation.report import EvaluationReport, EvaluationSetting, HarnessResult
from composer.runs.store import TABLE, RunStore
from composer.system.json_files import cut_interrupted_line, read_log, read_state
from converters.bounded import MOST_LOG, appending, brief, list_first

PICTURES = ("accuracy", "loss", "depth", "position")
"""The prefixes of the names of pictures."""
SAMPLES_OF_HARNESS = "lm-eval"
"""The folder of the samples that lm-eval logs, with a folder for each model."""
RUN, SAMPLES, HARNESS, RESULTS, PLOTS = "run.json", "samples.jsonl", "lm-eval.jsonl", "results.json", "plots"


STORE = RunStore(
    "evaluation",
    EvaluationError,
    mark=RUN,
    written=(
        SAMPLES,
        HARNESS,
        RESULTS,
        TABLE,
        f"{SAMPLES_OF_HARNESS}/*/samples_*.jsonl",
        *(f"{PLOTS}/{kind}-*.png" for kind in PICTURES),
    ),
)
UNFINISHED = "not finished: run the command again to finish it"
SAMPLES_AGAIN = "Remove it: its samples are then scored again. Or start again: --force."
REPORT_AGAIN = "Remove it: the report is then made of the scored samples. Or start again: --force."


class ScoreLog:
    """The samples that have been scored so far, by this call and those before it.

    folder: where they are logged; None keeps them in memory alone. setting: of the evaluation, over all of its calls. Raises
    EvaluationError if a log is damaged.
    """

    def __init__(self, folder: Path | None, setting: EvaluationSetting) -> None:
        self.folder, self.setting = folder, setting
        self._results: dict[CellKey, dict[int, SampleResult]] = {}
        self._harness: dict[str, HarnessResult] = {}
        self.earlier = _earlier_report(folder)
        """The report of earlier calls; None where there is none."""
        if folder is not None:
            for number, line in enumerate(read_log(folder / SAMPLES, LoggedSample, EvaluationError, SAMPLES_AGAIN), 1):
                _check_sample(line, setting, f"{folder / SAMPLES}, line {number:,}")
                self._results.setdefault(line.key, {})[line.index] = line.result
            labels = [model.label for model in setting.models]
            for number, line in enumerate(read_log(folder / HARNESS, HarnessResult, EvaluationError, SAMPLES_AGAIN), 1):
                _check_known(line.model, labels, "model", f"{folder / HARNESS}, line {number:,}")
                self._harness[line.model] = line
            with STORE.writing(folder):
                cut_interrupted_line(folder / SAMPLES)
                cut_interrupted_line(folder / HARNESS)

    def results(self, key: CellKey) -> dict[int, SampleResult]:
        """Return the samples of a cell, by index."""
        return self._results.get(key, {})

    @property
    def logged(self) -> Mapping[CellKey, Mapping[int, SampleResult]]:
        """All samples that have been scored, by cell and index."""
        return self._results

    def add(self, key: CellKey, judged: SampleResult) -> None:
        """Keep one more sample, on the disk from now on."""
        self._results.setdefault(key, {})[judged.index] = judged
        self._append(SAMPLES, LoggedSample(**key._asdict(), **dict(judged)))

    def harness(self, model: str) -> HarnessResult | None:
        """lm-eval's results for a model; None where it has not run."""
        return self._harness.get(model)

    def add_harness(self, result: HarnessResult) -> None:
        """Keep lm-eval's results for a model, on the disk from now on."""
        self._harness[result.model] = result
        self._append(HARNESS, result)

    def _append(self, name: str, line: LoggedSample | HarnessResult) -> None:
        if self.folder is None:
            return
        with STORE.writing(self.folder), appending(self.folder / name) as stream:
            value = line.model_dump(mode="json", exclude_none=True)
            stream.write((json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n").encode())


def _check_sample(line: LoggedSample, setting: EvaluationSetting, place: str) -> None:
    """Raise EvaluationError if a logged sample is of no cell of the evaluation, or has an impossible score."""
    tasks = {task.label: task for task in setting.tasks}
    _check_known(line.model, [model.label for model in setting.models], "model", place)
    _check_known(line.task, tasks, "task", place)
    _check_known(line.length, setting.lengths, "length", place)
    task = tasks[line.task]
    if line.index >= setting.samples_of(task):
        raise _damage_error(place, f"index: expected less than {setting.samples_of(task):,}, got {line.index:,}")
    if task.scored != "loss" and not 0 <= line.score <= 1:
        raise _damage_error(place, f"score: expected a share from 0 to 1, got {line.score:g}")


def _check_known(value: object, expected: Iterable[object], field: str, place: str) -> None:
    if value not in expected:
        raise _damage_error(place, f"{field}: expected one of {list_first(map(str, expected))}, got {brief(value)}")


def _damage_error(place: str, problem: str) -> EvaluationError:
    return EvaluationError(f"{place} is damaged: {problem}. {SAMPLES_AGAIN}")


@contextmanager
def open_score_log(folder: Path | None, setting: EvaluationSetting, *, force: bool) -> Iterator[ScoreLog]:
    """Continue the evaluation in a folder, or start one there. The folder is locked for the block.

    Models, tasks and lengths of earlier calls are kept beside those of this one. force: replace the evaluation in the folder.
    Raises EvaluationError if the folder has an evaluation with other settings, or other files.
    """
    if folder is None:
        yield ScoreLog(None, setting)
        return
    with STORE.hold(folder, resume=True, force=force):
        yield ScoreLog(folder, STORE.begin(folder, setting, force=force))


def _earlier_report(folder: Path | None) -> EvaluationReport | None:
    """Return the folder's earlier report; None where there is none. Raises EvaluationError if it is damaged."""
    try:
        return None if folder is None else read_state(folder / RESULTS, EvaluationReport, EvaluationError, REPORT_AGAIN, MOST_LOG)
    except FileNotFoundError:
        return None


def all_cells(
    setting: EvaluationSetting,
    fresh: Iterable[EvaluationCell],
    earlier: EvaluationReport | None,
    logged: Mapping[CellKey, Mapping[int, SampleResult]],
) -> Iterator[EvaluationCell]:
    """Yield the cells of this call and of earlier ones, in the order of the setting, without combinations that no call had.

    logged: all scored samples, those of interrupted calls included; an earlier report's cell that lacks some of them is computed
    again.
    """
    before = {cell.key: cell for cell in (earlier.cells if earlier else ()) if cell.samples >= len(logged.get(cell.key, ()))}
    cells = before | {cell.key: cell for cell in fresh}
    for model in setting.models:
        for task in setting.tasks:
            for length in setting.lengths:
                key = CellKey(model.label, task.label, length)
                if key in cells:
                    yield cells[key]
                elif judged := [result for _, result in sorted(logged.get(key, {}).items())]:
                    yield make_cell(key, task.scored, judged, None if len(judged) >= setting.samples_of(task) else UNFINISHED)
