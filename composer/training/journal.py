"""What a run writes down as it goes: a line of JSON a step, the same for TensorBoard, and a curve at the end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

LOG = "log.jsonl"
CURVE = "curve.png"
BOARD = "tensorboard"


class Journal:
    """The log of one run in a folder; it goes on where an earlier one has stopped."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log, self._folder = folder / LOG, folder / BOARD
        self._boards: dict[str, SummaryWriter] = {}

    def rewind(self, stage: str, step: int) -> None:
        """Forget what a killed run has written of steps that will be taken again."""
        if self._log.is_file():
            kept = [line for line in _lines(self._log) if line["stage"] != stage or line["step"] <= step]
            partial = self._log.with_suffix(".partial")
            partial.write_text("".join(f"{json.dumps(line)}\n" for line in kept), encoding="utf-8")
            partial.replace(self._log)  # in one step: a kill in here must not cost the log
        self._board(stage, step + 1)

    def write(self, stage: str, step: int, **figures: Any) -> None:
        """Numbers, and mappings of names to numbers, after so many steps of a stage."""
        with self._log.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"stage": stage, "step": step, **figures}) + "\n")
        for name, figure in figures.items():
            for part, number in figure.items() if isinstance(figure, Mapping) else [("", figure)]:
                self._board(stage).add_scalar(name + (f"/{part}" if part else ""), number, step)

    def close(self) -> None:
        for board in self._boards.values():
            board.close()

    def _board(self, stage: str, purge: int | None = None) -> SummaryWriter:
        """TensorBoard's file of a stage, in a folder of its own: it forgets by steps, whatever they are of."""
        from torch.utils.tensorboard import SummaryWriter

        if stage not in self._boards:
            self._boards[stage] = SummaryWriter(str(self._folder / stage), purge_step=purge)
        return self._boards[stage]


class Unwritten(Journal):
    """Of a process that another one writes for."""

    def __init__(self) -> None:
        self._boards = {}

    def rewind(self, stage: str, step: int) -> None:
        """Nothing."""

    def write(self, stage: str, step: int, **figures: Any) -> None:
        """Nothing."""


def draw(log: Path, target: Path) -> None:
    """The losses of each stage over its steps, as a picture: thin on the training data, dots where they were evaluated."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    lines = list(_lines(log))
    stages = list(dict.fromkeys(line["stage"] for line in lines))
    figure, axes = pyplot.subplots(1, len(stages), figsize=(6 * len(stages), 4), squeeze=False, layout="constrained")
    for axis, stage in zip(axes[0], stages, strict=True):
        own = [line for line in lines if line["stage"] == stage]
        for colour, unit in enumerate(dict.fromkeys(name for line in own for name in line.get("loss", {}))):
            style = {"color": f"C{colour % 10}"}
            axis.plot(*_series(own, "loss", unit), linewidth=0.8, alpha=0.6, **style)
            axis.plot(*_series(own, "held_out", unit), "o-", markersize=3, label=unit, **style)
        axis.set(title=stage, xlabel="step", ylabel="loss", yscale="log")
        axis.legend(fontsize="small")
    figure.savefig(target, dpi=120)
    pyplot.close(figure)


def _series(lines: list[dict[str, Any]], kind: str, unit: str) -> tuple[list[int], list[float]]:
    points = [(line["step"], line[kind][unit]) for line in lines if unit in line.get(kind, {})]
    return [step for step, _ in points], [loss for _, loss in points]


def _lines(log: Path) -> Iterator[dict[str, Any]]:
    """The whole lines: a kill may have left half of one at the end."""
    for line in log.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return
