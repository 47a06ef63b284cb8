"""Learned pairs act as pairs before the text, and pass every pair of the text on."""

from __future__ import annotations

import math

import torch

from blocks.memories.meta import Meta
from tests.blocks.support import GROUPED, close, started
from tests.laws.cases import SMALL, build_head, complete, inputs, run

SHAPE = SMALL.shape(4)
META, WINDOW = {"kind": "meta", "size": 3}, {"kind": "window", "size": 4, "evict": "drop"}


def test_windows_see_learned_pairs_and_the_last_pairs() -> None:
    head, data = build_head(complete({"position": "none", "memory": [META, WINDOW]}), SHAPE), inputs(SHAPE, 2, 11)
    output, state = run(head, data)
    named = dict(head.named_parameters())
    for row in range(2):
        for token in range(11):
            for head_index in range(4):
                near = slice(max(0, token - 3), token + 1)
                keys, values = (
                    torch.cat((named[f"meta.{name}"][:, head_index // 2], of[row, near, head_index // 2]))
                    for name, of in (("key", data.key), ("value", data.value))
                )
                weights = (keys @ data.query[row, token, head_index] / math.sqrt(8)).softmax(0)
                close(output[row, token, head_index], weights @ values)
    assert not any(name.startswith("meta") for name in state)


def test_learned_pairs_are_not_rotated() -> None:
    """A rotated query meets keys without rotation at any distance. The head is half of a mixture with a window."""
    head, data = build_head(complete({"position": "rope", "memory": [META, WINDOW], "read": "mixture"}), SHAPE), inputs(SHAPE, 1, 7)
    window, _ = run(build_head(complete({"position": "rope", "memory": [WINDOW]}), SHAPE), data)
    actual = 2 * run(head, data)[0] - window
    named = dict(head.named_parameters())
    speed = 100.0 ** (-torch.arange(4) / 4)  # a radian at most a token, of eight coordinates
    for token in range(7):
        cosine, sine = (token * speed).cos().double(), (token * speed).sin().double()
        for head_index in range(4):
            first, second = data.query[0, token, head_index].split(4)
            rotated = torch.cat((first * cosine - second * sine, second * cosine + first * sine))
            weights = (named["meta.key"][:, head_index // 2] @ rotated / math.sqrt(8)).softmax(0)
            wanted = weights @ named["meta.value"][:, head_index // 2]
            torch.testing.assert_close(actual[0, token, head_index], wanted, rtol=0, atol=1e-6)


def test_learned_pairs_start_with_mass_and_values_of_0() -> None:
    """Learned pairs start with values of 0 and some mass, so the output of the window is scaled down at the start."""
    parameters = started(Meta(), GROUPED)
    assert parameters["key"].shape == (4, 2, 4)
    assert not parameters["value"].any()
    data = inputs(SHAPE, 2, 11)
    head, alone = (build_head(complete({"position": "none", "memory": of}), SHAPE, noise=0.0) for of in ([META, WINDOW], [WINDOW]))
    (result, _), (window, _) = run(head, data), run(alone, data)
    keys = dict(head.named_parameters())["meta.key"].repeat_interleave(2, dim=1)
    theirs = (torch.einsum("bthd,mhd->bthm", data.query, keys) / math.sqrt(8)).exp().sum(-1)
    logits = torch.einsum("bthd,bshd->bths", data.query, data.key.repeat_interleave(2, dim=2)) / math.sqrt(8)
    near = torch.ones(11, 11).tril().triu(-3)[:, None].bool()
    own = logits.exp().masked_fill(~near, 0.0).sum(-1)
    left = own / (own + theirs)
    close(result, window * left[..., None])
    assert left.max() < 0.95


def test_learned_pairs_count_as_operations_but_not_as_held_pairs() -> None:
    assert Meta().flops(GROUPED, 9) == 4 * 4 * 4 * 4
    assert Meta().pairs_held(GROUPED, 9) == 0
