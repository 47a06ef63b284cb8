"""A model streamed layer by layer ends with the same bits as one in memory, also after stops, kills, damage and a full disk."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from composer.errors import TrainingError
from composer.training import streamed
from composer.training.loop import StepProgress
from composer.training.model_on_disk import StoredModel
from composer.training.spill import Spill
from tests.composer.training.runs import RECIPE, SPEC, make_student, make_teacher, run, timeless
from tests.composer.training.streams import STREAM, same, stopped
from tests.composer.training.test_killed import ending, forked, killed_at, small_files
from tests.composer.weights.students import weights

MIXED: dict[str, Any] = {
    "compose": 1,
    "name": "mixed",
    "heads": {"tiny": SPEC["head"], "exact": {"position": "rope", "memory": ["full"]}},
    "layers": [{"at": [0, 2], "use": "tiny"}, {"at": [1], "use": "exact"}],
    "recipe": RECIPE,
}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers. The middle layer has nothing to train."""
    folder = tmp_path_factory.mktemp("three")
    return make_student(folder / "student", make_teacher(folder / "teacher", num_hidden_layers=3), MIXED)


@pytest.fixture(scope="module")
def wanted(three: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The final weights of the run in memory."""
    out = tmp_path_factory.mktemp("wanted") / "out"
    run(three, out, texts, which="transfer")
    return weights(out)


@pytest.fixture(scope="module")
def stopped_late(three: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended in its last layer."""
    return stopped(three, tmp_path_factory.mktemp("stopped") / "out", texts, 2)


@pytest.fixture
def late(stopped_late: Path, tmp_path: Path) -> Path:
    """A copy of that run for this test to continue."""
    return shutil.copytree(stopped_late, tmp_path / stopped_late.name)


@pytest.mark.parametrize("autocast", [False, True])
def test_streamed_transfer_equals_transfer_in_memory(
    three: Path, texts: Path, tmp_path: Path, autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is stopped in its first and in its last layer. Under autocast, projections are in bfloat16, also in the teacher's
    pass, and hidden states between layers are float32, in both cases. A layer does not copy the model that contains it.
    """
    monkeypatch.setattr(StoredModel, "__deepcopy__", lambda *_: pytest.fail("all of the model is copied"), raising=False)
    # A start is computed in float32, from hidden states that are in bfloat16 between the layers of a streamed run.
    start = ("recipe.transfer.start=scaled",) if autocast else ()
    whole = run(three, tmp_path / "whole", texts, *start, which="transfer", bfloat16=autocast)
    for resume, layer in enumerate((0, 2)):
        stopped(three, tmp_path / "out", texts, layer, *start, resume=bool(resume), bfloat16=autocast)
    output = run(three, tmp_path / "out", texts, *start, resume=True, bfloat16=autocast, **STREAM)
    assert timeless(output.stages[0]) == timeless(whole.stages[0])
    assert list(output.stages[0].after) == ["layer 0", "layer 2"]
    assert same(weights(tmp_path / "whole"), tmp_path / "out")


def test_autocast_changes_the_hidden_states(three: Path, texts: Path, tmp_path: Path, wanted: dict[str, torch.Tensor]) -> None:
    run(three, tmp_path / "out", texts, bfloat16=True, **STREAM)
    assert not same(wanted, tmp_path / "out")


def test_only_transfer_is_streamed(student: Path, texts: Path, tmp_path: Path) -> None:
    for which in ("all", "finetune"):
        with pytest.raises(TrainingError, match="supports attention transfer only: set --stage transfer"):
            run(student, tmp_path / "out", texts, which=which, stream=True)
    assert not list(tmp_path.iterdir())


def flip(path: Path) -> None:
    """Change one bit in the middle."""
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 1
    path.write_bytes(contents)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def lengthen(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(bytes(4))


def miscount(path: Path) -> None:
    """Change the number of tokens in a layer's result."""
    contents = path.read_bytes()
    place = contents.index(b'tokens\\":') + len(b'tokens\\":')
    path.write_bytes(contents[:place] + bytes([contents[place] ^ 1]) + contents[place + 1 :])


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("layer-0.safetensors", miscount),
        ("rows-2.hidden", flip),
        ("rows-2.hidden", Path.unlink),
        ("held-out-2.hidden", lengthen),
        ("layer-0.safetensors", halve),
    ],
)
def test_damaged_hidden_states_are_computed_again(
    three: Path, texts: Path, late: Path, tmp_path: Path, wanted: dict[str, torch.Tensor], name: str, damage: Callable[[Path], None]
) -> None:
    messages: list[str] = []
    damage(late / name)
    run(three, tmp_path / "out", texts, resume=True, tell=messages.append, **STREAM)
    assert same(wanted, tmp_path / "out")
    anew = [message for message in messages if "computed again" in message]
    assert [f"{late / name} is damaged. It is computed again" in message for message in anew] == [True] * (damage != Path.unlink)
    solving = messages.index("Solving the output projections.")
    assert messages[solving - 1] == "Continuing after step 2 of 6 of transfer 2."


def test_layers_without_files_are_trained_again(
    three: Path, texts: Path, late: Path, tmp_path: Path, wanted: dict[str, torch.Tensor]
) -> None:
    """It starts again from the embeddings, since the newest file is for a later layer."""
    (late / "layer-0.safetensors").unlink()
    shutil.rmtree(late / "transfer 0")
    run(three, tmp_path / "out", texts, resume=True, **STREAM)
    assert same(wanted, tmp_path / "out")


def test_removed_hidden_states_are_reported(three: Path, texts: Path, tmp_path: Path, wanted: dict[str, torch.Tensor]) -> None:
    def watch(step: StepProgress) -> None:
        if (step.stage, step.step) == ("transfer 2", 3):
            halve(tmp_path / "out.run" / "rows-2.hidden")

    with pytest.raises(TrainingError, match=r"rows-2.hidden cannot be read .*--resume, which computes it again"):
        run(three, tmp_path / "out", texts, watch=watch, **STREAM)
    run(three, tmp_path / "out", texts, resume=True, **STREAM)
    assert same(wanted, tmp_path / "out")


@pytest.mark.parametrize("number", [1, 4])
def test_a_disk_full_of_hidden_states_is_reported(
    three: Path, texts: Path, tmp_path: Path, wanted: dict[str, torch.Tensor], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system refuses to write more in the middle of a file, with and without embeddings, for rows and held-out rows."""
    original, count = Spill._fill, 0

    def fill(*arguments: Any) -> None:
        nonlocal count
        count += 1
        with small_files(4096 if count == number else 10**9):
            original(*arguments)

    monkeypatch.setattr(Spill, "_fill", fill)
    message = (
        rf"hidden states for layer {(number - 1) // 2} could not .*: File too large. They need .* bytes.*Free some space.*--resume"
    )
    with pytest.raises(TrainingError, match=message):
        run(three, tmp_path / "out", texts, **STREAM)
    assert not list((tmp_path / "out.run").glob("*.partial"))
    monkeypatch.undo()
    run(three, tmp_path / "out", texts, resume=True, **STREAM)
    assert same(wanted, tmp_path / "out")


def test_a_full_disk_at_the_end_of_a_layer_is_reported(
    three: Path, texts: Path, tmp_path: Path, wanted: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_file(_: Any, path: Path, __: Any) -> None:
        path.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(streamed, "save_file", save_file)
    with pytest.raises(
        TrainingError, match="The result of layer-0 could not .*: No space left on device. Free some space.*--resume"
    ):
        run(three, tmp_path / "out", texts, **STREAM)
    assert not list((tmp_path / "out.run").glob("*.partial"))
    monkeypatch.undo()
    run(three, tmp_path / "out", texts, resume=True, **STREAM)
    assert same(wanted, tmp_path / "out")


def test_too_small_disks_are_refused_before_writing(
    three: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes before anything is written and names the needed space. With one more free byte, the run works."""
    messages: list[str] = []
    run(three, tmp_path / "out", texts, tell=messages.append, **STREAM)
    (message,) = [message for message in messages if message.startswith("Streaming needs up to ")]
    needed = int(message.removeprefix("Streaming needs up to ").partition(" bytes")[0].replace(",", ""))
    shutil.rmtree(tmp_path / "out")
    usage = shutil.disk_usage(tmp_path)
    for short in (1, 0):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, short=short: usage._replace(free=needed - short))
        if short:
            with pytest.raises(
                TrainingError, match=rf"needs up to {needed:,} bytes at .*, and {needed - 1:,} are free. Free some space"
            ):
                run(three, tmp_path / "out", texts, **STREAM)
            assert not list(tmp_path.iterdir())
        else:
            folder = stopped(three, tmp_path / "out", texts, 2)
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=max(10**6, needed - held)))
    run(three, tmp_path / "out", texts, resume=True, **STREAM)


def test_hidden_states_need_the_declared_bytes(three: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, share, original = [], [], Path.replace

    def replace(path: Path, target: Path) -> Path:
        taken.append(sum(share.stat().st_size for kind in ("*.hidden", "*.hidden.partial") for share in path.parent.glob(kind)))
        return original(path, target)

    def needed(*arguments: Any) -> int:
        share.append(measured(*arguments) - streamed.SAVED * 4 * arguments[2].fresh)
        return share[-1]

    measured = streamed.disk_needed
    monkeypatch.setattr(streamed, "disk_needed", needed)
    monkeypatch.setattr(Path, "replace", replace)
    run(three, tmp_path / "out", texts, **STREAM)
    assert max(taken) == share[0]


@pytest.mark.parametrize(
    ("owner", "name", "number"),
    [
        pytest.param(Spill, "_fill", 1, marks=pytest.mark.full),
        (Spill, "_fill", 3),
        (Spill, "advance", 1),
        (streamed, "save_file", 1),
        pytest.param(streamed, "_write_finished", 1, marks=pytest.mark.full),
        (streamed, "_write_finished", 3),
    ],
)
def test_runs_killed_between_two_files_resume(
    three: Path,
    texts: Path,
    tmp_path: Path,
    wanted: dict[str, torch.Tensor],
    owner: Any,
    name: str,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def child() -> None:
        killed_at(monkeypatch, owner, name, number, behind=True)
        run(three, tmp_path / "out", texts, **STREAM)

    assert ending(forked(child)) == -signal.SIGKILL
    run(three, tmp_path / "out", texts, resume=True, **STREAM)
    assert same(wanted, tmp_path / "out")


@pytest.mark.full  # these moments are random
def test_runs_killed_at_any_moment_resume(three: Path, texts: Path, tmp_path: Path, wanted: dict[str, torch.Tensor]) -> None:
    choice, kills = random.Random(5), 0
    for _ in range(4):
        resume = (tmp_path / "out.run" / "run.json").is_file()
        slowly: dict[str, Any] = {"resume": resume, "watch": lambda _: time.sleep(0.05)}
        process = forked(lambda slowly=slowly: run(three, tmp_path / "out", texts, **slowly, **STREAM))
        time.sleep(choice.uniform(0.1, 1.2))
        os.kill(process, signal.SIGKILL)
        kills += ending(process) == -signal.SIGKILL
    assert kills
    if not (tmp_path / "out").exists():
        run(three, tmp_path / "out", texts, resume=True, **STREAM)
    shutil.rmtree(tmp_path / "out.run", ignore_errors=True)  # killed while it was removed
    assert same(wanted, tmp_path / "out")


def test_runs_killed_before_their_first_file_can_be_restarted(
    three: Path, texts: Path, tmp_path: Path, wanted: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to continue, and another run can start."""

    def child() -> None:
        killed_at(monkeypatch, Path, "rename", 1, behind=False)
        run(three, tmp_path / "out", texts, **STREAM)

    assert ending(forked(child)) == -signal.SIGKILL
    with pytest.raises(TrainingError, match="There is no run to continue at .*/out.run. Leave --resume out"):
        run(three, tmp_path / "out", texts, resume=True, **STREAM)
    run(three, tmp_path / "out", texts, **STREAM)
    assert same(wanted, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
