"""A folder keeps every complete line, drops partial ones, and belongs to one evaluation."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from composer.errors import EvaluationError
from composer.evaluation.cells import CellKey, SampleResult
from composer.evaluation.folder import HARNESS, PLOTS, RESULTS, RUN, SAMPLES, ScoreLog, open_score_log
from composer.evaluation.report import EvaluatedModelFacts, EvaluationSetting, HarnessResult, TaskIdentity
from composer.system.files import write_whole
from tests.composer.training.processes import ending, forked

KEY = CellKey("model", "recall", 64)


def setting(**changes: Any) -> EvaluationSetting:
    model = EvaluatedModelFacts(
        label="model",
        reference="here/model",
        family="llama",
        repo_id=None,
        revision=None,
        commit=None,
        config_sha256="1",
        spec_hash=None,
        weights={"a": "2"},
        tokenizer_sha256="3",
        dtype="float32",
    )
    task = TaskIdentity(label="recall", scored="tokens", source="", options={"pairs": 4}, files={})
    whole: dict[str, Any] = {
        "models": (model,),
        "tasks": (task,),
        "lengths": (64,),
        "samples": 5,
        "seed": 0,
        "device": "cpu",
        "harness": None,
        "versions": {"torch": "2"},
    }
    return EvaluationSetting(**(whole | changes))


def make_result(index: int, **more: Any) -> SampleResult:
    return SampleResult(index=index, score=0.5, tokens=60, seconds=0.1, **more)


def opened(folder: Path | None, setting: EvaluationSetting, *, force: bool) -> ScoreLog:
    """Return the log as it is after it was closed."""
    with open_score_log(folder, setting, force=force) as log:
        return log


def written(folder: Path) -> ScoreLog:
    log = opened(folder, setting(), force=False)
    log.add(KEY, make_result(0, written="a\n\u2028b", answers=("x", "y"), depth=0.25))
    log.add(KEY, make_result(1, nats=(None, 0.125)))
    log.add_harness(HarnessResult(model="model", results={"mine": {"acc,none": 0.5}}))
    return log


def test_saved_results_are_restored(tmp_path: Path) -> None:
    before = written(tmp_path / "out")
    after = opened(tmp_path / "out", setting(), force=False)
    assert after.results(KEY) == before.results(KEY) != {}
    assert after.results(CellKey("model", "recall", 65)) == {}
    assert after.harness("model") == before.harness("model") is not None
    assert after.harness("other") is None


@pytest.mark.parametrize("bytes_lost", [1, 5, 40])
def test_incomplete_last_lines_are_dropped(tmp_path: Path, bytes_lost: int) -> None:
    before = written(tmp_path).results(KEY)
    path = tmp_path / SAMPLES
    contents = path.read_bytes()
    path.write_bytes(contents[:-bytes_lost])
    again = opened(tmp_path, setting(), force=False)
    assert again.results(KEY) == {0: before[0]}
    again.add(KEY, before[1])
    assert path.read_bytes() == contents


GOOD = {"model": "model", "task": "recall", "length": 64, "index": 2, "score": 0.5, "tokens": 60, "seconds": 0.1}
DAMAGED_LINES: dict[str, str] = {
    "{nonsense": "invalid JSON",
    "[]": "input should be an object",
    "[" * 200_000: "recursion limit",
    '{"model": "model"}': "the field is missing",
    json.dumps(GOOD | {"index": "x"}): "index: input should be a valid integer, got 'x'",
    json.dumps(GOOD | {"index": True}): "index: input should be a valid integer, got True",
    json.dumps(GOOD | {"index": 5}): "index: expected less than 5, got 5",
    json.dumps(GOOD | {"index": -1}): "index: expected at least 0, got -1",
    json.dumps(GOOD | {"score": "0.5"}): "score: input should be a valid number, got '0.5'",
    json.dumps(GOOD | {"score": 1e308}): r"score: expected at most 1e\+39, got 1e\+308",
    json.dumps(GOOD | {"score": 1.5}): "score: expected a share from 0 to 1, got 1.5",
    json.dumps(GOOD | {"score": float("nan")}): "invalid JSON",
    json.dumps(GOOD).replace("0.5", "1e999"): "score: input should be a finite number",
    json.dumps(GOOD | {"seconds": -1.0}): "seconds: expected at least 0",
    json.dumps(GOOD | {"more": 1}): "more: the field is unknown",
    json.dumps(GOOD | {"model": "other"}): "model: expected one of model, got 'other'",
    json.dumps(GOOD | {"task": "passkey"}): "task: expected one of recall, got 'passkey'",
    json.dumps(GOOD | {"length": 65}): "length: expected one of 64, got 65",
}


@pytest.mark.parametrize("line", DAMAGED_LINES, ids=range(len(DAMAGED_LINES)))
def test_damaged_lines_are_reported(tmp_path: Path, line: str) -> None:
    written(tmp_path)
    path = tmp_path / SAMPLES
    path.write_text(f"{line}\n{path.read_text()}")
    expected = rf"{SAMPLES}, line 1 is damaged: .*{DAMAGED_LINES[line]}.*\. Remove it: its samples are .*Or start again: --force"
    with pytest.raises(EvaluationError, match=expected):
        opened(tmp_path, setting(), force=False)
    assert opened(tmp_path, setting(), force=True).results(KEY) == {}


def test_undamaged_lines_are_read(tmp_path: Path) -> None:
    written(tmp_path)
    path = tmp_path / SAMPLES
    path.write_text(f"{json.dumps(GOOD)}\n{path.read_text()}")
    assert opened(tmp_path, setting(), force=False).results(KEY).keys() == {0, 1, 2}


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        (RUN, "{", "invalid JSON"),
        (RUN, "{}", "models: the field is missing"),
        (RUN, "[]", "input should be an object"),
        (HARNESS, '{"model": "model"}\n', "results: the field is missing"),
        (
            HARNESS,
            '{"model": "model", "results": {"mine": {"acc,none": "0.5"}}}\n',
            "results.mine.acc,none: input should be a valid",
        ),
        (HARNESS, '{"model": "other", "results": {}}\n', "model: expected one of model"),
        (RESULTS, "{}", "setting: the field is missing"),
        (RESULTS, "", "invalid JSON"),
    ],
)
def test_other_damaged_files_are_reported(tmp_path: Path, name: str, text: str, problem: str) -> None:
    written(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(EvaluationError, match=rf"{name}.* is damaged: {problem}.*tart again: --force"):
        opened(tmp_path, setting(), force=False)


def test_other_settings_are_refused_with_their_differences(tmp_path: Path) -> None:
    written(tmp_path)
    before = (tmp_path / SAMPLES).read_bytes()
    (model,), (task,) = setting().models, setting().tasks
    moved = model.model_copy(update={"reference": "elsewhere/model"})
    assert opened(tmp_path, setting(models=(moved,)), force=False).results(KEY), "a model may move"
    changed = setting(
        models=(model.model_copy(update={"weights": {"a": "9"}}),),
        tasks=(task.model_copy(update={"options": {"pairs": 8}}),),
        lengths=(64, 128),
        samples=7,
    )
    with pytest.raises(EvaluationError) as caught:
        opened(tmp_path, changed, force=False)
    message = str(caught.value)
    for line in (
        "models model.weights.a: was 2, now 9",
        "tasks recall.options.pairs: was 4, now 8",
        "samples: was 5, now 7",
    ):
        assert f"\n  {line}\n" in message
    assert (tmp_path / SAMPLES).read_bytes() == before
    for name in ("accuracy-recall.png", "mine.png"):
        write_whole(tmp_path / PLOTS / name, "")
    anew = opened(tmp_path, changed, force=True)
    assert [path.name for path in (tmp_path / PLOTS).iterdir()] == ["mine.png"], "what no evaluation wrote stays"
    assert anew.results(KEY) == {}
    assert not (tmp_path / SAMPLES).exists()
    assert json.loads((tmp_path / RUN).read_text())["samples"] == 7


def test_models_tasks_and_lengths_are_added_to_existing_ones(tmp_path: Path) -> None:
    written(tmp_path)
    (model,), (task,) = setting().models, setting().tasks
    other = model.model_copy(update={"label": "other", "reference": "there/other", "weights": {"a": "7"}})
    more = task.model_copy(update={"label": "passkey"})
    log = opened(tmp_path, setting(models=(other,), tasks=(more,), lengths=(32,)), force=False)
    assert log.results(KEY).keys() == {0, 1}
    assert [model.label for model in log.setting.models] == ["model", "other"]
    assert [model.reference for model in log.setting.models] == ["here/model", "there/other"]
    assert ([task.label for task in log.setting.tasks], log.setting.lengths) == (["recall", "passkey"], (32, 64))
    run = json.loads((tmp_path / RUN).read_text())
    assert run == log.setting.model_dump(mode="json")
    # What it has by now cannot be contradicted either.
    with pytest.raises(EvaluationError, match=r"\n  models other\.weights\.a: was 7, now 8\n"):
        opened(tmp_path, setting(models=(other.model_copy(update={"weights": {"a": "8"}}),)), force=False)


def test_files_of_other_origin_are_kept(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    for force in (False, True):
        with pytest.raises(EvaluationError, match=f"holds no {RUN}, so no evaluation wrote it"):
            opened(tmp_path / "out", setting(), force=force)
    with pytest.raises(EvaluationError, match="is a file"):
        opened(tmp_path / "out" / "thesis.txt", setting(), force=True)
    written(tmp_path / "mine")
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    opened(tmp_path / "mine", setting(seed=1), force=True)
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["notes.txt", RUN]


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = opened(None, setting(), force=False)
    log.add(KEY, make_result(0))
    assert log.results(KEY) == {0: make_result(0)}
    assert list(tmp_path.iterdir()) == []


def test_invalid_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EvaluationError, match="cannot be written to: Not a directory"):
        opened(tmp_path / "file" / "out", setting(), force=False)


@pytest.mark.parametrize("force", [False, True])
def test_a_second_evaluation_of_a_folder_is_refused(tmp_path: Path, force: bool) -> None:
    """A second evaluation does not change what the first has written."""
    for _ in ("begun", "gone on with"):
        with open_score_log(tmp_path, setting(), force=False) as first:
            first.add(KEY, make_result(0))
            before = {path: path.read_bytes() for path in tmp_path.iterdir()}
            with pytest.raises(EvaluationError, match=f"^Another evaluation writes to {tmp_path}. Wait until it has ended"):
                opened(tmp_path, setting(), force=force)
            assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert opened(tmp_path, setting(), force=force).results(KEY).keys() == (set() if force else {0})


def test_only_one_of_many_simultaneous_evaluations_starts(tmp_path: Path) -> None:
    """All of them start before any has created the folder."""
    go, out = tmp_path / "go", tmp_path / "out"

    def child(seed: int) -> None:
        while not go.exists():
            time.sleep(0.001)
        try:
            with open_score_log(out, setting(seed=seed), force=True):
                time.sleep(1.0)
        except EvaluationError as error:
            raise SystemExit(2) from error

    started = [forked(lambda seed=seed: child(seed)) for seed in range(5)]
    go.touch()
    endings = [ending(process) for process in started]
    assert sorted(endings) == [0, 2, 2, 2, 2]
    assert json.loads((out / RUN).read_text())["seed"] == endings.index(0)
    assert [path.name for path in out.iterdir()] == [RUN]
