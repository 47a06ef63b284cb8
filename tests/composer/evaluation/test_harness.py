"""lm-eval asks our models what it asks any other: its accuracy is the one worked out by hand."""

from __future__ import annotations

import functools
import json
import random
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.utils import collect_env

import composer
from composer.errors import EvaluationError
from composer.evaluation import EvaluationOptions, evaluate
from composer.evaluation import runner as runner_module
from composer.evaluation.folder import HARNESS, RESULTS, TABLE
from composer.evaluation.harness import _finite
from composer.evaluation.report import HarnessResult
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
    """A folder with a task of lm-eval, and what it asks: which value was told with a key. One answer in four is wrong."""
    folder, rng = tmp_path_factory.mktemp("harness"), random.Random(0)
    asked = []
    for _ in range(20):
        keys, values = rng.sample(KEYS, 4), rng.sample(VALUES, 4)
        told = " ".join(f"{key} {value}" for key, value in zip(keys, values, strict=True))
        right = rng.randrange(4)
        label = (right + 1) % 4 if rng.random() < 0.25 else right
        asked.append({"question": f"{told} {keys[right]}", "choices": values, "label": label})
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in asked))
    (folder / "mine.yaml").write_text(YAML.replace("DATA", json.dumps(str(data))))
    return folder, asked


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
    monkeypatch.setattr(collect_env, "get_pretty_env_info", MACHINE)


def by_hand(model: Any, tokenizer: Any, asked: list[dict[str, Any]]) -> float:
    """The share of questions whose answer is the likeliest of the choices."""
    right = 0
    for one in asked:
        begin, scores = len(tokenizer(one["question"]).input_ids), []
        for choice in one["choices"]:
            ids = torch.tensor(tokenizer(f"{one['question']} {choice}").input_ids)
            with torch.no_grad():
                chances = model(ids[None]).logits[0, :-1].log_softmax(-1)
            scores.append(chances[range(begin - 1, len(ids) - 1), ids[begin:]].sum().item())
        right += scores.index(max(scores)) == one["label"]
    return right / len(asked)


def test_the_accuracy_is_that_by_hand(
    questions: tuple[Path, list[dict[str, Any]]], plain: Any, tokenizer: Any, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder, asked = questions
    options = EvaluationOptions(harness=("mine",), include_path=folder, out=tmp_path / "out")
    report = evaluate([TEACHER, folders["lawcat"]], [], [], options)
    found = {one.model: one for one in report.harness}
    expected = {
        "teacher": by_hand(plain, tokenizer, asked),
        "lawcat": by_hand(composer.load(folders["lawcat"]), tokenizer, asked),
    }
    assert {name: one.value for name, one in found.items()} == pytest.approx(expected)
    assert 0 < expected["lawcat"] < expected["teacher"] < 1
    first = found["teacher"]
    assert (first.task, first.metric, first.filter) == ("mine", "acc", "none")
    assert first.standard_error == pytest.approx((expected["teacher"] * (1 - expected["teacher"]) / 19) ** 0.5)
    assert report.setting.harness is not None
    assert set(report.setting.harness.files) == {"data.jsonl", "mine.yaml"}
    assert "lm-eval" in report.setting.versions
    assert f"| teacher | mine | acc | {first.value:.3f} ± " in (tmp_path / "out" / TABLE).read_text()


def test_a_model_is_asked_once(
    questions: tuple[Path, list[dict[str, Any]]], folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that stops between two models goes on with the second; --samples limits the questions."""
    original, calls = runner_module.run_harness, []

    def run(label: str, model: Any, *arguments: Any) -> Any:
        calls.append(type(model).__name__)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(label, model, *arguments)

    monkeypatch.setattr(runner_module, "run_harness", run)
    options = EvaluationOptions(harness=("mine",), include_path=questions[0], out=tmp_path, samples=4)
    with pytest.raises(KeyboardInterrupt):
        evaluate([TEACHER, folders["softmax"]], ["recall"], [128], options)
    assert len((tmp_path / HARNESS).read_text().splitlines()) == 1
    report = evaluate([TEACHER, folders["softmax"]], ["recall"], [128], options)
    assert calls == ["LlamaForCausalLM", "ComposedForCausalLM", "ComposedForCausalLM"]
    assert [one.model for one in report.harness] == ["teacher", "softmax"]
    assert report.harness[0].value == report.harness[1].value
    assert (report.harness[0].value * 4) % 1 == 0
    assert [cell.samples for cell in report.cells] == [4, 4]
    assert json.loads((tmp_path / RESULTS).read_text())["setting"]["harness"]["limit"] == 4


def test_tasks_and_lm_eval_into_one_folder(
    questions: tuple[Path, list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In either order; what one call did not ask for is no contradiction to the other."""
    figures = {"mine": {"acc,none": 0.5, "acc_stderr,none": 0.1}}
    monkeypatch.setattr(runner_module, "run_harness", lambda label, *_: HarnessResult(model=label, results=figures))
    theirs = EvaluationOptions(harness=("mine",), include_path=questions[0])
    ours = EvaluationOptions(samples=2)
    for order in ([ours, theirs], [theirs, ours]):
        out = tmp_path / ("-".join("theirs" if options is theirs else "ours" for options in order))
        for options in order:
            report = evaluate(
                [TEACHER], ["recall"] if options is ours else [], [128] if options is ours else [], replace(options, out=out)
            )
        assert [cell.samples for cell in report.cells] == [2]
        assert [one.value for one in report.harness] == [0.5]
        assert report.setting.samples == 2
        assert "lm-eval" in report.setting.versions
        with pytest.raises(EvaluationError, match="samples: 2 then, 3 now"):
            evaluate([TEACHER], ["recall"], [128], replace(ours, samples=3, out=out))


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
    """What lm-eval itself finds, with its own model."""
    from lm_eval import evaluator
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    opened = HFLM(pretrained=model, tokenizer=tokenizer, max_length=options.pop("max_length", None), batch_size=4)
    found: Any = evaluator.simple_evaluate(opened, tasks=[task], task_manager=manager, **options)
    return found


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two tasks of questions of very different lengths, and examples to show before them."""
    folder, rng = tmp_path_factory.mktemp("many"), random.Random(1)
    asked = []
    for number in range(12):
        keys, values = rng.sample(KEYS, 4 + 3 * number), rng.sample(VALUES, 4)
        told = " ".join(f"{key} {values[place % 4]}" for place, key in enumerate(keys))
        asked.append({"question": f"{told} {keys[0]}", "choices": values, "label": 0})
    (folder / "data.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
    (folder / "shown.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked[:4]))
    files = f"{{test: {json.dumps(str(folder / 'data.jsonl'))}, train: {json.dumps(str(folder / 'shown.jsonl'))}}}"
    for name, text in (("mine", YAML), ("writes", WRITES)):
        (folder / f"{name}.yaml").write_text(text.replace("{test: DATA}", files) + "fewshot_split: train\n")
    return folder


@pytest.mark.parametrize("task", ["mine", "writes"])
def test_requests_that_are_cut_are_counted(
    many: Path, plain: Any, tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, task: str
) -> None:
    """Their number, the number of all, and the longest: in the table, in the JSON and as a warning. Figures are lm-eval's."""
    most, out = 60, tmp_path / "out"
    report = evaluate([TEACHER], [], [], EvaluationOptions(harness=(task,), include_path=many, out=out, max_length=most))
    asked = [json.loads(line) for line in (many / "data.jsonl").open()]
    prompts = [len(tokenizer(one["question"]).input_ids) for one in asked]
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
    whole = evaluate([TEACHER], [], [], EvaluationOptions(harness=(task,), include_path=many))
    assert whole.cut == ()
    assert "requests cut" not in whole.view().text()


def test_lm_evals_options_reach_it(many: Path, plain: Any, folders: dict[str, Path], tmp_path: Path) -> None:
    """Requests and figures are those of lm-eval with the same options; samples are logged as lm-eval logs them."""
    model = shutil.copytree(folders["softmax"], tmp_path / "chatty", symlinks=True)
    (model / "chat_template.jinja").write_text(CHAT)
    options = {"num_fewshot": 2, "limit": 5, "apply_chat_template": True, "system_instruction": "Answer."}
    out = tmp_path / "out"
    asked = EvaluationOptions(harness=("mine",), include_path=many, out=out, log_samples=True, **options)
    report = evaluate([model], [], [], asked)
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
    assert evaluate([model], [], [], asked).harness == report.harness
    assert path.is_file()
    with pytest.raises(EvaluationError, match=r"harness\.num_fewshot: 2 then, 1 now"):
        evaluate([model], [], [], replace(asked, num_fewshot=1))
    evaluate([model], [], [], replace(asked, num_fewshot=0, log_samples=False, force=True))
    assert not path.exists()
    single = evaluate([model], [], [], EvaluationOptions(harness=("mine",), include_path=many, limit=0.25))
    assert (single.harness[0].value * 3) % 1 == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_fewshot": -1}, "--num-fewshot -1: say at least 0"),
        ({"max_length": 1}, "--max-length 1: say at least 2"),
        ({"limit": 0}, "--limit 0: expected the number of documents of each task, or the share"),
        ({"limit": 1.5}, r"--limit 1\.5: expected"),
        ({"limit": float("nan")}, "--limit nan: expected"),
        ({"log_samples": True}, "--log-samples writes into the folder of the results: name one with -o"),
        ({"apply_chat_template": True}, "the tokenizer of .*teacher has no chat template"),
        ({"harness": (), "limit": 3}, "--limit is for tasks of lm-eval: name them with --lm-eval"),
        ({"harness": (), "fewshot_as_multiturn": False}, "--no-fewshot-as-multiturn is for tasks of lm-eval"),
    ],
)
def test_options_that_cannot_be(many: Path, options: dict[str, Any], message: str) -> None:
    usual: dict[str, Any] = {"harness": ("mine",), **({"include_path": many} if options.get("harness") != () else {})}
    with pytest.raises(EvaluationError, match=message):
        evaluate([TEACHER], [], [], EvaluationOptions(**(usual | options)))


def test_git_prints_nothing(many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """lm-eval would run it, and outside of a checkout it prints an error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    evaluate([TEACHER], [], [], EvaluationOptions(harness=("mine",), include_path=many, limit=1))
    assert "git" not in capfd.readouterr().err


def test_a_figure_that_is_no_number_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    assert dict(_finite("mine", {"alias": "mine", "acc,none": 0.5, "ppl,none": float("nan")})) == {"acc,none": 0.5}
    assert "lm-eval's mine: ppl,none is nan, which is left out." in caplog.text


def test_what_is_refused(questions: tuple[Path, list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # lm-eval's own tasks take it many seconds to list; here it has one of them.
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "arc.yaml").write_text(YAML.replace("task: mine", "task: arc_easy").replace("DATA", "nowhere.jsonl"))
    monkeypatch.setattr("lm_eval.tasks.manager.__file__", str(tmp_path / "own" / "manager.py"))

    def message(**options: Any) -> str:
        with pytest.raises(EvaluationError) as caught:
            evaluate([TEACHER], [], [], EvaluationOptions(out=tmp_path / "out", **options))
        assert not (tmp_path / "out").exists()
        return str(caught.value)

    assert 'no task "mime"; did you mean "mine"?' in message(harness=("mime",), include_path=questions[0])
    assert 'no task "arc_eazy"; did you mean "arc_easy"? Tasks of your own: --include-path' in message(harness=("arc_eazy",))
    assert "is no folder" in message(harness=("mine",), include_path=tmp_path / "nowhere")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "broken.yaml").write_text(YAML.replace("task: mine", "task: broken").replace("DATA", "nowhere.jsonl"))
    assert "lm-eval failed: FileNotFoundError" in message(harness=("broken",), include_path=tmp_path / "broken")
    for name in [name for name in sys.modules if name.partition(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert "lm-eval is not installed: pip install 'attention-composer[lm-eval]'" in message(harness=("mine",))
