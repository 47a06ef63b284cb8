"""lm-eval's options reach it, its figures equal those of its own model, and truncated requests are counted."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

import composer
from composer.errors import EvaluationError
from composer.evaluation.folder import RESULTS, TABLE
from composer.evaluation.options import EvaluationOptions
from composer.evaluation.runner import evaluate
from composer.tasks.recall import KEYS, VALUES
from tests.composer.evaluation.conftest import TEACHER
from tests.composer.evaluation.test_harness import YAML, _offline

__all__ = ["_offline"]
"""A fixture that pytest finds here by its name."""
WRITES = """
task: writes
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{choices[label]}}"
generation_kwargs: {max_gen_toks: 4, until: ["."]}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
CHAT = (
    "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)


def theirs(model: Any, tokenizer: Any, folder: Path, task: str, **options: Any) -> dict[str, Any]:
    """Return the results of lm-eval with its own model."""
    from lm_eval import evaluator
    from lm_eval.models import huggingface
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    of_theirs: Any = huggingface.HFLM
    opened = of_theirs(pretrained=model, tokenizer=tokenizer, max_length=options.pop("max_length", None), batch_size=4)
    evaluated: Any = evaluator.simple_evaluate(opened, tasks=[task], task_manager=manager, **options)
    return evaluated


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two tasks of questions of very different lengths, and few-shot examples."""
    folder, rng = tmp_path_factory.mktemp("many"), random.Random(1)
    questions = []
    for number in range(12):
        keys, values = rng.sample(KEYS, 4 + 3 * number), rng.sample(VALUES, 4)
        context = " ".join(f"{key} {values[place % 4]}" for place, key in enumerate(keys))
        questions.append({"question": f"{context} {keys[0]}", "choices": values, "label": 0})
    (folder / "data.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    (folder / "shown.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions[:4]))
    files = f"{{test: {json.dumps(str(folder / 'data.jsonl'))}, train: {json.dumps(str(folder / 'shown.jsonl'))}}}"
    for name, text in (("mine", YAML), ("writes", WRITES)):
        (folder / f"{name}.yaml").write_text(text.replace("{test: DATA}", files) + "fewshot_split: train\n")
    return folder


@pytest.mark.parametrize("task", ["mine", "writes"])
def test_truncated_requests_are_counted(
    many: Path, plain: Any, tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, task: str
) -> None:
    """Their number, the total and the longest request are in the table, the JSON and a warning. The figures are lm-eval's."""
    most, out = 60, tmp_path / "out"
    report = evaluate([TEACHER], [], [], EvaluationOptions(lm_eval=(task,), include_path=many, out=out, max_length=most))
    questions = [json.loads(line) for line in (many / "data.jsonl").open()]
    prompts = [len(tokenizer(question["question"]).input_ids) for question in questions]
    if task == "mine":
        lengths = [length + 1 for length in prompts for _ in range(4)]
        expected = [length for length in lengths if length > most + 1]
    else:
        lengths, expected = prompts, [length for length in prompts if length > most - 4]
    (cut,) = report.cut
    assert (cut.model, cut.task, cut.max_length) == ("teacher", task, most)
    assert 0 < cut.cut == len(expected) < cut.requests == len(lengths)
    assert cut.longest == max(lengths)
    words = f"{len(expected)} of {len(lengths)} requests were longer than {most} tokens (--max-length)"
    assert words in caplog.text
    assert f"the longest has {max(lengths)}" in caplog.text
    assert words in (out / TABLE).read_text()
    assert f"| {len(expected)} of {len(lengths)} |" in (out / TABLE).read_text()
    assert json.loads((out / RESULTS).read_text())["cut"] == [cut.model_dump()]
    figures = theirs(plain, tokenizer, many, task, max_length=most, log_samples=False)["results"][task]
    assert report.harness[0].value == figures[f"{report.harness[0].metric},{report.harness[0].filter}"]
    # By default a model reads as many tokens as its config has positions, and nothing is cut.
    whole = evaluate([TEACHER], [], [], EvaluationOptions(lm_eval=(task,), include_path=many))
    assert whole.cut == ()
    assert "requests cut" not in whole.view().text()


def test_options_of_lm_eval_reach_it(many: Path, plain: Any, folders: dict[str, Path], tmp_path: Path) -> None:
    """Requests and figures equal lm-eval's with the same options, and samples are logged as lm-eval logs them."""
    model = shutil.copytree(folders["softmax"], tmp_path / "chatty", symlinks=True)
    (model / "chat_template.jinja").write_text(CHAT)
    options = {"num_fewshot": 2, "limit": 5, "apply_chat_template": True, "system_instruction": "Answer."}
    out = tmp_path / "out"
    evaluation = EvaluationOptions(lm_eval=("mine",), include_path=many, out=out, log_samples=True, **options)
    report = evaluate([model], [], [], evaluation)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    expected = theirs(composer.load(model), tokenizer, many, "mine", fewshot_random_seed=0, **options)
    assert report.harness[0].value == expected["results"]["mine"]["acc,none"]
    path = out / "lm-eval" / "chatty" / "samples_mine.jsonl"
    logged = [json.loads(line) for line in path.open()]
    assert len(logged) == 5
    for own, sample in zip(logged, expected["samples"]["mine"], strict=True):
        assert own["arguments"]["gen_args_0"]["arg_0"] == sample["arguments"][0][0]
        assert own["doc_hash"] == sample["doc_hash"]
        assert own["acc"] == sample["acc"]
    prompt = logged[0]["arguments"]["gen_args_0"]["arg_0"]
    assert prompt.startswith("system Answer. user ")
    assert (prompt.count("user "), prompt.count("assistant ")) == (3, 3)
    facts = report.setting.harness
    assert facts is not None
    assert (facts.num_fewshot, facts.limit, facts.chat_template, facts.system_instruction) == (2, 5, True, "Answer.")
    # The options are settings of the evaluation; samples that are missing are logged by another call.
    path.unlink()
    assert evaluate([model], [], [], evaluation).harness == report.harness
    assert path.is_file()
    with pytest.raises(EvaluationError, match=r"harness\.num_fewshot: was 2, now 1"):
        evaluate([model], [], [], replace(evaluation, num_fewshot=1))
    evaluate([model], [], [], replace(evaluation, num_fewshot=0, log_samples=False, force=True))
    assert not path.exists()
    single = evaluate([model], [], [], EvaluationOptions(lm_eval=("mine",), include_path=many, limit=0.25))
    assert (single.harness[0].value * 3) % 1 == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_fewshot": -1}, "--num-fewshot: expected a whole number of at least 0, got -1"),
        ({"max_length": 1}, "--max-length: expected a whole number of at least 2, got 1"),
        ({"limit": 0}, "--limit: expected the number of documents of each task, or the share"),
        ({"limit": 1.5}, r"--limit: expected .*, got 1\.5"),
        ({"limit": float("nan")}, "--limit: expected .*, got nan"),
        ({"log_samples": True}, "--log-samples writes into the folder of the results: name the folder with --out"),
        ({"apply_chat_template": True}, "the tokenizer of .*teacher has no chat template"),
        ({"lm_eval": (), "limit": 3}, "--limit is for tasks of lm-eval: name them with --lm-eval"),
        ({"lm_eval": (), "fewshot_as_multiturn": False}, "--no-fewshot-as-multiturn is for tasks of lm-eval"),
    ],
)
def test_invalid_options_are_refused(many: Path, options: dict[str, Any], message: str) -> None:
    usual: dict[str, Any] = {"lm_eval": ("mine",), **({"include_path": many} if options.get("lm_eval") != () else {})}
    with pytest.raises(EvaluationError, match=message):
        evaluate([TEACHER], [], [], EvaluationOptions(**(usual | options)))


def test_git_prints_nothing(many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """lm-eval would run git, which prints an error outside a checkout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    evaluate([TEACHER], [], [], EvaluationOptions(lm_eval=("mine",), include_path=many, limit=1))
    assert "git" not in capfd.readouterr().err
