"""lm-eval sends our models the same requests as others, and its accuracy equals a computation by hand."""

from __future__ import annotations

import functools
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import collect_env

import composer
from composer.errors import EvaluationError
from composer.evaluation import runner as runner_module
from composer.evaluation.folder import HARNESS, RESULTS, TABLE
from composer.evaluation.harness import _finite
from composer.evaluation.options import EvaluationOptions
from composer.evaluation.report import HarnessResult
from composer.evaluation.runner import evaluate
from composer.tasks.recall import KEYS, VALUES
from tests.composer.evaluation.conftest import TEACHER

YAML = """
task: mine
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: choices
doc_to_target: label
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
MACHINE = functools.cache(collect_env.get_pretty_env_info)
"""What lm-eval finds out about the machine for each of its answers, and we leave out: once is enough."""


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """Return a folder with a task of lm-eval, and its questions for the value of a key. One answer in four is wrong."""
    folder, rng = tmp_path_factory.mktemp("harness"), random.Random(0)
    questions = []
    for _ in range(20):
        keys, values = rng.sample(KEYS, 4), rng.sample(VALUES, 4)
        context = " ".join(f"{key} {value}" for key, value in zip(keys, values, strict=True))
        right = rng.randrange(4)
        label = (right + 1) % 4 if rng.random() < 0.25 else right
        questions.append({"question": f"{context} {keys[right]}", "choices": values, "label": label})
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in questions))
    (folder / "mine.yaml").write_text(YAML.replace("DATA", json.dumps(str(data))))
    return folder, questions


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
    monkeypatch.setattr(collect_env, "get_pretty_env_info", MACHINE)


def by_hand(model: Any, tokenizer: Any, questions: list[dict[str, Any]]) -> float:
    """Return the share of questions whose answer is the most likely choice."""
    right = 0
    for question in questions:
        begin, scores = len(tokenizer(question["question"]).input_ids), []
        for choice in question["choices"]:
            ids = torch.tensor(tokenizer(f"{question['question']} {choice}").input_ids)
            with torch.no_grad():
                chances = model(ids[None]).logits[0, :-1].log_softmax(-1)
            scores.append(chances[range(begin - 1, len(ids) - 1), ids[begin:]].sum().item())
        right += scores.index(max(scores)) == question["label"]
    return right / len(questions)


def test_accuracy_matches_a_hand_computed_value(
    questions: tuple[Path, list[dict[str, Any]]], plain: Any, tokenizer: Any, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder, rows = questions
    options = EvaluationOptions(lm_eval=("mine",), include_path=folder, out=tmp_path / "out")
    report = evaluate([TEACHER, folders["lawcat"]], [], [], options)
    scores = {score.model: score for score in report.harness}
    expected = {
        "teacher": by_hand(plain, tokenizer, rows),
        "lawcat": by_hand(composer.load(folders["lawcat"]), tokenizer, rows),
    }
    assert {name: score.value for name, score in scores.items()} == pytest.approx(expected)
    assert 0 < expected["lawcat"] < expected["teacher"] < 1
    first = scores["teacher"]
    assert (first.task, first.metric, first.filter) == ("mine", "acc", "none")
    assert first.standard_error == pytest.approx((expected["teacher"] * (1 - expected["teacher"]) / 19) ** 0.5)
    assert report.setting.harness is not None
    assert set(report.setting.harness.files) == {"data.jsonl", "mine.yaml"}
    assert "lm-eval" in report.setting.versions
    assert f"| teacher | mine | acc | {first.value:.3f} ± " in (tmp_path / "out" / TABLE).read_text()


def test_each_model_is_evaluated_once(
    questions: tuple[Path, list[dict[str, Any]]], folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that stops between two models continues with the second. --samples limits the questions."""
    original, calls = runner_module.run_harness, []

    def run(label: str, model: Any, *arguments: Any) -> Any:
        calls.append(type(model).__name__)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(label, model, *arguments)

    monkeypatch.setattr(runner_module, "run_harness", run)
    options = EvaluationOptions(lm_eval=("mine",), include_path=questions[0], out=tmp_path, samples=4)
    with pytest.raises(KeyboardInterrupt):
        evaluate([TEACHER, folders["softmax"]], ["recall"], [128], options)
    assert len((tmp_path / HARNESS).read_text().splitlines()) == 1
    report = evaluate([TEACHER, folders["softmax"]], ["recall"], [128], options)
    assert calls == ["LlamaForCausalLM", "ComposedForCausalLM", "ComposedForCausalLM"]
    assert [score.model for score in report.harness] == ["teacher", "softmax"]
    assert report.harness[0].value == report.harness[1].value
    assert (report.harness[0].value * 4) % 1 == 0
    assert [cell.samples for cell in report.cells] == [4, 4]
    assert json.loads((tmp_path / RESULTS).read_text())["setting"]["harness"]["limit"] == 4


def test_tasks_and_lm_eval_write_into_one_folder(
    questions: tuple[Path, list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order does not matter, and each call may omit what the other call evaluated."""
    figures = {"mine": {"acc,none": 0.5, "acc_stderr,none": 0.1}}
    monkeypatch.setattr(runner_module, "run_harness", lambda label, *_: HarnessResult(model=label, results=figures))
    theirs = EvaluationOptions(lm_eval=("mine",), include_path=questions[0])
    ours = EvaluationOptions(samples=2)
    for order in ([ours, theirs], [theirs, ours]):
        out = tmp_path / ("-".join("theirs" if options is theirs else "ours" for options in order))
        for options in order:
            report = evaluate(
                [TEACHER], ["recall"] if options is ours else [], [128] if options is ours else [], replace(options, out=out)
            )
        assert [cell.samples for cell in report.cells] == [2]
        assert [score.value for score in report.harness] == [0.5]
        assert report.setting.samples == 2
        assert "lm-eval" in report.setting.versions
        with pytest.raises(EvaluationError, match="samples: was 2, now 3"):
            evaluate([TEACHER], ["recall"], [128], replace(ours, samples=3, out=out))


def test_figures_that_are_not_finite_are_omitted(caplog: pytest.LogCaptureFixture) -> None:
    assert dict(_finite("mine", {"alias": "mine", "acc,none": 0.5, "ppl,none": float("nan")})) == {"acc,none": 0.5}
    assert "lm-eval's mine: ppl,none is nan, which is left out." in caplog.text


def test_invalid_arguments_are_refused(
    questions: tuple[Path, list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # lm-eval's own tasks take it many seconds to list; here it has one of them.
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "arc.yaml").write_text(YAML.replace("task: mine", "task: arc_easy").replace("DATA", "nowhere.jsonl"))
    monkeypatch.setattr("lm_eval.tasks.manager.__file__", str(tmp_path / "own" / "manager.py"))

    def message(**options: Any) -> str:
        with pytest.raises(EvaluationError) as caught:
            evaluate([TEACHER], [], [], EvaluationOptions(out=tmp_path / "out", **options))
        assert not (tmp_path / "out").exists()
        return str(caught.value)

    assert 'no task "mime"; did you mean "mine"?' in message(lm_eval=("mime",), include_path=questions[0])
    assert 'no task "arc_eazy"; did you mean "arc_easy"? Your own tasks: --include-path' in message(lm_eval=("arc_eazy",))
    assert "is no folder" in message(lm_eval=("mine",), include_path=tmp_path / "nowhere")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "broken.yaml").write_text(YAML.replace("task: mine", "task: broken").replace("DATA", "nowhere.jsonl"))
    assert "lm-eval failed: FileNotFoundError" in message(lm_eval=("broken",), include_path=tmp_path / "broken")
    for name in [name for name in sys.modules if name.partition(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert "lm-eval is not installed: pip install '.[lm-eval]'" in message(lm_eval=("mine",))
