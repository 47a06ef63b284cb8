"""A folder belongs to one command and one process. A run continues with its settings, and is replaced without touching other
files.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from composer.errors import BenchError
from composer.runs import store
from composer.runs.store import SHOWN, RunStore, Settings, differences, key_of

MARK = "run.json"


class Small(Settings):
    """The settings of a run."""

    seed: int
    names: tuple[str, ...] = ()


STORE = RunStore("try", BenchError, mark=MARK, written=("log.jsonl", "plots/a-*.png", "parts"))
TEMPORARY = RunStore("try", BenchError, mark=MARK, has_resume=True, is_temporary=True)


def fill(folder: Path) -> None:
    """Write files of the command and two other files."""
    for name in ("log.jsonl", "plots/a-1.png", "plots/mine.png", "parts/deep/one", "notes.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("force", [False, True])
def test_other_files_are_left_alone(tmp_path: Path, force: bool) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(BenchError, match=rf"holds no {MARK}, so no try wrote it\. Move it away"):
        STORE.check(tmp_path, force=force)
    with pytest.raises(BenchError, match=r"notes\.txt is a file; expected a folder for the try"):
        STORE.check(tmp_path / "notes.txt", force=force)
    assert not STORE.check(tmp_path / "new")


@pytest.mark.parametrize(("store", "remedy"), [(STORE, "Choose another --out"), (TEMPORARY, "Continue it with --resume")])
def test_a_run_is_neither_continued_nor_replaced_without_an_option(tmp_path: Path, store: RunStore, remedy: str) -> None:
    store.begin(tmp_path, Small(seed=0))
    with pytest.raises(BenchError, match=f"has the results of an earlier try. {remedy}.*--force"):
        store.check(tmp_path)
    assert store.check(tmp_path, resume=True)
    assert store.check(tmp_path, force=True)


def test_a_run_is_continued_with_equal_settings(tmp_path: Path) -> None:
    with STORE.hold(tmp_path / "out") as has_run:
        assert not has_run
        STORE.begin(tmp_path / "out", Small(seed=0))
    fill(tmp_path / "out")
    before = names_in(tmp_path / "out")
    with STORE.hold(tmp_path / "out", resume=True) as has_run:
        assert has_run
        STORE.begin(tmp_path / "out", Small(seed=0))
        with pytest.raises(BenchError, match=r"begun with other settings:\n  seed: was 0, now 1\n  names: was none, now a, b\nUse"):
            STORE.begin(tmp_path / "out", Small(seed=1, names=("a", "b")))
        with (
            pytest.raises(BenchError, match="Another try writes to .*Wait until it has ended"),
            STORE.hold(tmp_path / "out", resume=True),
        ):
            pass
    assert names_in(tmp_path / "out") == before


def test_force_removes_what_the_command_wrote(tmp_path: Path) -> None:
    STORE.begin(tmp_path, Small(seed=0))
    fill(tmp_path)
    assert STORE.begin(tmp_path, Small(seed=1), force=True) == Small(seed=1)
    assert names_in(tmp_path) == {MARK, "notes.txt", "plots/mine.png"}
    assert STORE.check_same(tmp_path, Small(seed=1)) == Small(seed=1)


def test_a_temporary_folder_is_replaced_and_removed_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "out.run"
    for seed in (0, 1):
        with TEMPORARY.hold(folder, force=True):
            TEMPORARY.begin(folder, Small(seed=seed), force=True)
            assert names_in(tmp_path) == {".out.run.lock", f"out.run/{MARK}"}
        (folder / "checkpoint").touch()
    TEMPORARY.remove(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_folder_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Path, settings: Settings) -> None:
        path.parent.mkdir()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store, "write_state", write)
    with pytest.raises(BenchError, match=r"try\.run cannot be written to: No space left on device"):
        TEMPORARY.begin(tmp_path / "try.run", Small(seed=0))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "problem"), [("{", "invalid JSON"), ("{}", "seed: the field is missing"), ('{"seed": "1"}', "seed: ")]
)
def test_damaged_settings_are_refused_without_force(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / MARK).write_text(text)
    with pytest.raises(BenchError, match=rf"{MARK} is damaged: {problem}.*Start again: --force, or remove"):
        STORE.begin(tmp_path, Small(seed=0))
    assert STORE.begin(tmp_path, Small(seed=0), force=True)


def test_differences_are_listed_by_field_with_both_values() -> None:
    assert list(differences({"a": [{"label": "x"}]}, {"a": [{"label": "x"}, {"label": "y"}]})) == ["a: was x, now x, y"]
    assert list(differences({"a": [{"label": "x", "b": 1}]}, {"a": [{"label": "x", "b": 2}]})) == ["a x.b: was 1, now 2"]
    assert list(differences({"a": None}, {"a": {"b": True, "c": None}})) == ["a: was none, now {b: true}"]
    assert list(differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}})) == ["a.c: was 2, now none"]


def test_a_message_lists_the_first_differences(tmp_path: Path) -> None:
    class Many(Settings):
        values: dict[str, int]

    def many(value: int) -> Many:
        return Many(values={str(number): value for number in range(SHOWN + 3)})

    STORE.begin(tmp_path, many(0))
    with pytest.raises(BenchError, match="and 3 more\n") as caught:
        STORE.begin(tmp_path, many(1))
    assert str(caught.value).count("was 0, now 1") == SHOWN


def test_a_key_depends_on_all_inputs_and_not_on_their_order() -> None:
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1}) != key_of({"a": 1, "b": 3})
    assert len(key_of({})) == 16
