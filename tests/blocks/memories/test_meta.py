"""Learned pairs are as if they stood before the text, and every pair of the text falls through them."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from blocks.flow import Tokens
from blocks.memories.meta import Meta
from tests.blocks.support import GROUPED, close, started
from tests.laws.cases import SMALL, built, complete, inputs, run

SHAPE = SMALL.shape(4)
META, WINDOW = {"kind": "meta", "size": 3}, {"kind": "window", "size": 4, "evict": "drop"}


def test_a_window_sees_them_beside_the_last_pairs() -> None:
    head, data = built(complete({"position": "none", "memory": [META, WINDOW]}), SHAPE), inputs(SHAPE, 2, 11)
    found, state = run(head, data)
    named = dict(head.named_parameters())
    for row in range(2):
        for token in range(11):
            for one in range(4):
                near = slice(max(0, token - 3), token + 1)
                keys, values = (
                    torch.cat((named[f"meta.{name}"][:, one // 2], of[row, near, one // 2]))
                    for name, of in (("key", data.key), ("value", data.value))
                )
                weights = (keys @ data.query[row, token, one] / math.sqrt(8)).softmax(0)
                close(found[row, token, one], weights @ values)
    assert not any(name.startswith("meta") for name in state)


def test_in_rotary_positions_they_stand_at_the_first() -> None:
    """A query that is turned meets keys that are not."""
    head, data = built(complete({"position": "rope", "memory": [META | {"evict": "drop"}]}), SHAPE), inputs(SHAPE, 1, 5)
    found, _ = run(head, data)
    at_first, _ = run(head, replace(data, tokens=Tokens(torch.zeros_like(data.tokens.position))))
    close(found[:, 0], at_first[:, 0])
    assert (found[:, 4] - at_first[:, 4]).abs().max() > 1e-3


def test_they_start_with_nothing_to_say() -> None:
    parameters = started(Meta(), GROUPED)
    assert parameters["key"].shape == (4, 2, 4)
    assert not parameters["value"].any()
    assert Meta().flops(GROUPED, 9) == 4 * 4 * 4 * 4
    assert Meta().pairs_held(GROUPED, 9) == 0
