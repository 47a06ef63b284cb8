"""Stretches cover each token once, never span two documents, and their results are joined by document."""

from __future__ import annotations

import torch

from blocks.stretches import SPAN, Stretches


def test_stretches_cover_each_token_once() -> None:
    stretches = Stretches.of(torch.tensor([0, 3, 3 + SPAN, 2 * SPAN + 4]))
    assert stretches.begins.tolist() == [0, 3, 3 + SPAN, 3 + 2 * SPAN]
    assert stretches.ends.tolist() == [3, 3 + SPAN, 3 + 2 * SPAN, 4 + 2 * SPAN]
    assert stretches.document.tolist() == [0, 1, 2, 2]
    assert stretches.reduce(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist() == [1.0, 2.0, 7.0]
