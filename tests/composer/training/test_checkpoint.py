"""Loading a checkpoint runs no code, and a changed checkpoint is rejected."""

from __future__ import annotations

import errno
import json
import math
import os
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from composer.errors import TrainingError
from composer.spec.recipe import Stage
from composer.system.files import sha256
from composer.training import checkpoint
from composer.training.checkpoint import FACTS, TENSORS
from composer.training.loop import StageState
from composer.training.unit import Unit
from tests.composer.training.stages import STAGES, StoppedError, run, stop_at

DAMAGED = r"The checkpoint .* is damaged: .*\. Remove it to repeat the stage from its start, or start again with --force"


def unit_of(value: float = 0.0) -> Unit:
    return Unit("unit", Stage(lr=1, steps=1), [(1.0, {"weight": nn.Parameter(torch.full((2, 3), value))})])


class Hostile:
    """An object that runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a stopped run, to copy."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(StoppedError):
        run(folder, STAGES["transfer"], checkpoint_seconds=0.0, watch=stop_at(3))
    return folder


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """The checkpoint of a stopped stage in a folder for this test."""
    shutil.copytree(stopped_once, tmp_path / "run")
    (step,) = (tmp_path / "run" / "transfer").iterdir()
    return step


@pytest.mark.parametrize("has_earlier", [True, False])
def test_a_full_disk_keeps_the_checkpoint_before(
    stopped: Path, tmp_path: Path, has_earlier: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = tmp_path / "run" if has_earlier else tmp_path / "new"
    monkeypatch.setattr(checkpoint, "_complete", fail)
    kept = "The previous checkpoint is kept" if has_earlier else "No earlier checkpoint exists"
    with pytest.raises(TrainingError, match=f"No space left on device. {kept}"):
        run(folder, STAGES["transfer"], checkpoint_seconds=0.0)
    assert stopped.exists()


def test_a_hostile_file_beside_a_checkpoint_is_not_opened(stopped: Path, tmp_path: Path) -> None:
    """``torch.distributed.checkpoint`` would open it."""
    (stopped / ".metadata").write_bytes(pickle.dumps(Hostile(f"touch {tmp_path / 'ran'}")))
    run(tmp_path / "run", STAGES["transfer"])
    assert not (tmp_path / "ran").exists()


def test_pickles_in_place_of_tensors_are_refused(stopped: Path, tmp_path: Path) -> None:
    (stopped / TENSORS.format(0)).write_bytes(pickle.dumps(Hostile(f"touch {tmp_path / 'ran'}")))
    change(stopped, lambda facts: facts["processes"][0].update(sha256=sha256(stopped / TENSORS.format(0))))
    with pytest.raises(TrainingError, match=DAMAGED):
        run(tmp_path / "run", STAGES["transfer"])
    assert not (tmp_path / "ran").exists()


def test_every_changed_bit_is_detected(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, [unit_of(1e-5)], {"told": 1e-5})
    newest_step = checkpoint.newest(tmp_path)
    assert newest_step is not None
    choice = random.Random(0)
    for path in (newest_step / FACTS, newest_step / TENSORS.format(0)):
        content = path.read_bytes()
        for place in range(len(content)) if path.suffix == ".safetensors" else choice.sample(range(len(content)), 400):
            changed = bytearray(content)
            changed[place] ^= 1 << choice.randrange(8)
            path.write_bytes(changed)
            with pytest.raises(TrainingError, match=DAMAGED):
                checkpoint.restore(newest_step, [unit_of()])
        path.write_bytes(content)
    unit = unit_of()
    checkpoint.restore(newest_step, [unit])
    assert torch.equal(unit.parameters["weight"], torch.full((2, 3), 1e-5))


def test_the_newest_checkpoint_has_the_largest_step(tmp_path: Path) -> None:
    for step in (99_999_999, 100_000_000):
        (tmp_path / f"step-{step:08d}").mkdir()
    assert checkpoint.newest(tmp_path) == tmp_path / "step-100000000"


def test_equal_numbers_in_other_bytes_are_detected(tmp_path: Path) -> None:
    """The number is the same, but one bit of the file differs."""
    checkpoint.save(tmp_path, 1, [unit_of()], {"told": 1e-05})
    path = tmp_path / "step-00000001" / FACTS
    path.write_text(path.read_text().replace("1e-05", "1E-05"))
    with pytest.raises(TrainingError, match=rf"{FACTS} is not what was written"):
        checkpoint.restore(path.parent, [unit_of()])


def change(folder: Path, how: Callable[[dict[str, Any]], Any]) -> None:
    """Change the facts and their checksum."""
    facts = json.loads((folder / FACTS).read_text())["facts"]
    how(facts)
    (folder / FACTS).write_text(checkpoint._text(facts))


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no unit": lambda facts: facts["units"].clear(),
    "another format": lambda facts: facts.update(format=3),
    "no process": lambda facts: facts.update(processes=[]),
    "progress of words": lambda facts: facts["units"]["layer 0"]["progress"].update(best="low"),
    "unknown parameter": lambda facts: facts["units"]["layer 0"]["moved"].append("no.such.parameter"),
    "short random state": lambda facts: facts["processes"][0].update(random="00"),
    "no random state": lambda facts: facts["processes"][0].update(random="00" * (len(facts["processes"][0]["random"]) // 2)),
    "no hexadecimal digits": lambda facts: facts["processes"][0].update(random="zz"),
    "steps of words": lambda facts: facts["state"].update(step="three"),
    "a step in quotation marks": lambda facts: facts["state"].update(step="3"),
    "a step beyond the last": lambda facts: facts["state"].update(step=10**6),
    "a step before": lambda facts: facts["state"].update(step=1),
    "tokens below 0": lambda facts: facts["state"].update(tokens=-1),
    "seconds that are not finite": lambda facts: facts["state"].update(seconds=math.inf),
    "a loss that is not finite": lambda facts: facts["state"].update(before={"layer 0": math.nan}),
    "losses after of other units": lambda facts: facts["state"].update(after={"layer 9": 1.0}),
    "a loss beyond all floats": lambda facts: facts["units"]["layer 0"]["progress"].update(best=1e308),
    "a factor above 1": lambda facts: facts["units"]["layer 0"]["progress"].update(factor=2.0),
    "no progress": lambda facts: facts["units"]["layer 0"].pop("progress"),
    "more of a unit": lambda facts: facts["units"]["layer 0"].update(more=1),
    "nothing told": lambda facts: facts["state"].clear(),
}


@pytest.mark.parametrize("what", CHANGES)
def test_invented_facts_are_refused(stopped: Path, what: str) -> None:
    change(stopped, CHANGES[what])
    with pytest.raises(TrainingError, match=DAMAGED):
        run(stopped.parent.parent, STAGES["transfer"])


@pytest.mark.parametrize("text", ["[" * 500_000, "[]", "{}", '{"facts": 1}', "", "\udc80"], ids=range(6))
def test_malformed_facts_are_refused(stopped: Path, text: str) -> None:
    (stopped / FACTS).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(TrainingError, match=DAMAGED):
        run(stopped.parent.parent, STAGES["transfer"])


@pytest.mark.parametrize("shape", [(), (2,), (2, 2), (1, 3), (3, 3), (6,)])
def test_tensors_of_another_shape_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    checkpoint.save(tmp_path, 1, [unit_of()], {})
    step = tmp_path / "step-00000001"
    (name,) = load_file(step / TENSORS.format(0))
    save_file({name: torch.zeros(shape)}, step / TENSORS.format(0))
    change(step, lambda facts: facts["processes"][0].update(sha256=sha256(step / TENSORS.format(0))))
    with pytest.raises(TrainingError, match=DAMAGED):
        checkpoint.restore(step, [unit_of()])


def test_saved_facts_are_restored(tmp_path: Path) -> None:
    reached = StageState(
        identity={"seed": 3}, step=1, tokens=2, seconds=0.1, learning=0.2, done=False, before={"b": 1.0, "a": 2.0}, after={}
    )
    checkpoint.save(tmp_path, 1, [unit_of()], reached.model_dump())
    newest_step = checkpoint.newest(tmp_path)
    assert newest_step is not None
    read = checkpoint.read_state(newest_step, StageState)
    assert read == reached
    assert list(read.before) == ["b", "a"]
    assert sorted(path.name for path in newest_step.iterdir()) == [FACTS, TENSORS.format(0)]
