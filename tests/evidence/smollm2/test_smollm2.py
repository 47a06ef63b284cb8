"""The experiment on SmolLM2 has valid plans, resumes and keeps runs, and its tables compare the same rows."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import yaml

import composer
from composer.errors import ComposerError
from composer.spec.loading import load_spec
from evidence.smollm2 import __main__ as main
from evidence.smollm2 import page, report
from evidence.smollm2 import run as running
from evidence.smollm2.budget import build_budget_table
from evidence.smollm2.choices import choose_heads
from evidence.smollm2.plan import HEADS, PLAN, Inputs, Keep, Plan, compute_identity, read_plan
from evidence.smollm2.result import RUNS, Result, keep_result, read_result

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
INPUTS = Inputs(teacher="teacher", data=("texts.txt",))


def result(name: str, seed: int = 0, right: tuple[float, ...] = (1.0, 1.0, 0.0, 1.0)) -> Result:
    """Return a result with these scores in every task."""
    lengths = {length: list(right) for length in (256, 512, 1024, 2048, 4096)}
    return Result(
        name=name,
        seed=seed,
        identity="-",
        commands={"build": ["build", "lolcats"]},
        seconds={"build": 60.0, "transfer": 120.0},
        tokens={"transfer": 1000},
        held_out={"finetune after": 3.5},
        harness={"piqa": {"acc": list(right)}, "sciq_written": {"contains": list(right)}},
        text={"perplexity": {length: list(right) for length in (256, 1024, 2048)}},
        positions={"perplexity": {2048: [1.0] * 64}},
        retrieval=dict.fromkeys(("passkey", "niah-single-1", "niah-single-2", "niah-single-3"), lengths),
        state_bytes=dict.fromkeys((*lengths, 8192), 2**20),
        versions={},
        device="-",
    )


@pytest.mark.parametrize(
    "path", [PLAN, HEADS, ROOT / "examples" / "smollm2" / "plan.yaml"], ids=lambda path: f"{path.parent.parent.name}-{path.stem}"
)
def test_each_student_of_a_shipped_plan_has_a_valid_spec_and_recipe(path: Path) -> None:
    plan = read_plan(path, gates="gates/all.json")  # the example's are made when it runs
    for student in plan.students:
        values = [*student.set, "recipe=null", f"recipe={json.dumps(plan.recipe(student))}"]
        recipe = load_spec(str(ROOT / student.spec) if student.spec.endswith(".yaml") else student.spec, values).recipe
        assert recipe is not None
        assert (recipe.transfer is None) == (student.transfer is None)
        assert (recipe.finetune is None) == (student.finetune is None)
        if recipe.finetune is not None:
            assert recipe.finetune.lora is not None
            assert (recipe.finetune.epochs, recipe.finetune.distill) == (None, 0), "the spec's own recipe is left out"


def test_students_are_trained_on_equal_numbers_of_tokens() -> None:
    plan, tokens = read_plan(), {}
    for student in plan.students:
        recipe = plan.recipe(student)
        steps = [recipe[stage]["steps"] * recipe[stage]["batch"] for stage in running.STAGES if stage in recipe]
        if steps:
            tokens[student.name] = sum(steps) * recipe["sequence"]
    of_passkeys = {student.name for student in plan.students if student.data}
    (most,) = {count for name, count in tokens.items() if name not in of_passkeys}
    assert {tokens[name] for name in of_passkeys} == {most // 2}, tokens


def test_a_plan_whose_student_has_an_unknown_source_is_refused() -> None:
    values = yaml.safe_load(PLAN.read_text(encoding="utf-8"))
    values["students"][0]["source"] = "lawcat"  # which follows
    with pytest.raises(ValueError, match="`source: lawcat` names no student before it"):
        Plan.model_validate(values)


def test_the_identity_of_a_run_depends_on_its_seed_plan_source_and_data(tmp_path: Path) -> None:
    plan, texts = read_plan(), tmp_path / "texts.txt"
    texts.write_text("one")
    inputs = Inputs(teacher=str(tmp_path), data=(str(texts),))
    before = compute_identity(plan, "lola", 0, inputs)
    assert before == compute_identity(plan, "lola", 0, inputs)
    assert before != compute_identity(plan, "lola", 1, inputs)
    longer = plan.model_copy(update={"sequence": 2 * plan.sequence})
    assert before != compute_identity(longer, "lola", 0, inputs)
    students = [
        student.model_copy(update={"transfer": {"mse": 1}}) if student.name == "lolcats" else student for student in plan.students
    ]
    assert before != compute_identity(plan.model_copy(update={"students": tuple(students)}), "lola", 0, inputs), (
        "LoLA is built on LoLCATs"
    )
    students = [
        student.model_copy(update={"transfer": {"mse": 1}}) if student.name == "lawcat" else student for student in plan.students
    ]
    assert before == compute_identity(plan.model_copy(update={"students": tuple(students)}), "lola", 0, inputs)
    texts.write_text("two")
    assert before != compute_identity(plan, "lola", 0, inputs)


def test_a_run_builds_trains_and_scores_by_commands_of_the_product(tmp_path: Path) -> None:
    plan = read_plan()
    (run,) = (run for run in running.runs_of(plan, INPUTS, tmp_path) if (run.name, run.seed) == ("lolcats", 1))
    steps = dict(running.steps_of(run))
    assert list(steps) == ["build", "transfer", "finetune", "general", "written", "text", "retrieval"]
    assert steps["transfer"][:4] == ["distill", str(tmp_path / "lolcats-1" / "built"), "--stage", "transfer"]
    assert "--merge" in steps["finetune"]
    assert "recipe.transfer.accumulate=4" not in steps["transfer"]
    split = dict(running.steps_of(replace(run, inputs=INPUTS.model_copy(update={"accumulate": 4}))))
    assert split["transfer"][-2:] == ["--set", "recipe.transfer.accumulate=4"]
    assert "recipe.finetune.accumulate=4" in split["finetune"]
    (lola,) = (run for run in running.runs_of(plan, INPUTS, tmp_path) if (run.name, run.seed) == ("lola", 1))
    build = dict(running.steps_of(lola))["build"]
    assert build[build.index("--from") + 1] == str(tmp_path / "lolcats-1" / "trained")
    of_passkeys = [step for step, _ in running.steps_of(replace(run, name="lawcat-passkey", seed=0))]
    assert of_passkeys == ["build", "transfer", "finetune", "retrieval"]


GATES = {(layer, head): layer / 10 + head / 100 for layer in range(6) for head in range(2)}
"""The last layers have the widest gates."""


@pytest.mark.parametrize(
    ("by", "kept"),
    [
        ("gates", ((4, 0), (4, 1), (5, 0), (5, 1))),
        ("layers", ((4, 0), (4, 1), (5, 0), (5, 1))),
        ("every", ((2, 0), (2, 1), (5, 0), (5, 1))),
    ],
)
def test_key_heads_are_chosen_by_their_gates_or_by_whole_layers(by: Any, kept: tuple[tuple[int, int], ...]) -> None:
    assert choose_heads(Keep(by=by, heads=4), GATES, seed=0) == kept
    gates = GATES | {(4, 0): 0.25}
    assert ((4, 0) in choose_heads(Keep(by=by, heads=4), gates, seed=0)) == (by == "layers")


def test_random_key_heads_follow_from_the_seed_and_whole_layers_have_all_their_heads() -> None:
    keep = Keep(by="random", heads=4)
    first, again, other = (choose_heads(keep, GATES, seed) for seed in (0, 0, 1))
    assert first == again != other
    assert len(set(first)) == 4
    with pytest.raises(ValueError, match="3 key heads are not whole layers of 2"):
        choose_heads(Keep(by="layers", heads=3), GATES, seed=0)


def test_a_student_is_built_with_the_chosen_heads_by_one_command(tmp_path: Path) -> None:
    gates = tmp_path / "selection.json"
    scores = [
        {"layer": layer, "head": head, "gate": gate} for layer, head, gate in ((0, 0, 0.1), (0, 1, 0.9), (1, 0, 0.8), (1, 1, 0))
    ]
    gates.write_text(json.dumps({"scores": scores}))
    teacher = str(ROOT / "examples" / "teacher")
    student = {"name": "heads-2", "spec": "streaming", "keep": {"by": "gates", "heads": 2}, "lengths": [64]}
    common = {"baseline": "teacher", "sequence": 64, "retrieval": {"tasks": ["passkey"], "lengths": [64, 128], "samples": 1}}
    with pytest.raises(ValueError, match="heads-2: `keep` needs `gates`"):
        Plan.model_validate({**common, "students": [student]})
    plan = Plan.model_validate({**common, "gates": str(gates), "students": [student]})
    steps = dict(running.steps_of(running.Run(plan, Inputs(teacher=teacher, data=()), "heads-2", 0, tmp_path)))
    overrides = [steps["build"][place + 1] for place, word in enumerate(steps["build"]) if word == "--set"]
    groups = composer.explain("streaming", teacher, overrides=overrides).groups
    assert {group.head: (group.layers, group.key_heads) for group in groups} == {"source": ((0, 1), 1), "head": ((0, 1), 1)}
    assert steps["retrieval"][steps["retrieval"].index("--lengths") + 1] == "64"


def test_a_step_runs_once_and_records_its_time(tmp_path: Path) -> None:
    messages: list[str] = []
    words = ["build", "lawcat", "--from", str(ROOT / "examples" / "teacher"), "--dry-run", "-o", str(tmp_path / "built")]
    running.execute_once(tmp_path, "build", words, messages.append)
    running.execute_once(tmp_path, "build", words, messages.append)
    assert messages == [f"{tmp_path.name}: build"]
    record = running.read_step_record(tmp_path, "build")
    assert record is not None
    assert record["command"] == words
    assert record["seconds"] > 0
    (tmp_path / "build.json").unlink()  # as if it had been stopped
    running.execute_once(tmp_path, "build", words, messages.append)
    resumed = running.read_step_record(tmp_path, "build")
    assert resumed is not None
    assert resumed["seconds"] is None, "a part of it was in the call that was stopped"


def test_failed_steps_raise_the_end_of_their_output_and_are_not_recorded(tmp_path: Path) -> None:
    words = ["build", "nothing-like-it", "--from", str(tmp_path), "-o", str(tmp_path / "built")]
    with pytest.raises(ComposerError, match=r"compose build nothing-like-it .* failed:\n(.*\n)*.*nothing-like-it"):
        running.execute_once(tmp_path, "build", words, lambda line: None)
    assert running.read_step_record(tmp_path, "build") is None


def test_killed_steps_raise_an_error_with_the_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "ENDS_WITH_PARENT", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(ComposerError, match="compose show lolcats was ended by SIGKILL, which Linux sends where memory runs out"):
        running.execute_once(tmp_path, "show", ["show", "lolcats"], lambda line: None)
    assert running.read_step_record(tmp_path, "show") is None


def test_parallel_runs_wait_for_their_source_and_continue_after_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("lolcats-0", "lawcat-0", "lola-0", "window-0")
    runs = [run for run in running.runs_of(read_plan(), INPUTS, tmp_path) if run.folder.name in names]
    ended: list[str] = []

    def run_model(run: running.Run, tell: object, runs_folder: Path) -> None:
        if run.name == "lolcats":
            time.sleep(0.05)
        if run.name == "lawcat":
            raise ComposerError("there is no memory left")
        ended.append(run.name)

    monkeypatch.setattr(main, "run_model", run_model)
    with pytest.raises(ComposerError, match=r"^lawcat-0: there is no memory left$"):
        main.run_all(runs, 4, tmp_path)
    assert sorted(ended) == ["lola", "lolcats", "window"]
    assert ended.index("lolcats") < ended.index("lola")


def test_differences_are_computed_over_the_same_rows() -> None:
    generator = np.random.default_rng(1)
    teacher = generator.normal(size=200)
    student = teacher - 0.1 + 0.01 * generator.normal(size=200)
    mean, low, high = report.bootstrap_difference(student, teacher)
    assert mean == pytest.approx(-0.1, abs=0.003)
    assert -0.11 < low < mean < high < -0.09, "the rows' own spread, 1, is no part of it"


def test_tables_average_over_seeds_and_mark_significant_differences(tmp_path: Path) -> None:
    plan = read_plan()
    keep_result(result("teacher", right=(1.0,) * 40), tmp_path)
    keep_result(result("lolcats", 0, right=(0.0,) * 40), tmp_path)
    keep_result(result("lolcats", 1, right=(1.0,) * 20 + (0.0,) * 20), tmp_path)
    keep_result(result("window", right=(1.0,) * 39 + (0.0,)), tmp_path)
    models = report.models_of(plan, tmp_path)
    assert [model.name for model in models] == ["teacher", "window", "lolcats"]
    rows = {row[0]: row[1] for row in report.build_score_table("-", models, report.harness_columns(plan)).rows}
    assert rows["teacher"] == "1.00 ± 0.00"
    assert rows["lolcats"] == "0.25 ± 0.04 *"
    assert not rows["window"].endswith("*"), "one row of forty"
    cost = {row[0]: row[1:] for row in report.build_cost_table(plan, models).rows}
    assert cost["lolcats"] == ("1.00", "1,000", "3.0", "3.500")


def test_seeds_of_one_model_are_listed_with_their_devices(tmp_path: Path) -> None:
    plan = read_plan()
    for name in ("teacher", "window"):
        keep_result(result(name), tmp_path)
    assert "Seeds of one model" not in [table.title for table in report.build_tables(plan, report.models_of(plan, tmp_path))]
    keep_result(result("lolcats", 0, right=(0.0, 1.0, 0.0, 1.0)), tmp_path)
    keep_result(result("lolcats", 1, right=(1.0,) * 4).model_copy(update={"device": "a processor"}), tmp_path)
    *_, table = report.build_tables(plan, report.models_of(plan, tmp_path))
    assert table.title == "Seeds of one model"
    assert [(row[0], *row[2:5], row[-1]) for row in table.rows] == [
        ("lolcats, seed 0", "0.500", "0.500", "0.500", "-"),
        ("lolcats, seed 1", "1.000", "1.000", "1.000", "a processor"),
    ]
    assert {row[1] for row in table.rows} == {"-"}, "these results have two of the six tasks"


def test_larger_states_are_recommended_only_for_significant_gains(tmp_path: Path) -> None:
    plan = read_plan()
    for name, right, state in (("teacher", 40, 9), ("lolcats", 20, 3), ("window", 0, 1), ("lola", -20, 4)):
        scores = (1.0,) * abs(right) + (0.0,) * (40 - abs(right))
        scored = result(name, right=scores if right >= 0 else scores[::-1])
        keep_result(scored.model_copy(update={"state_bytes": dict.fromkeys(scored.state_bytes, state * 2**20)}), tmp_path)
    rows = dict(build_budget_table(plan, report.models_of(plan, tmp_path)).rows)
    growing = rows["retrieval at 2,048 tokens, share of right answers"]
    assert growing == "1.0 MiB: window (0.00); 3.0 MiB: lolcats (0.50); 9.0 MiB: teacher (1.00)", (
        "LoLA has as many rows right, which are others"
    )
    assert rows["text of 2,048 tokens, nats a token"] == "1.0 MiB: window (0.00)", "the least is the best"


def test_the_page_has_the_tables_between_its_marks_and_keeps_the_prose(tmp_path: Path) -> None:
    target, marks = tmp_path / "page.md", [line for path in page.PLANS for line in page.marks(path.stem)]
    for name in ("heads", "reading", "students"):
        keep_result(result("teacher"), tmp_path / name)
    keep_result(result("heads-18"), tmp_path / "heads")
    sections = ["\n".join(marks[place : place + 2]) for place in range(0, len(marks), 2)]
    text = "# Title\n\n" + "\n\nBetween.\n".join(sections) + "\n\nProse.\n"
    target.write_text(text.replace(marks[1], f"old\n{marks[1]}"), encoding="utf-8")
    reference = tmp_path / "reference.md"
    page.write(tmp_path, target, tmp_path / "picture.png", reference)
    text = target.read_text(encoding="utf-8")
    assert text.startswith("# Title\n")
    assert text.endswith("Prose.\n")
    assert "old" not in text
    flagship, heads, _, reading, compressed, students = text.split("Between.")
    assert page.NO_RUN in compressed
    assert page.NO_RUN in flagship
    assert "| heads-18 |" in heads
    assert "| heads-18 |" not in reading + students
    assert "| teacher |" in students
    assert (tmp_path / "picture.png").is_file()
    details = reference.read_text(encoding="utf-8")
    assert "| teacher | 0.75 ± 0.22" in details.split("## students")[1]
    assert "compose" in details.split("## heads")[1].split("## selectors")[0]
    page.write(tmp_path, target, tmp_path / "picture.png", reference)
    assert (target.read_text(encoding="utf-8"), reference.read_text(encoding="utf-8")) == (text, details)


def test_kept_results_are_read_back_unchanged(tmp_path: Path) -> None:
    keep_result(result("lolcats", 1), tmp_path)
    assert read_result("lolcats", 1, tmp_path) == result("lolcats", 1)
    assert read_result("lolcats", 0, tmp_path) is None


@pytest.mark.parametrize("path", [PLAN, HEADS], ids=lambda path: path.stem)
def test_kept_results_belong_to_students_and_seeds_of_the_plan(path: Path) -> None:
    plan, folder = read_plan(path), RUNS / path.stem
    names = {(plan.baseline, 0)} | {(student.name, seed) for student in plan.students for seed in student.seeds}
    for file in sorted(folder.glob("*.json")):
        name, _, seed = file.stem.rpartition("-")
        assert (name, int(seed)) in names
        assert read_result(name, int(seed), folder) is not None


def test_names_that_the_plan_lacks_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        main.main(teacher="teacher", data=["texts.txt"], only=["lolcats", "nobody"])
    assert "has no nobody; it has gated-deltanet, gated-deltanet-0, " in capsys.readouterr().err
