"""The sizes of heads' outputs before attention transfer: parts scale them to the teacher's, and a start far from it is reported.

A size is the root mean square over tokens, heads and coordinates at the input of the output projection.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from blocks.calibration import OutputSizes
from composer.model.attention import ComposedAttention
from composer.model.head import Head, anatomy
from composer.reporting.words import plural
from composer.spec.recipe import Transfer
from composer.training.transfer import AttentionTarget, heads_output

FAR = 4.0
"""The ratio of the student's size to the teacher's, or its inverse, above which a start is reported."""


class LayerSizes(NamedTuple):
    """The sizes of the outputs of a layer's heads."""

    layer: int
    student: float
    teacher: float

    @property
    def distance(self) -> float:
        """The ratio of the larger size to the smaller one."""
        smaller, larger = sorted((self.student, self.teacher))
        return larger / smaller if smaller else math.inf if larger else 1.0


@torch.no_grad()
def scale_layer(
    name: str, student: ComposedAttention, target: AttentionTarget, backend: str, untrained: Collection[str]
) -> tuple[list[str], LayerSizes]:
    """Scale the parts of one layer to the teacher's output. Return the names of the scaled parts, and the sizes after that.

    name: the full name of the layer's attention. untrained: the full names of the parameters that may be scaled.
    """
    teacher, results, scaled = _mean_squares(target.heads, target), _measure(student, target, backend), list[str]()
    for own, head in student.composed.named_children():
        assert isinstance(head, Head), "a layer's heads are its groups"
        here = list(anatomy(head).numbers)
        part = _rescale(head, OutputSizes(results[here], teacher[here]), f"{name}.composed.{own}", untrained)
        scaled += [] if part is None else [f"{name}.composed.{own}.{part}"]
    if scaled:
        results = _measure(student, target, backend)
    return scaled, LayerSizes(student.layer, *OutputSizes(results, teacher).roots)


def _rescale(head: Head, sizes: OutputSizes, place: str, untrained: Collection[str]) -> str | None:
    """Scale the last part of a head that can scale its output; its name, or None if there is none."""
    of = anatomy(head)
    for node in reversed(of.graph.parts):
        assert node.part is not None, "inputs and output of the head are no parts"
        module = of.parts[node.module]
        if all(f"{place}.{node.module}.{parameter}" in untrained for parameter, _ in module.named_parameters()):
            values = module(node.part.rescale, sizes, node.shape)
            for parameter, value in values.items():
                module.get_parameter(parameter).copy_(value)
            if values:
                return node.module
    return None


def _measure(student: ComposedAttention, target: AttentionTarget, backend: str) -> Tensor:
    return _mean_squares(heads_output(student, target, backend), target)


def _mean_squares(output: Tensor, target: AttentionTarget) -> Tensor:
    """Return the mean squares of an output B T H V over tokens that are no padding, H V. Squares of raw numerators need float64."""
    valid = target.tokens.valid
    return (output.flatten(0, 1) if valid is None else output[valid]).double().square().mean(0)


def warn_of_sizes(sizes: Sequence[LayerSizes], stage: Transfer) -> Iterator[str]:
    """Yield the warning for layers whose outputs start far from the teacher's."""
    far = [layer for layer in sizes if layer.distance > FAR]
    if far:
        worst = max(far, key=lambda layer: layer.distance)
        remedy = "Add `output: norm` to the head, whose weights start at the teacher's size."
        if stage.start == "parts":
            remedy = f"Leave recipe.transfer.start out, so that norms and gates start at the teacher's size. {remedy}"
        yield (
            f"In {len(far):,} of {plural(len(sizes), 'layer')} the heads' outputs start more than {FAR:g} times larger or smaller "
            f"than the teacher's: in layer {worst.layer} their root mean square is {worst.student:.3g}, and the teacher's is "
            f"{worst.teacher:.3g}. {remedy}"
        )
