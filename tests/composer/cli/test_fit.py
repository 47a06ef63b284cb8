"""`compose fit` fills a budget with each composition, writes the spec of the closest, continues row by row, and finds mistakes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import composer
from composer.selection.fit_runner import _find_gates
from composer.selection.report import format_found
from tests.composer.cli.test_select import TEACHER, ran, stopped_by_a_signal

TEXTS = ["--data", "stories,samples=20", "--share", "0.2", "--tasks", "passkey,multikey", "--rows", "2"]
BUDGET = 1_450_000
SPECS = [
    "--spec",
    "ablations/streaming-windows:64",
    "--spec",
    "lolcats",
    "--spec",
    "lola",
    "--spec",
    "ablations/streaming-windows:256",
]


def arguments(out: Path, *words: str) -> list[str]:
    return [str(TEACHER), *TEXTS, "--budget", str(BUDGET), "--steps", "2", "-o", str(out), *words]


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A selection of key heads, with one kept."""
    out = tmp_path_factory.mktemp("gates") / "selected"
    done = ran("streaming", "--from", str(TEACHER), *TEXTS, "--heads", "--steps", "2", "--keep", "1", "-o", str(out))
    assert done.exit_code == 0, done.output
    return out


def test_fit_writes_the_table_and_the_best_spec(tmp_path: Path, gates: Path) -> None:
    out = tmp_path / "out"
    done = ran(*arguments(out, *SPECS, "--gates", str(gates)), command="fit")
    assert done.exit_code == 0, done.output
    fit = json.loads((out / "fit.json").read_text())
    rows = {row["name"]: row for row in fit["compositions"]}
    best = fit["compositions"][0]
    assert best["loss"] == min(row["loss"] for row in rows.values())
    for row in rows.values():
        assert row["loss"] == pytest.approx(row["divergence"] + row["answer_divergence"])
    assert f"Best: {best['name']} with 1 key head of 4" in done.stdout
    assert format_found(best["answers_found"], 2) in done.stdout
    assert re.search(r"^scoring  \d+/\d+  \d+ s left$", done.stderr, re.MULTILINE)
    built = composer.explain(out / "spec.yaml", TEACHER)
    assert built.state_bytes == best["state_bytes"] <= BUDGET
    assert best["spec_hash"] == built.hash
    assert [row["steps"] for _, row in sorted(rows.items())] == [2, 2, 0]
    assert {row["kept"] for row in rows.values()} == {1}
    (left_out,) = fit["left_out"]
    assert left_out["name"] == "streaming-windows-256"
    assert "keeps 260 pairs exactly, and no text of the rows is longer" in " ".join(done.stdout.split())
    # The built student and the mixture with closed gates are the same model.
    curve = json.loads((gates / "selection.json").read_text())["curve"]
    (point,) = (point for point in curve if point["kept"] == 1)
    assert best["source_found"] == curve[-1]["answers_found"]
    for name in ("divergence", "answer_divergence", "answers_found"):
        assert rows["streaming-windows-64"][name] == pytest.approx(point[name], abs=1e-5)


def figures_of(out: Path) -> list[dict[str, Any]]:
    return json.loads((out / "fit.json").read_text())["compositions"]


def test_a_stopped_fit_goes_on_to_the_same_table(tmp_path: Path, gates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured is not measured again, and the short training goes on where it was."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    words = ["--spec", "streaming", "--spec", "lolcats", "--gates", str(gates)]
    assert ran(*arguments(whole, *words), command="fit").exit_code == 0
    done = stopped_by_a_signal(monkeypatch, *arguments(out, *words), command="fit")
    assert "To continue, run the same command again." in done.stderr, done.output
    assert not (out / "fit.json").exists()
    measured = out / "measured" / "streaming.json"
    written = measured.stat().st_mtime_ns
    assert "budget: was 1450000, now 1450001" in ran(*arguments(out, *words, "--budget", str(BUDGET + 1)), command="fit").stderr
    done = ran(*arguments(out, *words, "--json"), command="fit")
    assert done.exit_code == 0, done.output
    assert "Continuing after step 1 of 2" in done.stderr
    assert measured.stat().st_mtime_ns == written
    assert figures_of(out) == figures_of(whole) == json.loads(done.stdout)["compositions"]
    assert ran(*arguments(out, *words), command="fit").exit_code == 2, "existing results are not replaced"


@pytest.mark.parametrize("folder", [".", "gates"])
def test_gates_of_a_selection_are_found_in_its_folder_or_below(gates: Path, folder: str) -> None:
    assert _find_gates(gates / folder) == gates


def test_gates_are_learned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --gates they are learned in OUT. Another fit uses them."""
    monkeypatch.setattr("composer.commands.fit.STEPS", 2)
    out = tmp_path / "out"
    done = composer.fit(TEACHER, "stories,samples=20", out, budget=BUDGET, specs="streaming", tasks="passkey", rows=2, share=0.2)
    assert json.loads((out / "gates" / "selection.json").read_text())["steps"] == 2
    again = composer.fit(
        TEACHER,
        "stories,samples=20",
        tmp_path / "again",
        budget="1.3MiB",
        specs=["streaming"],
        tasks="passkey",
        rows=2,
        share=0.2,
        gates=out,
    )
    assert again.compositions == done.compositions
    assert "Best: streaming" in str(done)
    assert not (tmp_path / "again" / "gates").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--budget", "1KiB"],
            "the smallest student, streaming with no key head kept, has a state of 70,728 bytes at 4,096 tokens",
        ),
        (["--budget", "1GiB"], "the source's own cache, 4.1 MiB at 4,096 tokens, fits. Set a smaller budget"),
        (["--budget", "0"], "--budget: expected a whole number of at least 1, got 0"),
        (["--share", "0"], "Nothing is held out"),
        (["--gates", str(TEACHER)], "no selection of key heads has ended there. Expected the folder of a finished `compose select"),
        (["--spec", "streaming"], "--spec streaming: it is named twice"),
        (["--spec", "nothing"], "nothing"),
        (["--tasks", "stories"], "--tasks stories: it has no answers to find"),
        (["--tasks", "niah-single-2"], 'The tokenizer cannot write "One of the special magic numbers'),
        (["--row-tokens", "72"], "the heads keep 68 pairs exactly, so they lose nothing there."),
        (["--row-tokens", "72"], "Use longer texts in --data or --held-out, or longer rows: --row-tokens 272"),
        (["--row-tokens", "4k"], "--row-tokens 4,096: the source supports at most 256 tokens"),
    ],
    ids=str,
)
def test_invalid_arguments_are_refused(tmp_path: Path, words: list[str], message: str) -> None:
    out = tmp_path / "out"
    texts = ["--data", "stories,samples=20", "--share", "0.2", "--budget", str(BUDGET), "--spec", "streaming", "--tasks", "mqar"]
    done = ran(str(TEACHER), *texts, "-o", str(out), *words, command="fit")
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.stderr.split())
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (out / "fit.json").exists()


SELECTING = ["streaming", "--heads", "--keep", "1", "--from"]
FITTING = ["--budget", "1MiB", "--spec", "streaming"]


@pytest.mark.parametrize("command", ["fit", "select"])
def test_unusable_sources_and_texts_are_refused(tmp_path: Path, command: str) -> None:
    """Both commands refuse them in one sentence, and learn nothing before."""
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "short.txt").write_text("a\nthe\n" * 9)
    words = [*(FITTING if command == "fit" else SELECTING)]
    texts = ["--data", f"{tmp_path / 'short.txt'},by=line", "--share", "0.3", "--tasks", "passkey"]
    for source, message in (
        (tmp_path / "nowhere", "nowhere"),
        (tmp_path / "bert", "bert"),
        (tmp_path / "short.txt", "is a file; expected the folder of a model"),
        (TEACHER, "and the heads keep 68 pairs exactly, so they lose nothing there. Use longer texts"),
    ):
        done = ran(*words, str(source), *texts, "-o", str(tmp_path / "out"), command=command)
        assert done.exit_code == 2, done.output
        assert message in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert not (tmp_path / "out" / "gates").exists()


@pytest.mark.parametrize("damage", ["twice", "fewer", "no score"])
def test_gates_that_do_not_rank_each_key_head_once_are_refused(tmp_path: Path, gates: Path, damage: str) -> None:
    forged, file = tmp_path / "gates", tmp_path / "gates" / "selection.json"
    shutil.copytree(gates, forged)
    selection = json.loads(file.read_text())
    if damage == "twice":
        selection["scores"] *= 2
    elif damage == "fewer":
        selection["scores"].pop()
    else:
        selection |= {"by": "restored", "scores": [score | {"restored": None} for score in selection["scores"]]}
    file.write_text(json.dumps(selection))
    done = ran(*arguments(tmp_path / "out", "--spec", "streaming", "--gates", str(forged)), command="fit")
    assert done.exit_code == 2, done.output
    message = " ".join(done.stderr.split())
    assert ("some have no such score" if damage == "no score" else "does not rank each key head of") in message
    assert "Expected the folder of a finished `compose select … --heads`" in message
    assert "--force" not in message
