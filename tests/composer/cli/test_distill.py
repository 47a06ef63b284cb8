"""`compose distill` trains and prints its result. A mistake gives one message, exit code 2, and no files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from composer.training import checkpoint, student
from composer.training import distill as training
from composer.weights.record import read_record
from composer.weights.sources import open_model
from tests.composer.cli.conftest import Compose
from tests.composer.training.runs import RECIPE, SPEC, make_student, make_teacher, write_texts

QUICK = ("--set", "recipe.transfer.steps=2", "--set", "recipe.finetune.steps=2")


@pytest.fixture(scope="module")
def models(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Students by their special property."""
    folder = tmp_path_factory.mktemp("models")
    tiny = SPEC | {"recipe": RECIPE}
    softmax = {"compose": 1, "name": "softmax", "head": {"position": "rope", "memory": ["full"]}}
    long = {**tiny, "recipe": {**RECIPE, "sequence": 1024}}
    finetune = {**tiny, "recipe": {key: value for key, value in RECIPE.items() if key != "transfer"}}
    specs: dict[str, Any] = {"tiny": tiny, "softmax": softmax, "long": long, "finetune": finetune, "lola": "lola"}
    made = {name: make_student(folder / name, teacher, spec) for name, spec in specs.items()}
    made["wordless"] = shutil.copytree(made["tiny"], folder / "wordless")
    for path in made["wordless"].glob("tokenizer*"):
        path.unlink()
    made["other"] = make_teacher(folder / "other", hidden_size=64, intermediate_size=96)
    return made


@pytest.fixture
def texts(compose: Compose, tmp_path: Path) -> Path:
    """Write texts into the working folder."""
    return write_texts(tmp_path / "texts.jsonl")


def stands() -> list[str]:
    return sorted(path.name for path in Path().iterdir() if not path.name.endswith((".jsonl", ".txt")))


def test_distill_runs_both_stages_and_prints_their_losses(compose: Compose, models: dict[str, Path], texts: Path) -> None:
    result = compose("distill", models["tiny"], "--data", texts, "--share", 0.2, *QUICK)
    assert result.exit_code == 0, result.output
    assert stands() == ["tiny-distilled"]
    words = " ".join(result.stdout.split())
    assert "Distilled tiny-distilled" in words
    assert "stage of before after" in words
    record = read_record(Path("tiny-distilled"))
    assert record is not None
    for stage in record.training:
        for name, before in stage.before.items():
            assert f"{stage.stage} {name} {before:.4g} {stage.after[name]:.4g}" in words
        assert f"{stage.stage}: 2 steps, {stage.tokens} tokens" in words
    assert "Held-out loss: " in words
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert "Stages: transfer (2 steps of 64 tokens) and finetune (2 steps of 64 tokens).\n" in result.stderr
    assert "transfer  2/2  loss" in result.stderr
    merged = compose("merge", "tiny-distilled", "-o", "merged")
    assert (merged.exit_code, merged.stdout) == (0, "Merged merged\n"), merged.output
    assert "Loading weights" not in result.stderr + merged.stderr, "bars are for terminals"
    report = compose("merge", "tiny-distilled", "-o", "told", "--json")
    assert json.loads(report.stdout) == {"out": "told", "spec_hash": record.spec_hash}, report.output
    refused = compose("merge", "told", "-o", "again", "--json")
    assert (refused.exit_code, list(json.loads(refused.stdout))) == (2, ["mistakes"])


def test_steps_and_batch_set_all_stages(compose: Compose, models: dict[str, Path], texts: Path) -> None:
    result = compose("distill", models["tiny"], "--data", texts, "--share", 0.2, "--steps", 1, "--batch", 2)
    assert result.exit_code == 0, result.output
    record = read_record(Path("tiny-distilled"))
    assert record is not None
    assert [stage.steps for stage in record.training] == [1, 1]
    recipes = [(stage.recipe["steps"], stage.recipe["epochs"], stage.recipe["batch"]) for stage in record.training]
    assert recipes == [(1, None, 2)] * 2
    assert "Stages: transfer (1 step of 32 tokens) and finetune (1 step of 32 tokens).\n" in result.stderr
    refused = compose("distill", models["tiny"], "--data", texts, "-o", "odd", "--batch", 3)
    assert refused.exit_code == 2
    assert "--batch 3: recipe.transfer.accumulate divides the rows into 2 parts" in " ".join(refused.stderr.split())


def test_a_stage_that_the_recipe_lacks_is_named(compose: Compose, models: dict[str, Path], texts: Path) -> None:
    result = compose("distill", models["finetune"], "--data", texts, "--set", "recipe.finetune.steps=1")
    assert result.exit_code == 0, result.output
    message = (
        "Stages: finetune (1 step of 64 tokens). The recipe has no transfer: --set recipe.transfer.lr=… "
        "--set recipe.transfer.steps=… adds it."
    )
    assert message in result.stderr.splitlines()


def test_json_is_the_report(compose: Compose, models: dict[str, Path], texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--json prints the report. The student's file headers are read once."""
    opened: list[Path] = []
    monkeypatch.setattr(student, "open_model", lambda folder: opened.append(folder) or open_model(folder))
    result = compose("distill", models["tiny"], "--data", texts, "--stage", "transfer", *QUICK, "-o", "deep/out", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [stage["stage"] for stage in report["stages"]] == ["transfer"]
    assert opened == [models["tiny"]]
    assert (report["teacher_loss"], report["out"]) == (None, "deep/out")
    assert (stands(), [path.name for path in Path("deep").iterdir()]) == (["deep"], ["out"])


def test_options_reach_the_run(
    compose: Compose, models: dict[str, Path], teacher: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[bool] = []
    monkeypatch.setattr(training, "prepare", lambda student, options: requested.append(options.gradient_checkpointing))
    other = write_texts(Path("held-out.jsonl"), 5, seed=1)
    arguments = ["--held-out", other, "--seed", 3, "--teacher", teacher, "--merge", "--bfloat16", "-o", "out"]
    arguments.append("--gradient-checkpointing")
    result = compose("distill", models["tiny"], "--data", texts, *QUICK, *arguments, "--json")
    assert result.exit_code == 0, result.output
    record = read_record(Path("out"))
    assert record is not None
    assert {(stage.seed, stage.teacher) for stage in record.training} == {(3, str(teacher))}
    assert json.loads(result.stdout)["data"]["references"][0]["documents"] == 60, "nothing of the data is held out"
    assert not Path("out/adapter").exists()
    assert requested == [True]


def test_without_held_out_rows_nothing_is_evaluated(compose: Compose, models: dict[str, Path], texts: Path) -> None:
    """With --share 0 nothing is held out. Training from nothing prints the same way, without bars."""
    options = ("--set", "recipe.train.lr=1e-3", "--set", "recipe.train.steps=2", "--set", "recipe.train.batch=4")
    result = compose("train", models["tiny"], "--data", texts, "--share", 0, *options)
    assert result.exit_code == 0, result.output
    words = " ".join(result.stdout.split())
    assert "No rows were held out, so nothing was evaluated" in words
    assert "before after" not in words
    assert "Loading weights" not in result.stderr


MISTAKES: dict[str, tuple[str, list[str], str]] = {
    "no such file": ("tiny", ["--data", "missing.jsonl"], "missing.jsonl"),
    "an empty file": ("tiny", ["--data", "empty.jsonl"], "empty.jsonl"),
    "other columns": ("tiny", ["--data", "columns.jsonl"], "columns.jsonl"),
    "no such task": ("tiny", ["--data", "nosuchtask,samples=3"], "nosuchtask"),
    "held-out missing": ("tiny", ["--data", "texts.jsonl", "--held-out", "missing.jsonl"], "missing.jsonl"),
    "a share of all": ("tiny", ["--data", "texts.jsonl", "--share", "0.9"], "a share of 0.9 held out"),
    "rows too long": ("long", ["--data", "texts.jsonl"], "tokens. Set rows of at most 128 (--set recipe.sequence=128)"),
    "rows too short": ("tiny", ["--data", "texts.jsonl", "--set", "recipe.sequence=1"], "rows of 1 tokens"),
    "no recipe": ("lola", ["--data", "texts.jsonl"], '"lola" has no recipe, so there is no stage to train'),
    "no such stage": ("finetune", ["--data", "texts.jsonl", "--stage", "transfer"], 'The recipe of "tiny" has no transfer'),
    "no stage": (
        "tiny",
        ["--data", "texts.jsonl", "--set", "recipe.transfer=null", "--set", "recipe.finetune=null"],
        'The recipe of "tiny" has no transfer',
    ),
    "nothing fresh": (
        "softmax",
        ["--data", "texts.jsonl", "--stage", "transfer", "--set", "recipe.transfer.lr=1e-3", "--set", "recipe.transfer.steps=2"],
        "have no fresh parameters",
    ),
    "nothing that learns": (
        "softmax",
        ["--data", "texts.jsonl", "--set", "recipe.finetune.lr=1e-3", "--set", "recipe.finetune.steps=2"],
        "fresh",
    ),
    "a recipe's": ("tiny", ["--data", "texts.jsonl", "--set", "transfer.steps=2"], "such as recipe.transfer.steps=2"),
    "none left": ("tiny", ["--data", "texts.jsonl", "--set", "recipe=null"], '"tiny" has no recipe'),
    "heads": ("tiny", ["--data", "texts.jsonl", "--set", "head.memory.0.size=3"], "the heads are built; only the recipe can"),
    "no number": ("tiny", ["--data", "texts.jsonl", "--set", "recipe.transfer.lr=fast"], 'expected a number, got "fast"'),
    "no such setting": ("tiny", ["--data", "texts.jsonl", "--set", "recipe.transfer.rate=1"], "rate"),
    "no value": ("tiny", ["--data", "texts.jsonl", "--set", "recipe.transfer.lr"], "expected path=value"),
    "no such device": ("tiny", ["--data", "texts.jsonl", "--device", "abacus"], "abacus"),
    "another size": ("tiny", ["--data", "texts.jsonl", "--teacher", "OTHER"], "has 64 channels, the student 32"),
    "no such teacher": ("tiny", ["--data", "texts.jsonl", "--teacher", "missing"], "missing"),
    "nothing to resume": ("tiny", ["--data", "texts.jsonl", "--resume"], "There is no run to continue"),
    "no tokenizer": ("wordless", ["--data", "texts.jsonl"], "has no tokenizer that transformers can read"),
    "no built model": ("other", ["--data", "texts.jsonl"], "it is not a built model. Make one: `compose build SPEC --from SOURCE`"),
    "no model": (
        "nowhere",
        ["--data", "texts.jsonl"],
        'there is no folder "nowhere"; expected one that `compose build` has written.\n',
    ),
    "perhaps on the Hub": ("owner/nowhere", ["--data", "texts.jsonl"], "A model of the Hub of that name is hub:owner/nowhere."),
    "a spec": ("lolcats", ["--data", "texts.jsonl"], "Build it first: `compose build lolcats --from SOURCE`"),
    "inside the model": ("tiny", ["--data", "texts.jsonl", "-o", "MODEL/inside"], "Choose another folder"),
    "no data": ("tiny", [], "Missing option '--data'"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused_and_nothing_is_written(compose: Compose, models: dict[str, Path], texts: Path, name: str) -> None:
    model, arguments, message = MISTAKES[name]
    Path("empty.jsonl").write_text("")
    Path("columns.jsonl").write_text('{"question": "why", "reply": "so"}\n')
    folder = models.get(model, Path(model))
    named = [argument.replace("OTHER", str(models["other"])).replace("MODEL", str(folder)) for argument in arguments]
    result = compose("distill", folder, *named)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stdout == ""
    assert isinstance(result.exception, SystemExit)
    assert stands() == []


def test_existing_outputs_need_resume_or_force(
    compose: Compose, models: dict[str, Path], texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped run needs --resume or --force, and a finished one needs --force."""

    class StoppedError(Exception):
        pass

    def stop(*_: Any) -> None:
        raise StoppedError

    arguments = ["distill", models["tiny"], "--data", texts, "--stage", "transfer", *QUICK, "-o", "out"]
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", stop)
        assert isinstance(compose(*arguments).exception, StoppedError)
    assert stands() == ["out.run"]
    refused = compose(*arguments)
    assert (refused.exit_code, stands()) == (2, ["out.run"])
    assert "Continue it with --resume, or start again with --force" in refused.stderr
    refused = compose(*arguments, "--resume", "--set", "recipe.transfer.lr=0.5")
    assert (refused.exit_code, stands()) == (2, ["out.run"])
    assert compose(*arguments, "--resume").exit_code == 0
    assert stands() == ["out"]
    refused = compose(*arguments)
    assert (refused.exit_code, stands()) == (2, ["out"])
    assert "out exists already. Use --force to replace it" in refused.stderr
    again = compose(*arguments, "--resume")
    assert again.exit_code == 0
    assert "This run has finished, and its result is in out. To train again, use --force.\n" in again.stderr
    assert "Distilled out\n" in again.stdout
    others = (["--seed", 1], ["--set", "recipe.transfer.lr=0.5"], ["--stage", "finetune"], ["--bfloat16"], ["--share", 0.2])
    for other in (*others, ["--held-out", texts], ["--held-out-rows", 1], ["--teacher", models["tiny"]]):
        refused = compose(*arguments, "--resume", *other)
        assert (refused.exit_code, stands()) == (2, ["out"])
        assert "out exists already" in refused.stderr
    assert compose(*arguments, "--force").exit_code == 0
    assert stands() == ["out"]


def test_folders_of_other_origin_are_not_replaced(compose: Compose, models: dict[str, Path], texts: Path) -> None:
    """--force replaces only what a run has written."""
    Path("out.run").mkdir()
    Path("out.run/thesis.txt").write_text("the only copy")
    result = compose("distill", models["tiny"], "--data", texts, *QUICK, "-o", "out", "--force")
    assert result.exit_code == 2, result.output
    assert Path("out.run/thesis.txt").read_text() == "the only copy"
