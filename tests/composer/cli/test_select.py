"""`compose select` writes a spec that builds, with its scores and a picture; mistakes are told before anything is built."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import composer
from composer.cli.main import app

pytestmark = pytest.mark.drawn

TEACHER = Path(__file__).parents[3] / "examples" / "teacher"
QUICK = ["--set", "recipe={sequence: 64, transfer: {lr: 0.03, steps: 2, batch: 2, epochs: null, tokens: null}}", "--rows", "2"]


def ran(*words: str):
    return CliRunner().invoke(app, ["select", *words])


def test_a_spec_that_builds(tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ["lawcat", "--from", str(TEACHER), "--data", "stories,samples=20", "--share", "0.2", *QUICK, "-o", str(out)]
    done = ran(*asked, "--keep", "1")
    assert done.exit_code == 0, done.output
    assert (out / "layers.png").stat().st_size > 10_000
    found = json.loads((out / "selection.json").read_text())
    (kept,) = found["keep"]
    assert found["rules"] == [{"at": kept, "use": "source"}]
    assert max(found["scores"], key=lambda one: one["restored"])["layer"] == kept
    assert found["kept_divergence"] == pytest.approx(found["divergence"] - found["scores"][kept]["restored"], abs=1e-6)
    assert composer.explain(out / "spec.yaml", TEACHER).state_bytes == found["state_bytes"]
    assert ran(*asked, "--keep", "1").exit_code == 2, "what is there is not replaced"
    learned = (out / "student" / "composition.json").stat().st_mtime_ns
    student = ["--student", str(out / "student")]
    again = ran(*asked, "--budget", str(found["state_bytes"]), "--by", "swapped", *student, "--force", "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["state_bytes"] == found["state_bytes"]
    assert (out / "student" / "composition.json").stat().st_mtime_ns == learned, "it has learned already"


def test_a_student_that_learns_as_a_whole(tmp_path: Path) -> None:
    asked = ["lawcat", "--from", str(TEACHER), "--data", "stories,samples=20", "-o", str(tmp_path / "out")]
    done = ran(*asked, *QUICK, "--share", "0.2", "--keep", "1", "--set", "recipe.transfer.at=model", "--json")
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["keep"]) == 1
    (stage,) = json.loads((tmp_path / "out" / "student" / "composition.json").read_text())["training"]
    assert stage["recipe"]["at"] == "model"
    assert stage["after"].keys() == {"model"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "--keep N, or --budget BYTES"),
        (["--keep", "1", "--budget", "9"], "--keep N, or --budget BYTES"),
        (["--keep", "1", "--set", "recipe=null"], "has no recipe"),
        (["--keep", "3", *QUICK], "2 layers of lawcat"),
        (["--budget", "1000", *QUICK], "bytes with no layer kept"),
        (["--keep", "1", "--sequence", "0"], "sequence"),
        (["--keep", "1", "--student", str(TEACHER)], "it is not a built model"),
    ],
)
def test_mistakes(tmp_path: Path, words: list[str], told: str) -> None:
    asked = ["lawcat", "--from", str(TEACHER), "--data", "stories,samples=20", "-o", str(tmp_path / "out")]
    done = ran(*asked, *words)
    assert done.exit_code == 2
    assert told in done.stderr
    assert not (tmp_path / "out" / "selection.json").exists()


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done = ran("lawcat", "--from", str(TEACHER), "--data", "stories", "--keep", "1", "-o", str(tmp_path))
    assert done.exit_code == 2
    assert "no selection wrote" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_nothing_held_out_is_told_before_anything_is_built(tmp_path: Path) -> None:
    asked = ["lawcat", "--from", str(TEACHER), "--data", "stories,samples=20", "-o", str(tmp_path / "out")]
    done = ran(*asked, *QUICK, "--share", "0", "--keep", "1")
    assert done.exit_code == 2
    assert "Nothing is held out" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_selection_that_stopped_at_its_scores_keeps_its_student(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would make another student is told, and takes --force; what is asked of its scores may change."""
    out = tmp_path / "out"
    asked = ["lawcat", "--from", str(TEACHER), "--share", "0.2", *QUICK, "-o", str(out)]
    data = ["--data", "stories,samples=20"]
    with monkeypatch.context() as broken:
        broken.setattr("composer.selection.runner.score_layers", lambda *_: (_ for _ in ()).throw(MemoryError("made up")))
        ran(*asked, *data, "--keep", "1")
    record = out / "student" / "composition.json"
    learned = record.stat().st_mtime_ns
    assert not (out / "selection.json").exists()

    for words, what in (
        ([*data, "--seed", "1"], "data and another seed"),
        (["--data", "stories,samples=24"], "data"),
        ([*data, "--set", "recipe.transfer.lr=0.01"], "recipe"),
        ([*data, "--set", "head.conv.kernel=3"], "spec"),
    ):
        other = ran(*asked, *words, "--keep", "1")
        assert other.exit_code == 2
        assert f"has learned with another {what}. Say the same as then" in other.stderr
    again = ran(*asked, *data, "--keep", "1", "--by", "swapped", "--json")
    assert again.exit_code == 0, again.output
    assert "has learned already" in again.stderr
    assert record.stat().st_mtime_ns == learned
    assert sorted(path.name for path in out.iterdir() if path.name[0] != ".") == [
        "layers.png", "selection.json", "spec.yaml", "student",
    ]  # fmt: skip
    anew = ran(*asked, *data, "--keep", "1", "--seed", "1", "--force")
    assert anew.exit_code == 0, anew.output
    assert record.stat().st_mtime_ns != learned
