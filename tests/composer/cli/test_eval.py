"""`compose eval` prints tables or JSON, rejects mistakes in one message, and resumes after SIGKILL."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import rich.console

from composer.commands import eval as eval_module
from composer.evaluation.folder import RESULTS, SAMPLES
from composer.evaluation.options import EvaluationProgress
from tests.composer.cli.conftest import Compose
from tests.composer.evaluation.conftest import TEACHER

QUICK = ("--tasks", "passkey,recall,pairs=4", "--lengths", "128,96", "--samples", "3")


def test_eval_prints_a_table_per_task(compose: Compose) -> None:
    result = compose("eval", TEACHER, TEACHER, "--tasks", "passkey,recall,pairs=4", "--lengths", "300,128", "--samples", 4)
    assert result.exit_code == 0, result.output
    words = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert words[0] == "passkey: share of samples answered right"
    assert words[1] == "model 128 300"
    assert words[2].startswith("teacher 1.000 [0.510, 1.000] ")
    assert words[3] == words[2].replace("teacher", "teacher (2)")
    assert words[-1] == "Mean [95 % interval] of 4 samples, seed 0.", "what the brackets are is said"
    assert "teacher passkey 128 0/32 samples" in " ".join(result.stderr.split())
    assert "Loading weights" not in result.stderr
    assert "maximum" not in result.stderr, "lengths beyond the source's are what is asked for"
    assert os.listdir() == []


@pytest.mark.parametrize("making", [True, False])
def test_ctrl_c_reports_kept_results_and_how_to_continue(compose: Compose, monkeypatch: pytest.MonkeyPatch, making: bool) -> None:
    """Ctrl-C is tested while samples are made, which has its own progress line, and while they are scored."""
    reports: list[EvaluationProgress] = []
    arguments = ("eval", TEACHER, *QUICK, "--batch-tokens", "1")

    def interrupt(progress: EvaluationProgress) -> None:
        reports.append(progress)
        if progress.making is making and progress.done == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as pressed:
        pressed.setattr(eval_module, "watching", lambda *, quiet: contextlib.nullcontext(interrupt))
        alone, kept = compose(*arguments), compose(*arguments, "-o", "out")
    assert {report.making for report in reports} == {True, making}
    assert (alone.exit_code, kept.exit_code) == (130, 130)
    assert alone.stderr == "Interrupted, and nothing is kept: with a folder (-o FOLDER), samples are kept as they are scored.\n"
    nothing = "Interrupted while samples were made: nothing was scored yet. Run the same command again to start over.\n"
    assert kept.stderr == (
        nothing if making else "Interrupted: out keeps 2 scored samples. Run the same command again to continue.\n"
    )
    again = compose(*arguments, "-o", "out")
    assert again.exit_code == 0, again.output
    assert again.stderr.splitlines()[0] == "Making the samples …"
    assert len((Path("out") / SAMPLES).read_text().splitlines()) == 12
    assert "Making" not in compose(*arguments, "-o", "out", "--quiet").stderr


def test_json_is_the_report(compose: Compose) -> None:
    result = compose("eval", TEACHER, "--tasks", "recall", "--lengths", "128", "--samples", 3, "--json", "-o", "deep/out")
    assert (result.exit_code, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert report == json.loads((Path("deep/out") / RESULTS).read_text())
    assert [(cell["task"], cell["length"], cell["samples"]) for cell in report["cells"]] == [("recall", 128, 3)]


def test_options_reach_the_evaluation(compose: Compose) -> None:
    text = Path("text.txt")
    text.write_text("once upon a time there was a kind child . " * 40)
    options = ["--text", text, "--seed", 5, "--dtype", "float64", "--batch-tokens", 99, "--samples", 2]
    result = compose("eval", TEACHER, "--tasks", "perplexity", "--tasks", "stories", "--lengths", "32", *options, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    setting = report["setting"]
    assert [task["label"] for task in setting["tasks"]] == ["perplexity", "stories"]
    assert (setting["seed"], setting["models"][0]["dtype"], report["batch_tokens"]) == (5, "float64", 99)
    assert setting["tasks"][1]["options"]["seed"] == 5
    assert setting["tasks"][0]["options"]["text"] == "text.txt"


MISTAKES: dict[str, tuple[list[Any], str]] = {
    "no models": ([*QUICK], "Missing argument 'MODEL'"),
    "no tasks": ([TEACHER, "--lengths", "64"], "Name tasks, such as --tasks passkey,recall"),
    "no lengths": ([TEACHER, "--tasks", "recall"], "--lengths 512,1024"),
    "a length": (
        [TEACHER, "--tasks", "recall", "--lengths", "64,long"],
        'such as 512,4k, where 4k is 4,096, got "long"',
    ),
    "lengths apart": (
        [TEACHER, "512", "--tasks", "recall", "--lengths", "64"],
        "512 is not a model. Separate numbers",
    ),
    "tasks apart": ([TEACHER, "recall", "--tasks", "mqar", "--lengths", "64"], "such as --tasks passkey,recall"),
    "another length": (
        [TEACHER, "--tasks", "recall", "--lengths", "-64"],
        "--lengths: expected a whole number",
    ),
    "a task": ([TEACHER, "--tasks", "recal", "--lengths", "64"], 'No task "recal"; did you mean "recall"?'),
    "too short": ([TEACHER, "--tasks", "recall", "--lengths", "64"], "needs at least 67 tokens, not 64"),
    "no text": ([TEACHER, "--tasks", "perplexity", "--lengths", "64"], "set --text"),
    "no tokenizer": (["wordless", *QUICK], "wordless has no tokenizer"),
    "no model": (["nowhere", *QUICK], "nowhere"),
    "include": ([TEACHER, *QUICK, "--include-path", "."], "--include-path is for tasks of lm-eval"),
    "other files": ([TEACHER, *QUICK, "-o", "wordless"], "so no evaluation wrote it"),
    "a device": ([TEACHER, *QUICK, "--device", "abacus"], 'no device "abacus"'),
    "a dtype": ([TEACHER, *QUICK, "--dtype", "int8"], "int8"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused_and_nothing_is_written(compose: Compose, name: str) -> None:
    Path("wordless").mkdir()
    for file in ("config.json", "model.safetensors"):
        shutil.copy(TEACHER / file, "wordless")
    arguments, message = MISTAKES[name]
    result = compose("eval", *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert (result.stdout, isinstance(result.exception, SystemExit)) == ("", True)
    assert os.listdir() == ["wordless"]


def test_progress_is_a_bar_unless_quiet(terminal: rich.console.Console) -> None:
    with eval_module.watching(quiet=False) as watch:
        assert watch is not None
        for done in (0, 3):
            watch(EvaluationProgress("mine", "recall", 2048, done=done, total=6, seconds=1.0))
    shown = terminal.export_text()
    assert "mine  recall  2,048" in shown
    assert "3/6" in shown
    with eval_module.watching(quiet=True) as watch:
        assert watch is None
