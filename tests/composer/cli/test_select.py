"""`compose select` writes a valid spec with its scores and a picture, and finds mistakes before it builds anything."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

import composer
from composer.cli.main import app
from composer.training import loop

TEACHER = Path(__file__).parents[3] / "examples" / "teacher"
QUICK = ["--set", "recipe={sequence: 64, transfer: {lr: 0.03, steps: 2, batch: 2, epochs: null, tokens: null}}", "--rows", "2"]


def ran(*words: str, command: str = "select"):
    return CliRunner().invoke(app, [command, *words])


@pytest.mark.drawn
def test_selected_specs_can_be_explained_and_their_student_reused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["lawcat", "--from", str(TEACHER), "--data", "stories,samples=20", "--share", "0.2", *QUICK, "-o", str(out)]
    done = ran(*arguments, "--keep", "1")
    assert done.exit_code == 0, done.output
    assert (out / "layers.png").stat().st_size > 10_000
    selection = json.loads((out / "selection.json").read_text())
    (kept,) = selection["keep"]
    assert selection["rules"] == [{"at": kept, "use": "source"}]
    assert max(selection["scores"], key=lambda score: score["restored"])["layer"] == kept
    assert selection["kept_divergence"] == pytest.approx(selection["divergence"] - selection["scores"][kept]["restored"], abs=1e-6)
    assert composer.explain(out / "spec.yaml", TEACHER).state_bytes == selection["state_bytes"]
    assert ran(*arguments, "--keep", "1").exit_code == 2, "existing results are not replaced"
    learned = (out / "student" / "composition.json").stat().st_mtime_ns
    student = ["--student", str(out / "student")]
    again = ran(*arguments, "--budget", str(selection["state_bytes"]), "--by", "swapped", *student, "--force", "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["state_bytes"] == selection["state_bytes"]
    assert (out / "student" / "composition.json").stat().st_mtime_ns == learned, "the student is not trained again"


def test_a_student_may_learn_as_a_whole_model(tmp_path: Path) -> None:
    arguments = ["lawcat", "--from", str(TEACHER), "--data", "stories,samples=20", "-o", str(tmp_path / "out")]
    done = ran(*arguments, *QUICK, "--share", "0.2", "--keep", "1", "--set", "recipe.transfer.at=model", "--json")
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["keep"]) == 1
    (stage,) = json.loads((tmp_path / "out" / "student" / "composition.json").read_text())["training"]
    assert stage["recipe"]["at"] == "model"
    assert stage["after"].keys() == {"model"}


def test_a_spec_without_fresh_parameters_is_scored_without_training(tmp_path: Path) -> None:
    """It has no recipe. The window has fewer tokens than the rows."""
    out, sizes = tmp_path / "out", ["--set", "head.memory.1.size=16", "--set", "recipe.sequence=64", "--rows", "2"]
    arguments = ["streaming", "--from", str(TEACHER), "--data", "stories,samples=20", "--share", "0.2", *sizes, "-o", str(out)]
    done = ran(*arguments, "--keep", "1", "--json")
    assert done.exit_code == 0, done.output
    assert "has no fresh parameters, so nothing is trained" in done.stderr
    selection = json.loads(done.stdout)
    assert all(score["restored"] > 0 for score in selection["scores"])
    assert json.loads((out / "student" / "composition.json").read_text())["training"] == []
    composer.build_folder("streaming", TEACHER, tmp_path / "built", overrides=["head.memory.1.size=16"])
    again = ran(*arguments[:-1], str(tmp_path / "again"), "--keep", "1", "--json", "--student", str(tmp_path / "built"))
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["scores"] == selection["scores"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Set --keep N, the number of layers to keep, or --budget BYTES"),
        (["--keep", "1", "--budget", "9"], "--keep and --budget exclude each other: leave one of them out."),
        (["--keep", "1", "--set", "recipe=null"], "has no transfer"),
        (["--keep", "3", *QUICK], "2 layers of lawcat"),
        (["--budget", "1000", *QUICK], "bytes with no layer kept"),
        (["--keep", "1", "--seq", "0"], "--seq: expected a whole number of at least 1, got 0"),
        (["--keep", "1", "--student", str(TEACHER)], "it is not a built model"),
    ],
)
def test_invalid_arguments_are_refused(tmp_path: Path, words: list[str], message: str) -> None:
    arguments = ["lawcat", "--from", str(TEACHER), "--data", "stories,samples=20", "-o", str(tmp_path / "out")]
    done = ran(*arguments, *words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (tmp_path / "out" / "selection.json").exists()


def test_folders_of_other_origin_are_kept(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    done = ran("lawcat", "--from", str(TEACHER), "--data", "stories", "--keep", "1", "-o", str(tmp_path))
    assert done.exit_code == 2
    assert "no selection wrote" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_missing_held_out_rows_are_reported_before_building(tmp_path: Path) -> None:
    arguments = ["lawcat", "--from", str(TEACHER), "--data", "stories,samples=20", "-o", str(tmp_path / "out")]
    done = ran(*arguments, *QUICK, "--share", "0", "--keep", "1")
    assert done.exit_code == 2
    assert "Nothing is held out" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_selection_that_stopped_at_its_scores_keeps_its_student(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that change the student need --force. Options that change only the scores do not."""
    out = tmp_path / "out"
    arguments = ["lawcat", "--from", str(TEACHER), "--share", "0.2", *QUICK, "-o", str(out)]
    data = ["--data", "stories,samples=20"]
    with monkeypatch.context() as broken:
        broken.setattr("composer.selection.layers.score_layers", lambda *_: (_ for _ in ()).throw(MemoryError("made up")))
        ran(*arguments, *data, "--keep", "1")
    record = out / "student" / "composition.json"
    learned = record.stat().st_mtime_ns
    assert not (out / "selection.json").exists()

    for words, what in (
        ([*data, "--seed", "1"], "seed: was 0, now 1"),
        (["--data", "stories,samples=24"], "data: was stories,samples=20, now stories,samples=24"),
        ([*data, "--set", "recipe.transfer.lr=0.01"], "recipe.transfer.lr: was 0.03, now 0.01"),
        ([*data, "--set", "head.conv.kernel=3"], "model.spec: was "),
    ):
        other = ran(*arguments, *words, "--keep", "1")
        assert other.exit_code == 2
        assert "was begun with other settings:\n" in other.stderr
        assert f"\n  {what}" in other.stderr
    again = ran(*arguments, *data, "--keep", "1", "--by", "swapped", "--json")
    assert again.exit_code == 0, again.output
    assert "has learned already" in again.stderr
    assert record.stat().st_mtime_ns == learned
    assert sorted(path.name for path in out.iterdir() if path.name[0] != ".") == [
        "layers.png", "run.json", "selection.json", "spec.yaml", "student",
    ]  # fmt: skip
    anew = ran(*arguments, *data, "--keep", "1", "--seed", "1", "--force")
    assert anew.exit_code == 0, anew.output
    assert record.stat().st_mtime_ns != learned


def selection_arguments(out: Path, source: Path = TEACHER) -> list[str]:
    return ["lawcat", "--from", str(source), "--data", "stories,samples=20", "--share", "0.2", *QUICK, "-o", str(out)]


def stopped_by_a_signal(monkeypatch: pytest.MonkeyPatch, *words: str, command: str = "select"):
    """Run a command that SIGTERM reaches at its first step."""
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with monkeypatch.context() as sent:
        step = loop._StageRun._step

        def and_stop(run: loop._StageRun) -> dict[str, float]:
            os.kill(os.getpid(), signal.SIGTERM)
            return step(run)

        sent.setattr(loop._StageRun, "_step", and_stop)
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            return ran(*words, command=command)
        finally:
            for number, handler in usual.items():
                signal.signal(number, handler)


@pytest.mark.parametrize("how_many", [("--keep", "1"), ("--budget", "10000000")])
def test_a_spec_of_two_heads_keeps_one_layer(tmp_path: Path, how_many: tuple[str, str]) -> None:
    """On two layers the kept layer takes a head's only layer. A budget for both keeps one and reports it."""
    out = tmp_path / "out"
    done = ran("alternating-delta", *selection_arguments(out)[1:], *how_many)
    assert done.exit_code == 0, done.output
    selection = json.loads((out / "selection.json").read_text())
    (kept,) = selection["keep"]
    heads = composer.explain(out / "spec.yaml", TEACHER)
    assert heads.state_bytes == selection["state_bytes"]
    assert set(selection["document"]["heads"]) == {("far", "near")[kept]}
    assert selection["all_fit"] is (how_many[0] == "--budget")
    assert ("would allow to keep every layer" in done.stdout) is selection["all_fit"]


def test_quiet_keeps_warnings(tmp_path: Path) -> None:
    """With --quiet the warning about unknown tokens is printed and progress is not."""
    texts = tmp_path / "texts.txt"
    texts.write_text("the cat sat on zzqx qwzx\nthe cat sat on vvvv jjjj\n" * 12)
    words = ["lawcat", "--from", str(TEACHER), "--data", f"{texts},by=line", "--share", "0.2", *QUICK, "--keep", "1"]
    loud, quiet = ran(*words, "-o", str(tmp_path / "loud")), ran(*words, "-o", str(tmp_path / "quiet"), "-q")
    assert (loud.exit_code, quiet.exit_code) == (0, 0), loud.output + quiet.output
    assert "Scoring 2 layers" in loud.stderr
    (warning,) = quiet.stderr.splitlines()
    assert "of the tokens of the data are the tokenizer's token for unknown text" in warning
    assert warning in loud.stderr.splitlines()


def test_stopped_selections_report_how_to_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command has no --resume. After --force it continues without --force, since the old selection is already removed."""
    out = tmp_path / "out"
    stopped = stopped_by_a_signal(monkeypatch, *selection_arguments(out), "--keep", "1")
    assert stopped.exit_code == 128 + signal.SIGTERM, stopped.output
    assert f"Checkpoint: {out / 'student.run'}. To continue, run the same command again." in stopped.stderr
    done = ran(*selection_arguments(out), "--keep", "1")
    assert done.exit_code == 0, done.output
    assert "Continuing after step 1 of 2" in done.stderr

    anew = [*selection_arguments(out), "--keep", "1", "--seed", "1"]
    stopped = stopped_by_a_signal(monkeypatch, *anew, "--force")
    assert "To continue, run the same command without --force." in stopped.stderr
    assert not {"selection.json", "spec.yaml", "layers.png"} & {path.name for path in out.iterdir()}
    done = ran(*anew)
    assert done.exit_code == 0, done.output
    assert "Continuing after step 1 of 2" in done.stderr
    assert json.loads((out / "student" / "composition.json").read_text())["training"][0]["seed"] == 1
    assert not (out / "student.run").exists()


def test_a_stopped_selection_goes_on_on_another_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of weights too large to hash are recognised on another file system, also after a refused call."""

    def elsewhere(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr("composer.building.folder.HASHED_ANYWAY", 0)
    out = tmp_path / "out"
    with monkeypatch.context() as apart:
        apart.setattr("os.link", elsewhere)
        stopped_by_a_signal(monkeypatch, *selection_arguments(out), "--keep", "1")
        refused = ran(*selection_arguments(out), "--keep", "1", "--set", "head.conv.kernel=3")
        assert "was begun with other settings" in refused.stderr
        done = ran(*selection_arguments(out), "--keep", "1")
    assert done.exit_code == 0, done.output
    assert "Continuing after step 1 of 2" in done.stderr


def test_a_student_of_another_source_is_refused(tmp_path: Path) -> None:
    """A moved source is the same source. Another config or other weights make it another one."""
    import torch
    from safetensors.torch import load_file, save_file

    moved, other, out = tmp_path / "moved", tmp_path / "other", tmp_path / "out"
    for folder in (moved, other):
        shutil.copytree(TEACHER, folder, copy_function=shutil.copyfile)
    assert ran(*selection_arguments(out), "--keep", "1").exit_code == 0
    student = ["--keep", "1", "--student", str(out / "student")]
    done = ran(*selection_arguments(tmp_path / "again", moved), *student)
    assert done.exit_code == 0, done.output

    weights = next(other.glob("*.safetensors"))
    tensors = load_file(weights)
    name = min(tensors)
    save_file({**tensors, name: torch.flip(tensors[name], (0,))}, weights, {"format": "pt"})
    refused = ran(*selection_arguments(tmp_path / "not", other), *student)
    assert refused.exit_code == 2
    assert f"it was built from {TEACHER.resolve()}, with other weights in {weights.name}" in refused.stderr
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    refused = ran(*selection_arguments(tmp_path / "not", other), *student)
    assert "with another config.json. Leave it out" in refused.stderr
    assert not (tmp_path / "not").exists()
