"""`compose select --heads` writes a valid spec with gates and pictures, continues to the same gates, and finds mistakes early."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import composer
from composer.cli.main import app
from tests.composer.cli.test_select import TEACHER, stopped_by_a_signal

TEXTS = ["--data", "stories,samples=20", "--share", "0.2", "--set", "recipe.sequence=256"]
QUICK = [*TEXTS, "--heads", "--tasks", "passkey,multikey", "--rows", "2"]
GATES = ["--steps", "2"]


def ran(*words: str):
    return CliRunner().invoke(app, ["select", *words])


def arguments(out: Path, spec: str = "lolcats") -> list[str]:
    return [spec, "--from", str(TEACHER), *QUICK, "-o", str(out)]


@pytest.mark.drawn
def test_stopped_selections_resume_to_the_same_gates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, again = tmp_path / "out", tmp_path / "again"
    done = ran(*arguments(out), *GATES, "--keep", "25%")
    assert done.exit_code == 0, done.output
    assert "Kept: " in done.stdout
    selection = json.loads((out / "selection.json").read_text())
    scores = {(score["layer"], score["head"]): score["score"] for score in selection["scores"]}
    (kept,) = ((some["layer"], head) for some in selection["keep"] for head in some["heads"])
    assert scores[kept] == max(scores.values())
    assert [point["kept"] for point in selection["curve"]] == [0, 1, 2, 4]
    assert selection["curve"][-1]["divergence"] == 0
    assert selection["other"] == "streaming", "the heads of LoLCATs are not trained"
    assert composer.explain(out / "spec.yaml", TEACHER).state_bytes == selection["state_bytes"]
    assert {"heads.png", "curve.png", "gates", "heads.json"} <= {path.name for path in out.iterdir()}
    assert ran(*arguments(out), *GATES, "--keep", "1").exit_code == 2, "existing results are not replaced"

    stopped = stopped_by_a_signal(monkeypatch, *arguments(again), *GATES, "--keep", "1")
    assert "To continue, run the same command again." in stopped.stderr, stopped.output
    other = ran(*arguments(again), *GATES, "--keep", "1", "--seed", "1")
    assert "seed: was 0, now 1" in other.stderr
    done = ran(*arguments(again), *GATES, "--keep", "1", "--json")
    assert done.exit_code == 0, done.output
    assert "Continuing after step 1 of 2" in done.stderr
    assert json.loads(done.stdout)["scores"] == selection["scores"]


def test_heads_without_training_are_selected_by_other_scores(tmp_path: Path) -> None:
    """One key head restored in a student of two is the step of the curve, and so is one that alone is replaced."""
    budget = composer.explain("streaming", TEACHER, overrides=["layers=[{at: 1, use: source}]"]).state_bytes
    points = {}
    for by in ("restored", "swapped"):
        done = ran(*arguments(tmp_path / by, "streaming"), "--by", by, "--budget", str(budget), "--json")
        assert done.exit_code == 0, done.output
        points[by] = json.loads(done.stdout)
    restored, swapped = points["restored"], points["swapped"]
    student = tmp_path / "student"
    composer.build_folder(tmp_path / "restored" / "spec.yaml", TEACHER, student)
    report = composer.evaluate([TEACHER, student], tasks=["stories"], lengths=[64, 256], samples=2)
    means = {(cell.model, cell.length): cell.mean for cell in report.cells}
    assert means["student", 64] == pytest.approx(means["teacher", 64], abs=1e-5), "the window and the sinks have all 64 tokens"
    assert means["student", 256] > means["teacher", 256]
    best = max(score["score"] for score in restored["scores"])
    before, after = (point["answer_divergence"] for point in restored["curve"][:2])
    assert (restored["score"], best) == ("answers", pytest.approx(before - after, abs=1e-6))
    done = ran(*arguments(tmp_path / "text", "streaming"), "--by", "restored", "--score", "text", "--keep", "1", "--json")
    of_text = json.loads(done.stdout)
    best = max(score["score"] for score in of_text["scores"])
    assert best == pytest.approx(of_text["curve"][0]["divergence"] - of_text["curve"][1]["divergence"], abs=1e-6)
    assert all(score["score"] >= 0 for score in swapped["scores"])
    assert restored["other"] == swapped["other"] == "streaming"
    assert max(restored["state_bytes"], swapped["state_bytes"]) <= budget
    assert restored["count"] >= 1
    done = ran(*arguments(tmp_path / "error", "streaming"), "--by", "error", "--keep", "1", "--json")
    assert done.exit_code == 0, done.output
    errors = {(score["layer"], score["head"]): score["score"] for score in json.loads(done.stdout)["scores"]}
    (kept,) = ((some["layer"], head) for some in json.loads(done.stdout)["keep"] for head in some["heads"])
    assert errors[kept] == max(errors.values())


@pytest.mark.parametrize("by", ["ablated", "patched"])
def test_scores_of_the_source_alone_choose_heads_in_each_layer(tmp_path: Path, by: str) -> None:
    """No gate learns. The report has the same fields, and the cost of the scores."""
    done = ran(*arguments(tmp_path / "out"), "--by", by, "--least-per-layer", "1", "--keep", "2", "--json")
    assert done.exit_code == 0, done.output
    selection = json.loads(done.stdout)
    assert [kept["layer"] for kept in selection["keep"]] == [0, 1]
    assert (selection["by"], selection["steps"]) == (by, 0)
    scores = {(score["layer"], score["head"]): score for score in selection["scores"]}
    for kept in selection["keep"]:
        (head,) = kept["heads"]
        assert scores[kept["layer"], head]["score"] == max(scores[kept["layer"], other]["score"] for other in (0, 1))
    if by == "ablated":
        assert selection["forward_tokens"] == 5 * 2 * 256
        assert all(-1 <= score["answers_lost"] <= 1 for score in scores.values())
    else:
        assert 2 * 2 * 128 < selection["forward_tokens"] < 5 * 2 * 256
        assert 0 < max(score["score"] for score in scores.values()) <= 1
    assert not (tmp_path / "out" / "gates").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--heads"], "Set --keep N, the number of key heads to keep, or --budget BYTES"),
        (["--heads", "--keep", "0"], "--keep: expected a whole number of at least 1, got 0"),
        (["--heads", "--keep", "120%"], "--keep: expected a share above 0% and below 100%, got 120%"),
        (["--heads", "--keep", "10%"], "of 4 key heads this is none"),
        (["--heads", "--keep", "4"], "4 key heads of lolcats have other heads than the source"),
        (["--heads", "--budget", "1KiB"], "bytes with no key head kept"),
        (["--heads", "--budget", "much"], "--budget: expected a whole number of at least 1, such as 6291456 or 6MiB, got"),
        (["--keep", "1", "--by", "gates"], "--by gates is for key heads"),
        (["--keep", "1", "--by", "patched"], "--by patched is for key heads"),
        (["--keep", "1", "--least-per-layer", "1"], "--least-per-layer is for the selection of key heads"),
        (["--heads", "--keep", "1", "--least-per-layer", "1"], "keeps 2 key heads, and --keep is 1. Set --keep to at least 2"),
        (["--heads", "--budget", "1.4MiB", "--least-per-layer", "2"], "bytes with --least-per-layer 2. Set a budget of at least"),
        (["--heads", "--keep", "1", "--by", "error", "--steps", "2"], "--steps is for --by gates, and the score is error"),
        (["--heads", "--keep", "1", "--score", "text"], "--score is for --by ablated, restored, swapped, and the score is gates"),
        (["--heads", "--keep", "1", "--by", "patched", "--tasks", "recall"], "needs tasks with one answer after a prompt"),
        (["--keep", "1", "--tasks", "passkey"], "--tasks is for the selection of key heads: add --heads"),
        (["--keep", "1", "--steps", "2"], "--steps is for the selection of key heads: add --heads"),
        (["--heads", "--keep", "1", "--tasks", "stories"], "--tasks stories: it has no answers to find"),
        (["--heads", "--keep", "1", "--tasks", "passkei"], 'No task "passkei"'),
        (["--heads", "--keep", "1", "--tasks", "niah-single-2"], 'The tokenizer cannot write "One of the special magic numbers'),
        (["--heads", "--keep", "1", "--tasks", "passkey", "--set", "recipe.sequence=48"], "passkey needs at least"),
        (["--heads", "--keep", "1", "--tasks", "mqar", "--set", "recipe.sequence=76"], "or longer rows: --set recipe.sequence=272"),
        (["--heads", "--keep", "1", "--student", str(TEACHER)], "it is not a built model"),
    ],
    ids=str,
)
def test_invalid_arguments_are_refused(tmp_path: Path, words: list[str], message: str) -> None:
    texts = ["--data", "stories,samples=20", "--share", "0.2", "--set", "recipe.sequence=128"]
    done = ran("lolcats", "--from", str(TEACHER), *texts, "-o", str(tmp_path / "out"), *words)
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.stderr.split())
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out" / "selection.json").exists()
