"""A teacher is in memory only while it is used, and a run without a stage that learns from it needs none."""

from __future__ import annotations

import gc
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import composer
from composer.errors import SourceError, TrainingError
from composer.model.modeling import ComposedForCausalLM
from composer.training import distill as module
from composer.training.teacher import Teacher, open_teacher
from composer.weights.record import read_record
from composer.weights.sources import CACHE
from tests.composer.training.runs import make_student, make_teacher, run
from tests.composer.training.stages import StoppedError, stop_at
from tests.composer.weights.students import weights
from tests.gguf_files import gguf_model, write_gguf

pytestmark = pytest.mark.drawn
FEW_STEPS = (
    "recipe.sequence=16",
    "recipe.transfer.steps=2",
    "recipe.transfer.batch=2",
    "recipe.finetune.steps=2",
    "recipe.finetune.batch=2",
)


@pytest.mark.parametrize(
    ("which", "overrides", "in_stages"),
    [
        ("all", (), [True, False]),
        ("finetune", (), [False]),
        ("finetune", ("recipe.finetune.distill=0.5",), [True]),
        ("all", ("recipe.finetune.distill=0.5",), [True, True]),
    ],
)
def test_the_teacher_is_in_memory_only_while_it_is_needed(
    student: Path,
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    which: Any,
    overrides: tuple[str, ...],
    in_stages: list[bool],
) -> None:
    loaded: list[weakref.ref[ComposedForCausalLM]] = []
    is_loaded: list[bool] = []
    load, stage = Teacher.load, module.run_stage

    def noted(teacher: Teacher, *arguments: Any) -> ComposedForCausalLM:
        model = load(teacher, *arguments)
        loaded.append(weakref.ref(model))
        return model

    def staged(*arguments: Any) -> Any:
        gc.collect()
        is_loaded.append(loaded[0]() is not None)
        return stage(*arguments)

    monkeypatch.setattr(Teacher, "load", noted)
    monkeypatch.setattr(module, "run_stage", staged)
    report = run(student, tmp_path / "out", texts, *overrides, which=which)
    assert (len(loaded), is_loaded) == (1, in_stages)
    assert report.teacher_loss is not None


def test_no_teacher_is_loaded_if_none_is_needed(
    student: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Teacher, "load", lambda *_: pytest.fail("it is not needed"))
    assert run(student, tmp_path / "out", texts, which="finetune", share=0.0).teacher_loss is None


def test_fine_tuning_continues_without_a_removed_source(texts: Path, tmp_path: Path) -> None:
    """The numbers are the same except for the teacher's own loss. Stages that learn from the teacher are still refused."""
    source = make_teacher(tmp_path / "teacher")
    model = make_student(tmp_path / "student", source)
    with_it = run(model, tmp_path / "one", texts, which="finetune")
    with pytest.raises(StoppedError):
        run(model, tmp_path / "two", texts, which="finetune", watch=stop_at(2), checkpoint_seconds=0.0)
    source.rename(tmp_path / "moved")
    messages: list[str] = []
    without = run(model, tmp_path / "two", texts, which="finetune", tell=messages.append, resume=True)
    assert with_it.teacher_loss is not None
    assert (without.teacher_loss, without.loss) == (None, with_it.loss)
    assert sum("is left out of the report" in message and str(source) in message for message in messages) == 1
    assert all(torch.equal(tensor, weights(tmp_path / "one")[name]) for name, tensor in weights(tmp_path / "two").items())
    for which, overrides in (("all", ()), ("transfer", ()), ("finetune", ("recipe.finetune.distill=0.5",))):
        with pytest.raises(TrainingError, match="is not at .* any more"):
            run(model, tmp_path / "three", texts, *overrides, which=which)  # pyright: ignore[reportArgumentType]
    with pytest.raises(SourceError):
        run(model, tmp_path / "three", texts, which="finetune", teacher=str(source))
    assert not (tmp_path / "three.run").exists()


@pytest.fixture
def packed_student(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A student of a GGUF file, whose weights are unpacked in a separate cache."""
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    file = write_gguf(tmp_path / "teacher.gguf", gguf_model("llama"))
    composer.build_folder("lolcats", file, tmp_path / "student", overrides=FEW_STEPS)
    return tmp_path / "student"


@pytest.mark.parametrize("named", [None, "teacher.gguf"])
def test_the_teacher_of_a_student_of_a_gguf_file_is_the_unpacked_model(
    packed_student: Path, tmp_path: Path, texts: Path, named: str | None
) -> None:
    """It is unpacked again if the cache is missing. The file itself may also be named."""
    first = run(packed_student, tmp_path / "first", texts, teacher=None if named is None else str(tmp_path / named))
    shutil.rmtree(tmp_path / "cache")
    again = run(packed_student, tmp_path / "again", texts)
    assert first.loss == again.loss
    assert first.teacher_loss == again.teacher_loss
    assert composer.verify(tmp_path / "again").ok


def test_changed_gguf_files_are_refused_as_teacher(packed_student: Path, tmp_path: Path, texts: Path) -> None:
    file = tmp_path / "teacher.gguf"
    kept = tmp_path / "kept.gguf"
    file.rename(kept)
    run(packed_student, tmp_path / "cached", texts)
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(TrainingError, match=r"unpacked from .*teacher.gguf, which cannot be read.* --teacher SOURCE"):
        run(packed_student, tmp_path / "gone", texts)
    write_gguf(file, gguf_model("llama", rms_norm_eps=1e-3))
    with pytest.raises(TrainingError, match=r"teacher.gguf, which has changed since \(teacher.gguf\)"):
        run(packed_student, tmp_path / "changed", texts)
    run(packed_student, tmp_path / "named", texts, teacher=str(kept))
    assert composer.verify(packed_student).ok


def test_the_help_for_a_gguf_file_of_the_hub(packed_student: Path, tmp_path: Path) -> None:
    record = read_record(packed_student)
    assert record is not None
    assert record.source is not None
    assert record.source.unpacked is not None
    shutil.rmtree(tmp_path / "cache")
    path = tmp_path / "snapshots" / "c0ffee" / "sub" / "teacher.gguf"
    source = record.source.model_copy(
        update={
            "repo_id": "owner/model",
            "commit": "c0ffee",
            "unpacked": record.source.unpacked.model_copy(update={"path": str(path)}),
        }
    )
    with pytest.raises(
        TrainingError, match=r"It was hub:owner/model/sub/teacher\.gguf: --teacher hub:owner/model/sub/teacher\.gguf"
    ):
        open_teacher(record.model_copy(update={"source": source}), None)
