"""Pictures show the report: a line per model, a square per depth, nothing for failed cells."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

mpl.use("Agg")

from composer.errors import EvaluationError
from composer.evaluation.cells import EvaluationCell, make_cell
from composer.evaluation.pictures import draw
from composer.evaluation.report import EvaluationReport, TaskIdentity, tables
from tests.composer.evaluation.test_cells import KEY, judged
from tests.composer.evaluation.test_folder import setting
from tests.composer.legible import assert_legible

pytestmark = pytest.mark.drawn


def cell(model: str, task: str, length: int, **more: Any) -> EvaluationCell:
    scored = "loss" if task == "stories" else "written"
    failure = more.pop("failure", None)
    return make_cell(KEY._replace(model=model, task=task, length=length), scored, judged(0.0, 1.0, **more), failure)


def report() -> EvaluationReport:
    (model,) = setting().models
    tasks = (
        TaskIdentity(label="passkey,form=original", scored="written", source="", options={}, files={}),
        TaskIdentity(label="stories", scored="loss", source="", options={}, files={}),
    )
    labels = ("one", "two|three")
    facts = tuple(model.model_copy(update={"label": label}) for label in labels)
    cells = [
        cell(label, "passkey,form=original", length, depths=(0.0, 0.95))
        for label in labels
        for length in (64, 128)
        if (label, length) != ("one", 128)
    ]
    cells.append(cell("one", "passkey,form=original", 128, failure="out of memory"))
    cells += [cell(label, "stories", length, losses=((1.0, 2.0), (3.0, 4.0))) for label in labels for length in (64, 128)]
    return EvaluationReport(setting=setting(models=facts, tasks=tasks, lengths=(64, 128)), batch_tokens=1, cells=tuple(cells))


def test_legends_name_only_drawn_models(tmp_path: Path, figures: dict[str, Any]) -> None:
    """A model that was not evaluated on a task, or failed in it, has no line in its legend."""
    base = report()
    left = tuple(cell for cell in base.cells if (cell.model, cell.task) != ("one", "stories"))
    draw(base.model_copy(update={"cells": left}), tmp_path)
    named = {name: [text.get_text() for text in figures[name].legends[0].get_texts()] for name in figures if "depth" not in name}
    assert named["loss-stories.png"] == ["two|three"]
    assert named["accuracy-passkey_form_original.png"] == ["one", "two|three"]


def test_pictures_show_the_figures(tmp_path: Path, figures: dict[str, Any]) -> None:
    paths = draw(report(), tmp_path)
    assert [path.name for path in paths] == [
        "accuracy-passkey_form_original.png",
        "depth-passkey_form_original.png",
        "loss-stories.png",
        "position-stories.png",
    ]
    (axis,) = figures["accuracy-passkey_form_original.png"].axes
    lines = [container.lines[0] for container in axis.containers]
    assert [line.get_xydata().tolist() for line in lines] == [[[64, 0.5]], [[64, 0.5], [128, 0.5]]]
    first, second, _ = figures["depth-passkey_form_original.png"].axes
    (first_image,), (two,) = first.images, second.images
    assert first_image.get_array().shape == two.get_array().shape == (10, 2)
    assert first_image.get_array().filled(-1)[:, 1].tolist() == [-1.0] * 10  # its cell failed; the column stays in its place
    assert two.get_array().filled(-1)[:, 1].tolist() == [0.0, *[-1.0] * 8, 1.0]
    (axis,) = figures["position-stories.png"].axes
    assert [line.get_xydata().tolist() for line in axis.lines] == [[[0.5, 2.0], [2.5, 3.0]]] * 2
    assert [line.get_label() for line in axis.lines] == ["one, 128 tokens", "two|three, 128 tokens"]
    for figure in figures.values():
        assert_legible(figure)


def test_pictures_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = draw(report(), tmp_path)
    before = first.read_bytes()
    for path in others:
        path.unlink()

    def savefig(figure: Any, path: Path, **_: Any) -> None:
        path.write_bytes(b"half of i")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(mpl.figure.Figure, "savefig", savefig)
    with pytest.raises(EvaluationError, match="plots cannot be written to: No space left on device"):
        draw(report(), tmp_path)
    assert [path.name for path in first.parent.iterdir()] == [first.name]
    assert first.read_bytes() == before


def test_labels_that_differ_only_in_punctuation_have_separate_files(tmp_path: Path) -> None:
    base = report()
    tasks = tuple(base.setting.tasks[1].model_copy(update={"label": label}) for label in ("text=a/b", "text=a_b"))
    cells = tuple(cell.model_copy(update={"task": task.label}) for task in tasks for cell in base.cells if cell.task == "stories")
    whole = base.model_copy(update={"setting": base.setting.model_copy(update={"tasks": tasks}), "cells": cells})
    assert [path.stem for path in draw(whole, tmp_path) if "loss" in path.name] == ["loss-text_a_b", "loss-text_a_b-2"]


def test_tasks_that_failed_for_all_models_have_no_picture(tmp_path: Path) -> None:
    failed = [cell.model_copy(update={"mean": None, "by_depth": (), "by_position": ()}) for cell in report().cells]
    assert draw(report().model_copy(update={"cells": tuple(failed)}), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_every_task_has_a_table_and_losses_have_two() -> None:
    first, second, third = tables(report())
    assert first.title == "passkey,form=original: share of samples answered right"
    half = "0.500 [0.095, 0.905]"
    assert first.rows == (("one", half, "out of memory"), ("two|three", half, half))
    assert (second.title, third.title) == ("stories: nats per token", "stories: perplexity")
    assert second.headers == third.headers == ("model", "64", "128")
    assert (second.rows[0][1:], third.rows[0][1:]) == (("0.500 ± 0.354",) * 2, ("1.649",) * 2)
    text = report().view().markdown()
    assert f"| one | {half} | out of memory |" in text
    assert r"| two\|three | " in text
    assert text.endswith("Mean [95 % interval] or ± standard error of 2 samples, seed 0.\n")
