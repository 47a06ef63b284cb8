"""Continues an evaluation: with the same settings, and with the same or more models, tasks and lengths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from composer.errors import EvaluationError
from composer.evaluation.report import (
    CellKey,
    EvaluationCell,
    EvaluationReport,
    EvaluationSetting,
    SampleResult,
    TaskIdentity,
    make_cell,
)

HARNESS_PACKAGE = "lm-eval"
"""Its version is a setting of evaluations that run it."""
SHOWN = 5
"""Differences that a message lists."""
UNFINISHED = "not finished: ask for it again"


def joined(begun: EvaluationSetting, setting: EvaluationSetting) -> EvaluationSetting:
    """The union of the earlier settings and those of this call. Raises EvaluationError with the settings that contradict each
    other."""
    before, now = begun.identity(), setting.identity()
    then, asked = dict(before), dict(now)
    whole = {**begun.model_dump(mode="json"), "lengths": sorted({*begun.lengths, *setting.lengths})}
    complete = setting.model_dump(mode="json")
    for key in ("models", "tasks"):
        whole[key] = [*({item["label"]: item for item in (*whole[key], *complete[key])}).values()]
        first, second = ({item["label"]: item for item in one[key]} for one in (before, now))
        both = first.keys() & second.keys()
        then[key], asked[key] = ([some[label] for label in first if label in both] for some in (first, second))
    if before["harness"] is None or now["harness"] is None:
        whole["harness"] = before["harness"] or now["harness"]
        then["harness"] = asked["harness"] = None
        whole["versions"] = before["versions"] | now["versions"]
        then["versions"], asked["versions"] = ({**one["versions"], HARNESS_PACKAGE: None} for one in (before, now))
    if not (begun.tasks and setting.tasks):
        whole["samples"] = (begun if begun.tasks else setting).samples
        then["samples"] = asked["samples"] = None
    then["lengths"] = asked["lengths"] = []
    differ = list(differences(then, asked))
    if differ:
        more = [f"and {len(differ) - SHOWN} more"] if len(differ) > SHOWN else []
        raise EvaluationError("".join(f"\n  {one}" for one in (*differ[:SHOWN], *more)))
    return EvaluationSetting.model_validate(whole)


def all_cells(
    setting: EvaluationSetting,
    fresh: Iterable[EvaluationCell],
    earlier: EvaluationReport | None,
    logged: Mapping[CellKey, Mapping[int, SampleResult]],
) -> Iterator[EvaluationCell]:
    """The cells of this call and of earlier ones, in the order of the setting, without combinations that no call had.

    logged: all scored samples, those of interrupted calls included; an earlier report's cell that lacks some of them is made anew.
    """
    before = {cell.key: cell for cell in (earlier.cells if earlier else ()) if cell.samples >= len(logged.get(cell.key, ()))}
    found = before | {cell.key: cell for cell in fresh}
    for model in setting.models:
        for task in setting.tasks:
            for length in setting.lengths:
                key = CellKey(model.label, task.label, length)
                if key in found:
                    yield found[key]
                elif judged := [one for _, one in sorted(logged.get(key, {}).items())]:
                    yield make_cell(key, task.scored, judged, None if len(judged) >= samples_of(task, setting) else UNFINISHED)


def samples_of(task: TaskIdentity, setting: EvaluationSetting) -> int:
    """The samples of a cell; a text that is shorter than so many windows has fewer."""
    said = task.options.get("samples")
    return said if isinstance(said, int) else setting.samples


def differences(then: Any, now: Any, path: str = "") -> Iterator[str]:
    """The differences between two settings, in words."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys((*then, *now)):
            yield from differences(then.get(key), now.get(key), f"{path}.{key}" if path else key)
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now) and any(isinstance(one, dict) for one in then):
        for place, (one, other) in enumerate(zip(then, now, strict=True)):
            label = one.get("label", place) if isinstance(one, dict) else place
            yield from differences(one, other, f"{path} {label}")
    elif then != now:
        yield f"{path}: {_in_words(then)} then, {_in_words(now)} now"


def _in_words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(one.get("label", one)) if isinstance(one, dict) else str(one) for one in value) or "none"
    if isinstance(value, dict):
        return "some"
    return "nothing" if value is None else str(value)
