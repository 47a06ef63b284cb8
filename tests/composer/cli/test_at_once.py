"""If two commands write one output, the second is refused and leaves it unchanged. Without file locks, commands still work."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from composer.benching import runner as benching
from composer.benching.options import BenchOptions
from composer.building import folder as building
from composer.errors import BenchError
from composer.system import locks
from composer.system.locks import beside, exclusive_lock, inside
from composer.weights.verify import verify
from tests.checkpoints import fingerprint
from tests.composer.ablation.variants import write_spec
from tests.composer.cli.conftest import Compose
from tests.composer.programs import ROOT
from tests.composer.training.processes import ending, forked
from tests.composer.training.runs import RECIPE, SPEC, make_student, write_texts

STEPS = ("--set", "recipe.transfer.steps=2", "--set", "recipe.finetune.steps=2")
FRESH = {"width": 16, "layers": 1, "heads": 2, "vocabulary": 64}
EXAMPLE = ROOT / "examples" / "teacher"
COMMANDS: dict[str, tuple[Any, ...]] = {
    "build": ("build", "lolcats", "--from", "teacher", "-o", "out"),
    "distill": ("distill", "tiny", "--data", "texts.jsonl", "--share", 0.2, *STEPS, "-o", "out"),
    "merge": ("merge", "adapted", "-o", "out"),
    "train": ("train", "fresh", "--data", "texts.jsonl", "--share", 0.2, "-o", "out"),
    "eval": ("eval", "tiny", "--tasks", "mqar,pairs=2", "--lengths", 12, "--samples", 2, "-o", "out"),
    "bench": ("bench", "tiny", "--prefill", 8, "--repeats", 1, "--steps", 1, "-o", "out"),
    "sample": ("sample", EXAMPLE, "--texts", 1, "--length", 4, "-o", "out"),
    "ablate": ("ablate", "tiny.yaml", "--from", "teacher", "--tasks", "mqar,pairs=2", "--lengths", 12, "--samples", 2, "-o", "out"),
}
JOBS = {"ablate": ("--jobs", 2)}


@pytest.fixture(scope="module")
def made(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the inputs of the commands."""
    folder = tmp_path_factory.mktemp("made")
    write_texts(folder / "texts.jsonl", 24)
    (folder / "teacher").symlink_to(teacher)
    make_student(folder / "tiny", teacher, SPEC | {"recipe": RECIPE})
    write_spec(folder / "tiny.yaml")
    train = {"train": {"lr": 0.01, "steps": 2}, "sequence": 16}
    make_student(folder / "fresh", None, SPEC | {"trunk": FRESH, "recipe": train}, fresh=True, tokenizer=str(teacher))  # pyright: ignore
    return folder


@pytest.fixture
def here(compose: Compose, made: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Copy the inputs into the working folder."""
    for path in made.iterdir():
        (tmp_path / path.name).symlink_to(path)
    if "merge" in request.node.callspec.params.values():
        result = compose("distill", "tiny", "--data", "texts.jsonl", "--share", 0.2, *STEPS, "--stage", "finetune", "-o", "adapted")
        assert result.exit_code == 0, result.output
    return tmp_path


def lock_of(command: str) -> Path:
    if command in ("eval", "bench"):
        Path("out").mkdir()
        return inside(Path("out"))
    return beside(Path("out.run" if command in ("distill", "train") else "out"))


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "ablate"])
def test_a_second_command_on_the_same_output_is_refused(compose: Compose, here: Path, command: str) -> None:
    """The second command is refused, except that a second ablation waits and shares the steps."""
    with exclusive_lock(lock_of(command), None):
        before = fingerprint(here)
        for more in ((), ("--force",)):
            result = compose(*COMMANDS[command], *more)
            assert (result.exit_code, result.stdout) == (2, "")
            assert "Wait until it has ended, or " in result.stderr.splitlines()[-1]
        assert fingerprint(here) == before
    result = compose(*COMMANDS[command])
    assert result.exit_code == 0, result.output
    assert not [path for path in here.rglob("*.lock") if path.parent.name != "steps"]


@pytest.mark.parametrize("guarded", [True, False])
def test_of_two_builds_at_once_exactly_one_succeeds(
    compose: Compose, here: Path, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """Both builds have seen that the output did not exist."""
    check_space = building.check_space

    def both_are_here(*arguments: Any) -> None:
        Path(f"{os.getpid()}.here").touch()
        while len(list(Path().glob("*.here"))) < 2:
            time.sleep(0.01)
        check_space(*arguments)

    def no_locks(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(building, "check_space", both_are_here)
    if not guarded:
        monkeypatch.setattr(fcntl, "flock", no_locks)

    def child(spec: str) -> None:
        result = compose("build", spec, "--from", "teacher", "-o", "out")
        Path(f"{spec}.told").write_text(result.stderr)
        raise SystemExit(result.exit_code)

    processes = [forked(lambda spec=spec: child(spec)) for spec in ("lolcats", "lawcat")]
    codes = dict(zip(("lolcats", "lawcat"), map(ending, processes), strict=True))
    assert sorted(codes.values()) == [0, 2]
    first, second = sorted(codes, key=lambda spec: codes[spec])
    assert verify(Path("out")).ok
    assert json.loads(Path("out/composition.json").read_text())["resolved"]["name"] == first
    message = Path(f"{second}.told").read_text()
    assert "Another build is at work on " in message or "Use --force to replace it, or choose another folder." in message
    assert not [path for path in here.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run_on_file_systems_without_locks_with_one_note(
    compose: Compose, here: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def lock(*_: Any, **__: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fcntl, "flock", lock)
    monkeypatch.setattr(locks, "_unguarded", set())
    result = compose(*COMMANDS[command], *JOBS.get(command, ()))
    assert result.exit_code == 0, result.output
    message = [line for line in result.stderr.splitlines() if line.startswith("Nothing guards ")]
    assert len(message) == 1
    assert message[0].endswith(" against a second run: its file system has no locks (Operation not supported).")


def test_benches_created_meanwhile_are_kept(compose: Compose, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An output that another command wrote without a lock is not overwritten."""
    run = benching._run

    def slow(*arguments: Any, **options: Any) -> Any:
        Path("out/bench.json").write_text("another")
        return run(*arguments, **options)

    monkeypatch.setattr(benching, "_run", slow)
    with pytest.raises(BenchError, match="has the results of an earlier bench"):
        benching.bench([made / "tiny"], [8], options=BenchOptions(repeats=1, steps=1, out=Path("out")))
    assert os.listdir("out") == ["bench.json"]
    assert Path("out/bench.json").read_text() == "another"
