"""What the tests of the blocks share: shapes, random parameters and states, and loops over heads that nothing else computes."""

from __future__ import annotations

import torch
from torch import Tensor

from blocks.flow import Tokens
from blocks.legend import Shape
from blocks.part import Part

GROUPED = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=4)
ALIKE = Shape(hidden_size=6, heads=2, key_heads=2, head_dim=4)
ONE_KEY = Shape(hidden_size=6, heads=3, key_heads=1, head_dim=4)
SHAPES = [GROUPED, ALIKE, ONE_KEY]
SHAPE_NAMES = ["grouped", "alike", "one key head"]


def random(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def started(part: Part, shape: Shape, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """The part's parameters as it starts them."""
    parameters = {name: torch.full(fresh.shape, float("nan"), dtype=dtype) for name, fresh in part.parameters(shape).items()}
    generator = torch.Generator().manual_seed(20)  # not the seed of the tests: the inputs would be the weights
    for name, fresh in part.parameters(shape).items():
        fresh.fill(parameters[name], generator)
    return parameters


def drawn(part: Part, shape: Shape, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """The part's parameters, anywhere."""
    return {name: random(*fresh.shape, dtype=dtype) for name, fresh in part.parameters(shape).items()}


def empty(part: Part, shape: Shape, batch: int, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """The part's state before the first token, as its slots say it."""
    kinds = {"pairs": dtype, "state": torch.promote_types(dtype, torch.float32), "int64": torch.int64}
    return {name: torch.full((batch, *slot.shape), slot.empty, dtype=kinds[slot.dtype]) for name, slot in part.state(shape).items()}


def counted(batch: int, length: int, start: int = 0) -> Tokens:
    """Tokens of one document a row, all of them real."""
    return Tokens(torch.arange(start, start + length).expand(batch, length))


def documents(*rows: list[int]) -> Tokens:
    """Rows of documents of these lengths, one behind the other; the first of a row continues the state."""
    position = [[place for length in row for place in range(length)] for row in rows]
    segment = [[number for number, length in enumerate(row) for _ in range(length)] for row in rows]
    return Tokens(torch.tensor(position), torch.tensor(segment))


def owner(head: int, heads: int, owners: int) -> int:
    """Which of ``owners`` a head shares: consecutive heads share one."""
    return next(one for one in range(owners) if head in range(one * heads // owners, (one + 1) * heads // owners))


def close(got: Tensor, wanted: Tensor, tolerance: float = 1e-10) -> None:
    """Equal, up to ``tolerance``, in shape and in every number; two infinities of one sign are equal, and nothing is NaN."""
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance, check_dtype=False)
