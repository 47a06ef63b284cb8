"""`compose ablate` prints a table or JSON, rejects mistakes before it runs anything, and exits with 1 if a variant failed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import rich.console

from composer.ablation import runner
from composer.ablation.ablate import REPORT, STEPS
from composer.ablation.plan import AblationStep, Variant
from composer.commands import ablate as module
from composer.runs.store import TABLE
from composer.spec.loading import load_spec
from composer.training.transfer import TransferCourse
from tests.composer.ablation.variants import RECIPE, SECOND_STAGES, TINY, TRUNK, write_spec
from tests.composer.cli.conftest import Compose
from tests.composer.evaluation.conftest import TEACHER
from tests.composer.training.runs import make_teacher, write_texts

SCORED = ("--tasks", "mqar,pairs=2", "--lengths", "12", "--samples", "3")
SWEEP, DATA = "sweep.yaml", ("--data", "texts.jsonl", "--share", "0.2")


@pytest.fixture
def inputs(compose: Compose, tmp_path: Path, teacher: Path) -> Path:
    """A sweep and data in the working folder, and the teacher."""
    (tmp_path / "teacher").symlink_to(teacher)
    write_spec(tmp_path / SWEEP, vary=SECOND_STAGES)
    write_texts(tmp_path / "texts.jsonl", 24)
    return tmp_path


def stands() -> list[str]:
    return sorted(path.name for path in Path().iterdir() if path.suffix not in (".yaml", ".jsonl") and path.name != "teacher")


def test_the_printed_table_has_the_figures_of_the_report(compose: Compose, inputs: Path) -> None:
    arguments = ["ablate", SWEEP, "--from", "teacher", *DATA, *SCORED, "-o", "out", "--jobs", 1]
    result = compose(*arguments)
    assert result.exit_code == 0, result.output
    assert (stands(), sorted(os.listdir("out"))) == (["out"], sorted(["plot.png", REPORT, STEPS, TABLE, "variants"]))
    words = [line.split() for line in result.stdout.splitlines()]
    assert words[0] == ["Ablation", "out"]
    report = json.loads(Path("out", REPORT).read_text())
    for variant, line in zip(report["variants"], words[2:], strict=False):
        assert line[:2] == [variant["name"], str(variant["values"]["recipe.finetune.lr"])]
        figures = [f"{variant['figures'][column]['mean']:.3g}" for column in titles(report)]
        assert line[2:] == [*figures, f"variants/{variant['name']}"]
    assert "The teacher's own perplexity on the held-out rows is" in result.stdout
    lines = result.stderr.splitlines()
    ended = [line for line in lines[:-1] if not line.startswith("tiny-")]
    assert [line.split()[:2] for line in ended] == [[f"{done}/7", kind] for done, kind in enumerate(ORDER, 1)]
    assert lines[2].startswith("tiny-slow, transfer: "), "a warning follows its step"
    assert lines[-1] == "Scoring the teacher, teacher"
    again = compose(*arguments, "--json")
    assert (again.exit_code, again.stderr, json.loads(again.stdout)) == (0, "", report)


ORDER = ("build", "transfer", "compare", "finetune", "evaluate", "finetune", "evaluate")


def titles(report: dict[str, Any]) -> list[str]:
    return ["perplexity before stage 2", "perplexity", "attention MSE", "attention KL", "mqar,pairs=2 12"]


def test_options_reach_the_steps(compose: Compose, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --jobs, one step per core runs at a time. The runner's tests cover several processes."""
    counts: list[int] = []
    monkeypatch.setattr(runner, "processes", lambda count: (counts.append(count), runner.one_process)[1])
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    text = inputs / "text.jsonl"
    text.write_text("once upon a time there was a cat " * 30)
    options = ["--tasks", "perplexity", "--text", text, "--lengths", "8", "--samples", 3, "--seeds", "2,5", "--teacher", "teacher"]
    result = compose("ablate", f"{SWEEP}:fast", "--from", "teacher", *DATA, *options, "--bfloat16", "-o", "out", "--json")
    assert result.exit_code == 0, result.output
    assert counts == [3]
    report = json.loads(result.stdout)
    request = report["request"]
    assert (request["seeds"], request["bfloat16"], request["teacher"], request["text"]) == (
        [2, 5],
        True,
        "teacher",
        str(text),
    )
    assert set(report["variants"][0]["figures"]["perplexity 8 perplexity"]["values"]) == {"2", "5"}
    assert stands() == ["out"]


def test_a_failed_variant_is_reported_and_exits_with_code_1(compose: Compose, inputs: Path) -> None:
    softmax = {"compose": 1, "name": "softmax", "head": {"position": "rope", "memory": ["full"]}, "recipe": RECIPE}
    write_spec(inputs / "softmax.yaml", softmax)
    arguments = ["ablate", "softmax.yaml", "--from", "teacher", *DATA, "-o", "out"]
    result = compose(*arguments, "--jobs", 1)
    assert result.exit_code == 1, result.output
    assert 'softmax, seed 0: The heads of "softmax" have no fresh parameters' in result.stdout
    assert "transfer  softmax  seed 0  failed" in result.stderr
    result = compose(*arguments, "--json", "--jobs", 1)
    assert result.exit_code == 1
    assert list(json.loads(result.stdout)["variants"][0]["failures"]) == ["0"]


MISTAKES: dict[str, tuple[list[Any], str]] = {
    "no specs": (["--from", "teacher", *DATA, "-o", "out"], "Missing argument 'SPEC'"),
    "no out": ([SWEEP, "--from", "teacher", *DATA], "Missing option '-o'"),
    "no origin": ([SWEEP, *DATA, "-o", "out"], "Set --from SOURCE to build from a model, or --fresh"),
    "two origins": ([SWEEP, "--from", "teacher", "--fresh", *DATA, "-o", "out"], "One of the two, not both."),
    "a variant": (
        [f"{SWEEP}:medium", "--from", "teacher", *DATA, "-o", "out"],
        'there is no variant "medium". Variants: slow, fast',
    ),
    "a spec": (["lolcat", "--from", "teacher", *DATA, "-o", "out"], 'did you mean "lolcats"'),
    "a spec twice": ([SWEEP, SWEEP, "--from", "teacher", *DATA, "-o", "out"], 'Two variants are called "tiny-slow"'),
    "a task": ([SWEEP, "--from", "teacher", "--tasks", "recal", "--lengths", "64", "-o", "out"], 'No task "recal"'),
    "a task's words": (
        [SWEEP, "--from", "teacher", "--tasks", "passkey", "--lengths", "64", "-o", "out"],
        "The tokenizer cannot write",
    ),
    "too short": ([SWEEP, "--from", "teacher", "--tasks", "mqar", "--lengths", "8", "-o", "out"], "mqar"),
    "nothing to do": ([SWEEP, "--from", "teacher", "-o", "out"], "Set --data to train the variants, --tasks to score them"),
    "no lengths": ([SWEEP, "--from", "teacher", "--tasks", "mqar", "-o", "out"], "--lengths 512,1024"),
    "lengths": ([SWEEP, "--from", "teacher", *DATA, "--lengths", "9", "-o", "out"], "--lengths needs tasks"),
    "a file": ([SWEEP, "--from", "teacher", *DATA, "--text", "texts.jsonl", "-o", "out"], "--text needs tasks"),
    "no number": (
        [SWEEP, "--from", "teacher", *DATA, "--seeds", "one", "-o", "out"],
        'such as 0,1,2, got "one"',
    ),
    "a negative one": (
        [SWEEP, "--from", "teacher", *DATA, "--seeds", "-1", "-o", "out"],
        "--seeds: expected a whole number of",
    ),
    "data": ([SWEEP, "--from", "teacher", "--data", "text.jsonl", "-o", "out"], 'did you mean "texts.jsonl"'),
    "columns": ([SWEEP, "--from", "teacher", "--data", "columns.jsonl", "-o", "out"], "columns.jsonl"),
    "a share": ([SWEEP, "--from", "teacher", "--data", "texts.jsonl", "--share", "0.9", "-o", "out"], "a share of 0.9"),
    "held out alone": ([SWEEP, "--from", "teacher", "--held-out", "texts.jsonl", *SCORED, "-o", "out"], "Set --data, too"),
    "rows too long": ([SWEEP, "--from", "teacher", *DATA, "--set", "recipe.sequence=999", "-o", "out"], "at most 128 tokens"),
    "no recipe": (["lola", "--from", "teacher", *DATA, "-o", "out"], '"lola" has no recipe, and 6 of its parameters are untrained'),
    "a recipe for another origin": (
        [
            SWEEP,
            "--from",
            "teacher",
            *DATA,
            "-o",
            "out",
            "--set",
            "recipe={transfer: null, finetune: null, train: {lr: 1, steps: 1}}",
        ],
        "for a model from nothing (--fresh)",
    ),
    "no trunk": ([SWEEP, "--fresh", "--tokenizer", "teacher", *DATA, "-o", "out"], "trunk"),
    "no tokenizer": (["fresh.yaml", "--fresh", *DATA, "-o", "out"], "--tokenizer MODEL"),
    "a tokenizer": (
        [SWEEP, "--from", "teacher", "--tokenizer", "teacher", *DATA, "-o", "out"],
        "a source has its own tokenizer",
    ),
    "a teacher": ([SWEEP, "--from", "teacher", "--teacher", "other", *DATA, "-o", "out"], "has 64 channels, the student 32"),
    "a teacher of nothing": (["fresh.yaml", "--fresh", "--teacher", "teacher", *DATA, "-o", "out"], "--teacher needs --from"),
    "no such source": ([SWEEP, "--from", "./missing", *DATA, "-o", "out"], "missing"),
    "a device": ([SWEEP, "--from", "teacher", *DATA, "--device", "abacus", "-o", "out"], 'no device "abacus"'),
    "a stranger": ([SWEEP, "--from", "teacher", *DATA, "-o", "other"], "other holds no steps/.lock, so no ablation wrote it"),
    "a file there": ([SWEEP, "--from", "teacher", *DATA, "-o", "texts.jsonl"], "texts.jsonl is a file"),
    "inside the source": ([SWEEP, "--from", "other", *DATA, "-o", "other/out"], "Choose another folder"),
    "heads": ([SWEEP, "--from", "teacher", *DATA, "--set", "head.memory.0.size=0", "-o", "out"], "head.memory.0.size"),
    "both ways": (["both.yaml", "--from", "teacher", *SCORED, "-o", "out"], '"both" is bidirectional'),
}


@pytest.fixture(scope="module")
def wider(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_teacher(tmp_path_factory.mktemp("wider") / "other", hidden_size=64, intermediate_size=96)


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused_and_nothing_is_written(compose: Compose, inputs: Path, wider: Path, name: str) -> None:
    (inputs / "other").symlink_to(wider)
    write_spec(inputs / "fresh.yaml", TINY | {"trunk": TRUNK, "recipe": {"sequence": 16, "train": {"lr": 1e-2, "steps": 2}}})
    write_spec(inputs / "both.yaml", {"compose": 1, "name": "both", "direction": "bidirectional", "head": {"memory": ["full"]}})
    Path("columns.jsonl").write_text('{"question": "why", "reply": "so"}\n')
    arguments, message = MISTAKES[name]
    result = compose("ablate", *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert (result.stdout, isinstance(result.exception, SystemExit)) == ("", True)
    assert (stands(), sorted(os.listdir("other"))) == (["other"], sorted(os.listdir(wider)))
    assert not (wider / "out").exists()


def test_nothing_is_trained_before_all_is_checked(compose: Compose, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in the last variant is reported before the first one is trained."""
    monkeypatch.setattr(TransferCourse, "__init__", None)
    result = compose("ablate", SWEEP, "--from", "teacher", *DATA, "--tasks", "mqar,pears=2", "--lengths", 12, "-o", "out")
    assert (result.exit_code, stands()) == (2, [])
    assert 'mqar,pears=2: unknown option "pears"; did you mean "pairs"?' in result.stderr


def test_progress_is_a_bar_unless_quiet(terminal: rich.console.Console) -> None:
    variant: Any = Variant("mine", load_spec("lolcats"), {})
    step: Any = AblationStep("transfer", "0" * 16, None, variant, None, 3)  # pyright: ignore[reportArgumentType] - it asks for nothing
    with module.watching(quiet=False) as tell:
        assert tell is not None
        tell(None, {}, 1, 7)
        tell(step, {"seconds": 12.3}, 2, 7)
    shown = terminal.export_text()
    assert "2/7" in shown
    assert "transfer  mine  seed 3  12 s" in shown
    with module.watching(quiet=True) as tell:
        assert tell is None


def test_untrained_specs_are_scored_on_tasks_alone(compose: Compose, tmp_path: Path) -> None:
    """A spec without training is built and scored on tasks alone."""
    arguments = ["--from", TEACHER, "--tasks", "recall", "--lengths", "128,96", "--samples", 2, "-o", "out", "--jobs", 1]
    result = compose("ablate", "softmax", *arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1].split() == ["variant", "recall", "96", "recall", "128", "model"]
    assert result.stdout.splitlines()[2].split()[0] == "softmax"
