"""The report of a run as tables: losses before and after, steps, tokens and time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from composer.spec.inherit import shown
from composer.tables import Table
from composer.words import quantity

if TYPE_CHECKING:
    from composer.training.run import TrainingReport


def losses(report: TrainingReport) -> Table:
    """The held-out losses, a row for each unit of a stage; empty where nothing was held out."""
    rows = tuple(
        (outcome.stage, name, f"{before:.4g}", f"{outcome.after[name]:.4g}")
        for outcome in report.stages
        for name, before in outcome.before.items()
    )
    return Table("", ("stage", "of", "before", "after"), rows, range(2, 4))


def remarks(report: TrainingReport) -> tuple[str, ...]:
    """Time and tokens of each stage, the losses of student and teacher, and the place of the log."""
    said = [
        f"{outcome.stage}: {outcome.steps:,} steps, {quantity(outcome.tokens)} tokens, {outcome.seconds:.0f} s"
        for outcome in report.stages
    ]
    for start in (outcome.start for outcome in report.stages):
        if start is not None:
            calibrated, kept = _parts(start.calibrated), _parts(start.kept)
            said.append(f"By the teacher's attention started {calibrated}, in {start.seconds:.0f} s; as they were: {kept}.")
    if report.loss is not None and report.teacher_loss is not None:
        said.append(f"The next token of held-out rows costs it {report.loss:.4g} nats, and its teacher {report.teacher_loss:.4g}.")
    judged = any(outcome.before for outcome in report.stages)
    if not judged:
        said.append("Nothing was held out, so nothing was evaluated: it is what the last step made.")
    return (*said, f"{'Losses are of held-out rows. ' if judged else ''}Log and curve: {shown(report.out / 'training')}")


def _parts(names: tuple[str, ...]) -> str:
    """The names of parts, each by its last two components, once for all layers."""
    return ", ".join(dict.fromkeys(".".join(name.split(".")[-2:]) for name in names)) or "none"
