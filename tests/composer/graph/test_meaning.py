"""A compiled head equals the definition of its spec for random heads, rows of documents and calls of different lengths, on both
backends.
"""

from __future__ import annotations

import copy
import importlib
import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from blocks.flow import Tokens
from composer.graph.composition import HeadSpec
from composer.graph.program import HeadInputs
from composer.model.head import Head, PartModule
from composer.spec.dimensions import Dimensions
from tests.composer.graph.by_hand import Document
from tests.composer.graph.drawn import STACKS, meaningful
from tests.composer.graph.heads import resolved

SMALL = {
    "recurrences.additive.chunked.CHUNK": 4,
    "recurrences.by_feature.STEEPEST": -1,
    "recurrences.additive.chunked.SPAN": 8,
    "recurrences.delta.chunked.CHUNK": 4,
    "recurrences.delta.chunked.SPAN": 8,
    "softmax.windowed.BLOCK": 4,
    "softmax.dense.ROWS": 4,
    "memories.candidates.ROWS": 4,
}
ROWS = 3
SEEDS = (3, 5, 6, 7, 8, 9, 10, 12, 15, 16, 17, 18, 19, 23, 27, 28, 29, 32, 34, 36, 37, 42, 43, 46, 50, 56, 58, 59)
"""Of the first 63 seeds, which draw three heads for each stack, few that draw every stack and every value that the 63 draw."""


class Rows:
    """Random rows of documents, the expected output of each token, and calls that contain pieces of them."""

    def __init__(self, draw: random.Random, head: HeadSpec, size: Dimensions, module: Head) -> None:
        self.draw, self.lengths = draw, [[draw.randint(1, 12) for _ in range(draw.choice([1, 1, 3]))] for _ in range(ROWS)]
        longest = max(map(sum, self.lengths))
        widths = [(6,), (size.heads, 4), (size.key_heads, 4), (size.key_heads, 4)]
        self.inputs = [torch.randn(ROWS, longest, *width, dtype=torch.float64) for width in widths]
        parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
        self.wanted = []
        for row, lengths in enumerate(self.lengths):
            pieces = [states[row, : sum(lengths)].split(lengths) for states in self.inputs]
            answers = [Document(head, parameters, *tensors).outputs() for tensors in zip(*pieces, strict=True)]
            self.wanted.append(torch.cat(answers))
        self.places = [[place for length in lengths for place in range(length)] for lengths in self.lengths]

    def calls(self, most: int) -> Iterator[tuple[list[Tensor], Tokens, list[slice]]]:
        """Yield the inputs and tokens of calls of 0 to ``most`` tokens per row with padding at the end, and the indices of the
        tokens.
        """
        at = [0] * ROWS
        while any(start < len(places) for start, places in zip(at, self.places, strict=True)):
            real = [
                0 if self.draw.random() < 0.15 else min(len(places) - start, self.draw.randint((most + 1) // 2, most))
                for start, places in zip(at, self.places, strict=True)
            ]
            columns = max(1, *real) + self.draw.choice([0, 2])
            tensors = [torch.randn(ROWS, columns, *states.shape[2:], dtype=torch.float64) for states in self.inputs]
            position, segment = torch.full((ROWS, columns), 5), torch.zeros(ROWS, columns, dtype=torch.int64)
            for row, (start, count) in enumerate(zip(at, real, strict=True)):
                for states, whole in zip(tensors, self.inputs, strict=True):
                    states[row, :count] = whole[row, start : start + count]
                places = torch.tensor(self.places[row][start : start + count], dtype=torch.int64)
                position[row, :count] = places
                segment[row, :count] = (places == 0).cumsum(0)
                segment[row, count:] = (places == 0).sum()
            valid = torch.arange(columns) < torch.tensor(real)[:, None]
            yield (
                tensors,
                Tokens(position, segment, valid),
                [slice(start, start + count) for start, count in zip(at, real, strict=True)],
            )
            at = [start + count for start, count in zip(at, real, strict=True)]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_heads_match_their_definition(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    # So small that a few tokens cross every border.
    for name, size in SMALL.items():
        module, constant = name.rsplit(".", 1)
        monkeypatch.setattr(importlib.import_module(f"blocks.{module}"), constant, size)

    head, size = meaningful(draw, STACKS[seed % len(STACKS)])
    module = Head(head, size.shape(size.heads)).double()
    for part in module.modules():
        if isinstance(part, PartModule):
            part.fill(None)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
        rows = Rows(draw, head, size, module)
        for backend, most in (("reference", 6), ("torch", 1), ("torch", 6), ("torch", 99)):
            state = module.empty_state(ROWS, torch.float64, torch.device("cpu"))
            for tensors, tokens, pieces in rows.calls(most):
                output, state = module(HeadInputs(*tensors, tokens), state, backend)
                for row, piece in enumerate(pieces):
                    wanted = rows.wanted[row][piece]
                    torch.testing.assert_close(output[row, : len(wanted)], wanted, rtol=1e-9, atol=1e-9)


def test_copies_compute_with_their_parameters() -> None:
    head = resolved({"feature_map": "hedgehog", "memory": [{"kind": "window", "size": 2, "weight": "learned"}, "state"]}).heads[
        "head"
    ]
    module = Head(head, Dimensions(hidden_size=6, layers=1, heads=2, key_heads=2, head_dim=8, rope_theta=100.0).shape(2))
    for part in module.modules():
        if isinstance(part, PartModule):
            part.fill(None)
    inputs = [torch.randn(1, 7, *width) for width in ((6,), (2, 8), (2, 8), (2, 8))]

    def answer(of: Head) -> Tensor:
        start = of.empty_state(1, torch.float32, torch.device("cpu"))
        return of(HeadInputs(*inputs, Tokens(torch.arange(7)[None])), start, "torch")[0].detach()

    before, twin = answer(module), copy.deepcopy(module)
    assert torch.equal(answer(twin), before)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(torch.randn_like(parameter))
    assert not torch.allclose(answer(twin), before)
    assert torch.equal(answer(module), before)
