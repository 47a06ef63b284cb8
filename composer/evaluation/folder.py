"""The folder of an evaluation: its settings, a log of the samples that have been scored, and the results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from composer.errors import EvaluationError
from composer.evaluation.report import CellKey, EvaluationReport, EvaluationSetting, SampleResult
from composer.evaluation.resuming import joined
from composer.files import failing_as, visible_in, write_whole
from composer.locks import working_in
from converters.bounded import MOST_CONFIG, MOST_LOG, parse_json, read_json

PICTURES = ("accuracy", "loss", "depth", "position")
"""The prefixes of the names of pictures."""
RUN, SAMPLES, HARNESS, RESULTS, TABLE, PLOTS = "run.json", "samples.jsonl", "lm-eval.jsonl", "results.json", "table.md", "plots"


class ScoreLog:
    """The samples that have been scored so far, by this call and those before it.

    folder: where they are logged; None keeps them in memory alone. setting: of the evaluation, over all of its calls.
    """

    def __init__(self, folder: Path | None, setting: EvaluationSetting) -> None:
        self.folder, self.setting = folder, setting
        self._results: dict[CellKey, dict[int, SampleResult]] = {}
        self._harness: dict[str, Any] = {}
        if folder is not None:
            with _undamaged(folder / SAMPLES):
                for line in _whole_lines(folder / SAMPLES):
                    key = CellKey(line.pop("model"), line.pop("task"), line.pop("length"))
                    judged = SampleResult.model_validate(line)
                    self._results.setdefault(key, {})[judged.index] = judged
            with _undamaged(folder / HARNESS):
                for line in _whole_lines(folder / HARNESS):
                    self._harness[line["model"]] = line["results"]

    def results(self, key: CellKey) -> dict[int, SampleResult]:
        """The samples of a cell, by index."""
        return self._results.get(key, {})

    @property
    def logged(self) -> Mapping[CellKey, Mapping[int, SampleResult]]:
        """All samples that have been scored, by cell and index."""
        return self._results

    def add(self, key: CellKey, judged: SampleResult) -> None:
        """Keep one more sample, on the disk from now on."""
        self._results.setdefault(key, {})[judged.index] = judged
        self._append(SAMPLES, {**key._asdict(), **judged.model_dump(mode="json", exclude_none=True)})

    def harness(self, model: str) -> Any:
        """lm-eval's results for a model; None where it has not run."""
        return self._harness.get(model)

    def add_harness(self, model: str, results: Any) -> None:
        self._harness[model] = results
        self._append(HARNESS, {"model": model, "results": results})

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        if self.folder is None:
            return
        with writable(self.folder), (self.folder / name).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")


@contextmanager
def open_score_log(folder: Path | None, setting: EvaluationSetting, *, force: bool) -> Iterator[ScoreLog]:
    """Continues the evaluation in a folder, or starts one there; for the block, the folder is locked against others.

    Models, tasks and lengths of earlier calls stay beside those of this one. force: replace the evaluation in the folder. Raises
    EvaluationError where the folder holds one with other settings, or other
    """
    if folder is None:
        yield ScoreLog(None, setting)
        return
    with working_in(folder, EvaluationError, "Another run writes to"):
        begun = (folder / RUN).is_file()
        if begun and not force:
            setting = _joined(folder, setting)
        elif begun:
            _remove(folder)
        elif visible_in(folder):
            raise EvaluationError(f"{folder} holds no {RUN}, so no evaluation wrote it. Move it away, or choose another --out.")
        log = ScoreLog(folder, setting)
        with writable(folder):
            write_whole(folder / RUN, json.dumps(setting.identity(), indent=2, ensure_ascii=False) + "\n")
        yield log


def _joined(folder: Path, setting: EvaluationSetting) -> EvaluationSetting:
    """The settings of the evaluation in a folder, joined with those of this call. Raises EvaluationError where they contradict."""
    path = folder / RUN
    try:
        return joined(read_json(path, MOST_CONFIG), setting, earlier_report(folder))
    except EvaluationError as error:
        raise EvaluationError(
            f"{folder} holds an evaluation with other settings:{error}\n"
            "Say the same as then, choose another --out, or begin anew: --force."
        ) from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        problem = str(error).splitlines()[0]
        raise EvaluationError(
            f"{path} cannot be read ({problem}), so nothing says what was evaluated. Begin anew: --force."
        ) from error


def earlier_report(folder: Path | None) -> EvaluationReport | None:
    """The folder's earlier report; None where there is none, or none that can be read."""
    try:
        return None if folder is None else EvaluationReport.model_validate(read_json(folder / RESULTS, MOST_LOG))
    except (OSError, ValueError):
        return None


def _remove(folder: Path) -> None:
    """Remove the files of an evaluation, and no others."""
    with writable(folder):
        for name in (RUN, SAMPLES, HARNESS, RESULTS, TABLE):
            (folder / name).unlink(missing_ok=True)
        for kind in PICTURES:
            for picture in (folder / PLOTS).glob(f"{kind}-*.png"):
                picture.unlink()


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log. An incomplete last one, which a kill may leave, is cut off the file, so that lines can be added."""
    if not path.is_file():
        return
    with path.open("rb+") as stream:
        contents = stream.read(MOST_LOG + 1)
        if len(contents) > MOST_LOG:
            raise ValueError(f"larger than {MOST_LOG:,} bytes")
        whole = contents.rfind(b"\n") + 1
        if whole < len(contents):
            stream.truncate(whole)
    for line in contents[:whole].splitlines():
        found = parse_json(line)
        if not isinstance(found, dict):
            raise ValueError(f"a line that holds a {type(found).__name__}")
        yield found


@contextmanager
def _undamaged(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise EvaluationError(f"{path} is damaged: {str(error).splitlines()[0]}. Begin anew: --force.") from error


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Raises EvaluationError where the block cannot write to a folder."""
    with failing_as(EvaluationError, f"{folder} cannot be written to", "What is there stands; mend it and say the same again."):
        yield
