"""The page of choosing states what was chosen, by which rule, and what else was scored."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer.spec.shipped import shipped_specs
from evidence.choosing import find_candidates, find_teacher
from evidence.choosing_page import PAGE, UNTRAINED, format_page
from evidence.choosing_plot import draw
from evidence.kept import read_runs
from tests.composer.legible import assert_legible, kept_open
from tests.evidence.test_choosing import DELTA, MISSING, SCORES, runs_of


def test_the_page_contains_the_rule_and_the_missing_runs() -> None:
    runs = runs_of(SCORES) + runs_of({"teacher/softmax": 0.7}, seeds=(0,))
    text = format_page(runs)
    assert "| **balanced** | [lawcat](../specs/lawcat.yaml) |" in text
    assert "the least state of those that keep 95% of the best's mean score" in text
    assert f"Not every run is kept yet of {', '.join(f'`{name}`' for name in MISSING)}: " in text
    source = find_teacher(runs)
    assert source is not None
    assert source.state(2048) == pytest.approx(8 * source.state(256), rel=0.01)
    assert text.count("the teacher") > 1
    empty = format_page([])
    assert "## Three" not in empty
    assert "## Three" in text
    assert "No run is kept yet of `lolcats`, `lawcat`" in empty


def test_scores_with_new_seeds_are_reported_once_all_are_kept() -> None:
    fresh = {"confirmation/lawcat-delta": 0.5, "confirmation/lawcat": 0.25}
    sentence = "With new seeds 3, 4, 5 mean scores are: `lawcat-delta` 0.530, 0.540, 0.550; `lawcat` 0.280, "
    text = format_page(runs_of(SCORES) + runs_of(fresh, (3, 4, 5)))
    assert sentence in text
    assert f"`{DELTA}` and `lolcats` were scored with 3 seeds on this teacher only." in text
    untold = format_page(runs_of(SCORES) + runs_of(fresh, (3, 4)))
    assert "new seeds" not in untold
    assert f"`{DELTA}`, `lawcat` and `lolcats` were scored with 3 seeds" in untold


def test_students_of_the_second_teacher_are_listed_with_their_harder_tasks() -> None:
    others = {"second/lawcat-delta": 0.5, "second/lawcat-convolution-complete": 0.25, "second-lola/lola": 0.75}
    text = format_page(runs_of(SCORES) + runs_of(others) + runs_of({"second-teacher/softmax": 0.6}, (0,)))
    rows = text.partition("| | all of these tasks | harder ones |\n")[2].splitlines()[1:]
    assert rows[:5] == [
        "| `lola` | 0.760 ± 0.010 | 0.760 ± 0.010 |",
        "| that teacher | 0.600 | 0.600 |",
        "| `lawcat-delta` | 0.510 ± 0.010 | 0.510 ± 0.010 |",
        "| `lawcat` | 0.260 ± 0.010 | 0.260 ± 0.010 |",
        "",
    ]
    assert f"`{DELTA}` and `lolcats` were scored with 3 seeds on this teacher only." in text
    easy = [run for run in runs_of(others) if run.figures.pop("multikey 512")]
    assert "second teacher" not in format_page(runs_of(SCORES) + easy)


def test_balanced_and_best_are_compared_if_their_states_hardly_differ() -> None:
    near = runs_of({f"students/{DELTA}": 0.95, "students/lawcat": 0.9}) + runs_of({"students/lawcat-delta": 0.97}, recall=0.96)
    (line,) = [line for line in format_page(near).splitlines() if "too small to decide" in line]
    assert line.startswith(f"`{DELTA}` takes 2.6% less state than `lawcat-delta`")
    assert "higher score, most of all in passkey at" in line
    assert line.endswith("(0.98, not 0.96).")
    assert "too small to decide" not in format_page(runs_of(SCORES))


def test_untrained_specs_are_shipped_and_have_no_run() -> None:
    shipped = {name.rpartition("/")[2] for name in shipped_specs()}
    assert set(UNTRAINED) <= shipped
    assert not set(UNTRAINED) & {run.variant for run in read_runs()}


def test_the_page_names_the_specs_trained_by_their_own_recipe() -> None:
    """A spec is named only if its runs have used its recipe. All kept runs have `start: parts`, and no shipped recipe sets that."""
    (line,) = [line for line in format_page(read_runs()).splitlines() if "were trained by these commands" in line]
    for name in ("gated-delta", "alternating-delta", "lawcat-delta", "lawcat"):
        assert f"`{name}`" not in line


@pytest.mark.drawn
def test_the_picture_is_drawn_with_and_without_candidates(tmp_path: Path) -> None:
    runs = runs_of(SCORES) + runs_of({"teacher/softmax": 0.7}, seeds=(0,))
    draw(find_candidates(runs)[0], find_teacher(runs), tmp_path / "some.png")
    draw([], None, tmp_path / "none.png")
    assert (tmp_path / "some.png").stat().st_size > (tmp_path / "none.png").stat().st_size
    assert {path.name for path in tmp_path.iterdir()} == {"some.png", "none.png"}


def test_the_page_matches_the_kept_runs() -> None:
    stale = PAGE.read_text(encoding="utf-8") != format_page(read_runs())
    assert not stale, "docs/choosing.md is not of the runs that are kept: `python -m evidence --page` writes it anew"


def test_all_names_in_the_picture_are_legible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, runs = kept_open(monkeypatch), read_runs()
    draw(find_candidates(runs)[0], find_teacher(runs), tmp_path / "every.png")
    assert_legible(kept["every.png"])
