"""The curves of a run in Weights & Biases (``wandb``) and Trackio, beside TensorBoard, if the user names them."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from pydantic import StringConstraints

from blocks.part import Closed
from composer.errors import TrainingError
from composer.system.files import failing_as
from composer.system.json_files import read_state, write_state
from composer.training.options import AGAIN

TRACKED = "tracked.json"
PROJECT = "composer"


class TrackedRun(Closed):
    """The contents of ``tracked.json`` in a run folder. id: of the run in every tracker; a continued run has the same."""

    id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$")]


class Tracker:
    """A run in one tracker. Both packages have wandb's interface."""

    def __init__(self, package: str, name: str, run_id: str, config: Mapping[str, Any], again: str = AGAIN) -> None:
        """Begin a run, or continue the run of this id. Raises TrainingError."""
        self._package, self._again = package, again
        project = os.environ.get(f"{package.upper()}_PROJECT", PROJECT)
        usual = {"project": project, "name": f"{name}-{run_id}", "config": dict(config), "resume": "allow"}
        with self._failing_as("begin the run"):
            self._module: Any = import_module(package)
            if package == "wandb":
                self._run = self._module.init(id=run_id, settings={"console": "off"}, **usual)
            else:  # its runs have names alone
                self._run = self._module.init(embed=False, **usual)

    def begin_stage(self, stage: str) -> None:
        """Begin a stage, or continue it. Raises TrainingError."""
        if self._package == "wandb":
            with self._failing_as("begin a stage"):
                # Its own steps never decrease: it would drop the first steps of a second stage, and steps that are taken again.
                self._run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")

    def write(self, stage: str, step: int, numbers: Mapping[str, float]) -> None:
        """Add the numbers of a step, by the names of their curves. Raises TrainingError."""
        values = {f"{stage}/{name}": number for name, number in numbers.items()}
        with self._failing_as("add a step"):
            if self._package == "wandb":
                self._run.log(values | {f"{stage}/step": step})
            else:
                self._run.log(values, step=step)

    def end(self) -> None:
        """End the run: what was not sent yet is sent. Raises TrainingError."""
        with self._failing_as("end the run"):
            self._module.finish()  # by the module: Trackio ends the run again at exit if only the run was ended

    @contextmanager
    def _failing_as(self, action: str) -> Iterator[None]:
        """Raise TrainingError for any error of the package, which has classes of its own. It prints to stderr: stdout is ours."""
        try:
            with redirect_stdout(sys.stderr):
                yield
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise TrainingError(
                f"--track {self._package} could not {action}: {reason.rstrip('.')}. Fix that or leave --track {self._package} out, "
                f"and {self._again}."
            ) from error


@contextmanager
def tracking(
    packages: Sequence[str], folder: Path, name: str, config: Mapping[str, Any], again: str = AGAIN
) -> Iterator[tuple[Tracker, ...]]:
    """Begin or continue a run in each tracker, and end it with the block.

    folder: the run folder, which keeps the run's id. name: of the run, before its id. config: the settings that are sent. Raises
    TrainingError.
    """
    trackers: list[Tracker] = []
    run_id = _run_id(folder) if packages else ""
    try:
        for package in packages:
            trackers.append(Tracker(package, name, run_id, config, again))
        yield tuple(trackers)
    except BaseException:
        for tracker in trackers:
            with suppress(TrainingError):  # the first error is reported
                tracker.end()
        raise
    for tracker in trackers:
        tracker.end()


def _run_id(folder: Path) -> str:
    file = folder / TRACKED
    try:
        return read_state(file, TrackedRun, TrainingError, "Remove it to continue as a new run in the tracker.").id
    except FileNotFoundError:
        run = TrackedRun(id=uuid.uuid4().hex[:12])
    with failing_as(TrainingError, f"{file} could not be written", "Free some space, and run the same command again."):
        write_state(file, run)
    return run.id
