"""With damaged stopped runs and models with irregular files, a command continues or rejects them, and never hangs."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

import composer
from composer.training import checkpoint
from composer.training.distill import distill
from composer.training.run import TrainingOptions
from composer.training.student import read_student
from composer.weights.record import RECORD
from composer.weights.verify import verify
from tests.composer.training.runs import RECIPE, SPEC, make_student, make_teacher, write_texts
from tests.damage import IRREGULAR, damage, no_waiting
from tests.fuzz.mutations import CUTS, EDITS, as_json, cut, edited
from tests.fuzz.outcomes import fuzz, outcome

STEP = "transfer/step-00000002"
RUN_FILES = ("run.json", "log.jsonl", f"{STEP}/facts.json", f"{STEP}/process-0.safetensors")
MODEL_FILES = (
    "config.json",
    RECORD,
    "fresh.safetensors",
    "source-1-of-1.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
)
HOW = (
    st.tuples(st.just("tree"), EDITS)
    | st.tuples(st.just("bytes"), CUTS)
    | st.tuples(st.just("irregular"), st.sampled_from([*IRREGULAR]))
)
ORIGINS = st.sampled_from(
    ["/proc/kmsg", "/dev/zero", "pipe", "/proc/kcore", ".", "..", "", "\0", "x" * 5000, "/dev/tty", "/sys/power/state"]
)


@cache
def made() -> Path:
    """A student, and its run stopped after two steps, made once and copied for each example."""
    folder = Path(tempfile.mkdtemp())
    recipe = {**RECIPE, "transfer": {"lr": 1e-2, "steps": 3, "batch": 2}}
    make_student(folder / "student", make_teacher(folder / "teacher"), SPEC | {"recipe": recipe}, copy=True)
    write_texts(folder / "texts.jsonl")
    save = checkpoint.save

    def stop(target: Path, step: int, *arguments: Any) -> None:
        save(target, step, *arguments)
        if step == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            trained(folder)
    (folder / "out.run").rename(folder / "stopped")
    return folder


def trained(folder: Path, *, resume: bool = False) -> Any:
    options = TrainingOptions(data=[str(folder / "texts.jsonl")], checkpoint_seconds=0.0, resume=resume)
    return distill(read_student(folder / "student", ()), folder / "out", options, which="transfer")


def put(path: Path, how: tuple[str, Any]) -> None:
    """Damage a file."""
    kind, change = how
    if kind == "irregular":
        with pytest.MonkeyPatch.context() as patch:
            damage(path, change, patch)
        return
    content = path.read_bytes()
    if kind == "tree":
        try:
            content = as_json(edited(json.loads(content), change))
        except ValueError:  # it is no JSON
            content = cut(content, [])
    else:
        content = cut(content, change)
    path.unlink()
    path.write_bytes(content)


@fuzz(st.tuples(st.sampled_from(RUN_FILES), HOW), examples=8)
def test_damaged_stopped_runs_are_resumed_or_refused(example: Any, folder: Path) -> None:
    """A run continues to a complete model, or is rejected and stays unchanged."""
    name, how = example
    folder = made()  # the run goes on with the very model and data that it began with
    for left in ("out", "out.run"):
        shutil.rmtree(folder / left, ignore_errors=True)
    shutil.copytree(folder / "stopped", folder / "out.run")
    put(folder / "out.run" / name, how)
    with no_waiting():
        report = outcome(lambda: trained(folder, resume=True))
    assert (folder / "out").exists() == (report is not None)
    if report is None:
        assert os.path.lexists(folder / "out.run" / name)
    else:
        assert verify(folder / "out").ok


@fuzz(st.tuples(st.sampled_from(MODEL_FILES), HOW, ORIGINS), examples=20)
def test_models_with_damaged_records_are_used_or_refused(example: Any, folder: Path) -> None:
    """The record names any file as the origin of weights, and a file of the model is damaged."""
    name, how, origin = example
    model = folder / "model"
    shutil.rmtree(model, ignore_errors=True)
    shutil.copytree(made() / "student", model)
    record = json.loads((model / RECORD).read_text())
    for stored in record["files"].values():
        stored |= {"origin": origin if origin != "pipe" else str(folder / "pipe"), "sha256": None, "inode": 1}
    (model / RECORD).write_text(json.dumps(record))
    if not (folder / "pipe").exists():
        os.mkfifo(folder / "pipe")
    put(model / name, how)
    with no_waiting():
        outcome(lambda: verify(model))
        outcome(lambda: composer.load(model))
        outcome(lambda: composer.explain(model))
        outcome(lambda: composer.push(model, "owner/name", dry_run=True))
        shutil.rmtree(folder / "out", ignore_errors=True)
        outcome(lambda: composer.build_folder("lola", model, folder / "out", copy=True))
