"""Law 6, late in a text: what bfloat16 makes of a head's parameters costs no more at 4,096 tokens than at the start."""

from __future__ import annotations

import copy

import torch

from blocks.legend import Shape
from composer.graph.composition import HeadSpec
from composer.laws.cases import build_head, inputs, once, run
from composer.model.head import Head

LENGTH, EARLY = 4096, slice(0, 64)
LATE = slice(LENGTH - 1024, LENGTH)


def errors(head: Head, narrow: Head, shape: Shape) -> tuple[float, float]:
    """Return how far off the heads of ``narrow`` are, relative to what they answer: the median over early tokens, and over late
    ones."""
    data = inputs(shape, 1, LENGTH).to(torch.bfloat16)
    with torch.no_grad():
        actual, _ = run(narrow, data)
        expected, _ = run(head, data.to(torch.float64))
    wrong = (actual.double() - expected).flatten(2).norm(dim=-1) / expected.flatten(2).norm(dim=-1)
    return wrong[:, EARLY].median().item(), wrong[:, LATE].median().item()


@once
def assert_errors_do_not_grow(spec: HeadSpec, shape: Shape) -> None:
    head = build_head(spec, shape)
    early, late = errors(head, copy.deepcopy(head).bfloat16(), shape)
    assert late <= 2 * early + 0.005
