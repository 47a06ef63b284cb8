"""The copy with YaRN equals the teacher except for its positions, and is scored like the teacher."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

import composer
from composer.ablation.runner import one_process
from composer.errors import ComposerError
from evidence.experiments import TEACHER, TEACHERS
from evidence.kept import compute_identity, read_runs
from evidence.running import make_teacher, read_variants, run_missing
from evidence.stretched import EXPERIMENTS, FACTORS, build_experiment, stretch


def test_the_copy_differs_only_in_its_positions(tmp_path: Path) -> None:
    stretch(tmp_path / "yarn", 4)
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (Path(TEACHER), tmp_path / "yarn"))
    assert {key for key in before if before[key] != after[key]} == {"max_position_embeddings", "rope_parameters"}
    assert after["max_position_embeddings"] == 4 * before["max_position_embeddings"]
    assert after["rope_parameters"] == {
        "rope_theta": 10000.0,
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 256,
    }
    assert (tmp_path / "yarn" / "model.safetensors").read_bytes() == (Path(TEACHER) / "model.safetensors").read_bytes()
    model = composer.build("softmax", tmp_path / "yarn")
    assert type(model).__name__ == "ComposedLlamaForCausalLM"


def test_every_factor_is_scored_like_the_teacher() -> None:
    assert len(EXPERIMENTS) == len(FACTORS)
    for stretched in EXPERIMENTS.values():
        assert replace(stretched.request, source=TEACHER) == TEACHERS.request


def test_the_documented_command_makes_the_copy_before_scoring(tmp_path: Path) -> None:
    """The documented command is run with another folder and the tests' interpreter."""
    whole = build_experiment(8)
    assert whole.make_command is not None
    folder = str(tmp_path / "yarn")
    command = whole.make_command.replace(str(whole.request.source), folder)
    assert shlex.split(command)[0] == "python"
    small = replace(whole.request, source=folder, tasks=("recall,pairs=2",), lengths=(32,), samples=2)
    tiny = replace(whole, request=small, make_command=command)
    messages: list[str] = []
    assert run_missing(tiny, tmp_path / "work", one_process, messages.append, runs_folder=tmp_path / "runs") == []
    assert f"{folder}: {command}" in messages
    (run,) = read_runs(tmp_path / "runs")
    assert set(run.figures) == {"recall,pairs=2 32"}


def test_the_identity_of_a_run_depends_on_the_command_and_not_on_the_copy() -> None:
    """The runs of the copy are recognised without the copy."""
    first = build_experiment(2)
    (variant,) = read_variants(first.specs)
    identity = compute_identity(first, variant, 0, {})
    assert identity == compute_identity(replace(first, request=replace(first.request, source="elsewhere")), variant, 0, {})
    assert identity != compute_identity(replace(first, make_command="another"), variant, 0, {})


def test_missing_teachers_are_made_by_their_command(tmp_path: Path) -> None:
    messages: list[str] = []
    folder = tmp_path / "teacher"
    command = f"python -c \"from pathlib import Path; p = Path('{folder}'); p.mkdir(); (p / 'config.json').write_text('1')\""
    make_teacher(folder, command, messages.append)
    assert messages == [f"{folder}: {command}"]
    make_teacher(folder, "false", messages.append)
    assert len(messages) == 1  # it is there
    with pytest.raises(ComposerError, match="could not be made: false"):
        make_teacher(tmp_path / "other", "false", messages.append)
