"""A unit: parameters that share an optimiser; a layer's in stage 1, the whole model's in the other stages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn

from blocks.part import Closed
from composer.data.packing import Batch
from composer.errors import TrainingError
from composer.model.head import without_autocast
from composer.spec.recipe import Stage
from composer.system.json_files import Count, Measured
from composer.training.processes import norm as norm_of

RECENT = 20
"""Steps over which losses are averaged to detect divergence."""
DIVERGED = 10.0
"""A run has diverged where its recent loss is so many times its first losses."""
RISEN = 1.5
"""A run is warned of where its loss in the second half of its first steps is so many times the loss before the first one."""
PLATEAU = 2
"""Evaluations in a row without a gain, after which the plateau schedule halves the rate."""


Lately = Annotated[list[Measured], Field(max_length=RECENT)]


@dataclass
class UnitProgress:
    """The state of a unit that is no tensor."""

    best: Measured | None = None
    """The lowest loss of an evaluation; None before the first one."""
    waited: Count = 0
    """Evaluations since the lowest loss."""
    factor: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The factor by which the plateau schedule multiplies learning rates."""
    stopped: bool = False
    began: Lately = field(default_factory=list)
    recent: Lately = field(default_factory=list)


class UnitFacts(Closed):
    """A unit's state beside its tensors. best: whether the best parameters are stored. moved: parameters with optimiser states."""

    progress: UnitProgress
    best: bool
    moved: tuple[str, ...]


class Unit:
    """Named parameters, their AdamW optimiser, and the course of their losses.

    groups: pairs of a learning rate and the parameters, by their full names, that it holds for. may_rise: a loss that
    rises is no mistake, as that of gates, which begin open.
    """

    def __init__(
        self, name: str, stage: Stage, groups: Iterable[tuple[float, Mapping[str, nn.Parameter]]], *, may_rise: bool = False
    ) -> None:
        groups = [(rate, dict(parameters)) for rate, parameters in groups if parameters]
        self.name, self.may_rise = name, may_rise
        self.parameters = {name: parameter for _, group in groups for name, parameter in group.items()}
        self.progress = UnitProgress()
        self.best: dict[str, Tensor] = {}
        self._stage = stage
        self._rates = [rate for rate, _ in groups]
        self._optimizer = torch.optim.AdamW(
            [{"params": list(group.values())} for _, group in groups],
            lr=stage.lr,
            betas=stage.betas,
            weight_decay=stage.weight_decay,
        )

    def rate(self, step: int, steps: int) -> float:
        """Return the factor on the unit's learning rates in ``step``, counted from 0."""
        return share_of_rate(self._stage, step, steps) * self.progress.factor

    def update(self, step: int, steps: int, loss: float) -> float:
        """Run an optimiser step with the accumulated gradients, and clear them. Return their norm. Raises TrainingError."""
        gradients = {name: _gradient(parameter) for name, parameter in self.parameters.items()}
        norm = norm_of(list(gradients.values()))
        self._check(step, loss, norm, gradients)
        if self._stage.clip is not None and norm > self._stage.clip:
            for gradient in gradients.values():
                gradient.mul_(self._stage.clip / norm)
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * self.rate(step, steps)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return norm

    def update_after_evaluation(self, loss: float) -> None:
        """Update by the loss of an evaluation: keep the best parameters, lower the rate on a plateau, stop when patience ends.
        Raises TrainingError if the loss is not finite."""
        if not math.isfinite(loss):
            raise TrainingError(
                f"{self.name}: the loss of an evaluation is {loss}. Learn more slowly: a lower lr, a longer warmup."
            )
        progress = self.progress
        if progress.best is None or loss < progress.best:
            progress.best, progress.waited = loss, 0
            if self._stage.keep == "best":
                self.best = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
            return
        progress.waited += 1
        if self._stage.schedule == "plateau" and progress.waited % PLATEAU == 0:
            progress.factor /= 2
        progress.stopped = self._stage.patience is not None and progress.waited >= self._stage.patience

    @torch.no_grad()
    def finish(self) -> None:
        """Restore the best parameters, if an evaluation has kept any."""
        for name, values in self.best.items():
            self.parameters[name].copy_(values)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors of the unit, to be saved, or to be loaded into: parameters, the best of them, optimiser states."""
        tensors: dict[str, Tensor] = {f"parameter/{name}": parameter.detach() for name, parameter in self.parameters.items()}
        tensors |= {f"best/{name}": values for name, values in self.best.items()}
        for name, parameter in self.parameters.items():
            tensors |= {f"optimizer/{name}/{key}": value for key, value in self._optimizer.state[parameter].items()}
        return tensors

    def facts(self) -> UnitFacts:
        """Return the facts that a checkpoint stores beside the tensors: the progress, and the names of the tensors."""
        progress = replace(self.progress, began=list(self.progress.began), recent=list(self.progress.recent))
        moved = tuple(name for name in self.parameters if self._has_moved(name))
        return UnitFacts(progress=progress, best=bool(self.best), moved=moved)

    def restore(self, facts: UnitFacts) -> None:
        """Allocate the tensors of a checkpoint with these facts, and restore its progress."""
        self.progress = facts.progress
        self.best = {name: torch.empty_like(parameter) for name, parameter in self.parameters.items()} if facts.best else {}
        self._optimizer.state.clear()
        for name in facts.moved:
            parameter = self.parameters[name]
            moments = {key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")}
            self._optimizer.state[parameter] = {"step": torch.tensor(0.0), **moments}

    def _has_moved(self, name: str) -> bool:
        return bool(self._optimizer.state[self.parameters[name]])

    def _check(self, step: int, loss: float, norm: float, gradients: Mapping[str, Tensor]) -> None:
        if not math.isfinite(loss):
            raise TrainingError(
                f"{self.name}: the loss is {loss} at step {step + 1}. Learn more slowly: a lower lr, a longer warmup."
            )
        if not math.isfinite(norm):
            wrong = next(name for name, gradient in gradients.items() if not math.isfinite(norm_of([gradient])))
            raise TrainingError(f"{self.name}: the gradient of {wrong} is not finite at step {step + 1}; the loss was {loss:.4g}.")
        began, recent = self.progress.began, self.progress.recent
        if len(began) < RECENT:
            began.append(loss)
            return
        recent.append(loss)
        del recent[:-RECENT]
        if not self.may_rise and len(recent) == RECENT and sum(recent) > DIVERGED * sum(began):
            start, now = (sum(losses) / RECENT for losses in (began, recent))
            raise TrainingError(
                f"{self.name}: the loss has risen from {start:.4g} to {now:.4g} by step {step + 1}: it diverges. "
                "Learn more slowly: a lower lr, a longer warmup, a smaller clip."
            )


def share_of_rate(stage: Stage, step: int, steps: int) -> float:
    """Return the factor of warm-up and schedule on the learning rate in a step, counted from 0."""
    if step < stage.warmup:
        return (step + 1) / stage.warmup
    if stage.schedule != "cosine":
        return 1.0
    done = (step - stage.warmup) / max(1, steps - stage.warmup)
    return stage.final + (1 - stage.final) * (1 + math.cos(math.pi * done)) / 2


def _gradient(parameter: nn.Parameter) -> Tensor:
    """Zeros where none of a step's rows needed the parameter: the optimiser would leave it out, and its momentum with it."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def warn_if_risen(units: Iterable[Unit], before: Mapping[str, float]) -> Iterable[str]:
    """Yield a warning for each unit whose loss the first steps have raised. before: the held-out losses before them, by unit."""
    for unit in (unit for unit in units if not unit.may_rise):
        losses = unit.progress.began
        first, mean = max(losses[0], before.get(unit.name, 0.0)), sum(losses[RECENT // 2 :]) / (RECENT - RECENT // 2)
        if mean > RISEN * first:
            yield (
                f"{unit.name}: the loss was {first:.4g} before the first step, and is {mean:.4g} in steps {RECENT // 2 + 1} to "
                f"{RECENT}. Learn more slowly: a lower lr, or fresh_lr for the fresh parameters, or a longer warmup."
            )


Losses = dict[str, Tensor]
"""The loss of each unit, by its name: a sum over a batch, divided by the loop's total."""


class Course(Protocol):
    """The units of a stage, and how their losses are computed."""

    units: Sequence[Unit]
    """The groups of parameters that are trained, each with its own optimiser."""

    def count(self, batch: Batch) -> int:
        """Return the number of tokens, or rows, of a batch that its losses are averaged over."""
        ...

    def compute_gradients(self, batch: Batch, total: float) -> Losses:
        """Add the gradients of a batch's losses, which are divided by ``total``. Units that have stopped are left out."""
        ...

    def compute_losses(self, batch: Batch, total: float) -> Losses:
        """Return the losses of all units, without gradients."""
        ...

    def warn_at_start(self, losses: Mapping[str, float]) -> Iterable[str]:
        """Return warnings about the held-out losses before the first step."""
        return ()


def add_gradients(loss: Tensor) -> None:
    """Add the gradients of a loss to those of its parameters.

    Autocast is for the forward alone. In the backward pass operations have the dtype of their forward, and what heads compute in
    float32 would be narrowed.
    """
    with without_autocast(loss.device.type):
        loss.backward()


class WholeCourse(Course):
    """A student that runs as a whole, with one unit for all trained parameters. It is in training mode as it learns: layers can be
    checkpointed, and a host's dropout is on."""

    def __init__(self, student: nn.Module, unit: Unit) -> None:
        self.units = [unit]
        self._student, self._name = student, unit.name

    def compute_gradients(self, batch: Batch, total: float) -> Losses:
        self._student.train()
        loss = self._loss(batch, total)
        add_gradients(loss)
        return {self._name: loss.detach()}

    @torch.no_grad()
    def compute_losses(self, batch: Batch, total: float) -> Losses:
        self._student.eval()
        return {self._name: self._loss(batch, total)}

    def _loss(self, batch: Batch, total: float) -> Tensor:
        """Return the loss of a batch, a sum divided by ``total``."""
        raise NotImplementedError
