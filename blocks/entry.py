"""Joins the tensors of a call into pairs: key, convolved key, value, and the numbers of each pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from blocks.flow import Pairs, Tokens
from blocks.legend import Float, Shape, Tensor
from blocks.operation import EVERY, Form, Kind, Operation, Port
from blocks.part import Unnamed


class Entry(Unnamed):
    """The pairs of a call, one per token, with the token's position; the position is -1 at padding."""

    role: ClassVar[str] = "entry"
    equation: ClassVar[str] = "(k_t, v_t)"
    source: ClassVar[str] = "Vaswani et al. 2017, arXiv:1706.03762"

    def operation(self, shape: Shape) -> Operation:
        return Operation(
            reads=(
                Port("key", Kind.KEY, shape.key_heads, shape.head_dim),
                Port("convolved", Kind.KEY, shape.convolved_heads, shape.head_dim, needed=False),
                Port("value", Kind.VALUE, shape.key_heads, shape.value_dim),
                Port("numbers", Kind.NUMBERS, many=True, needed=False),
            ),
            gives=(Port("pairs", Kind.PAIRS, shape.key_heads, shape.head_dim),),
            forms=(Form(EVERY, "key and value of each token", join_pairs),),
        )


def join_pairs(
    tokens: Tokens,
    key: Float[Tensor, "B T K D"],
    value: Float[Tensor, "B T K V"],
    numbers: Mapping[str, Float[Tensor, "B T n"]],
    convolved: Float[Tensor, "B T N D"] | None = None,
) -> Pairs:
    """Return the pairs of the tokens. numbers: further tensors of the pairs, by name."""
    position = tokens.position if tokens.valid is None else tokens.position.masked_fill(~tokens.valid, -1)
    return Pairs(key, convolved, value, position, numbers=numbers, tokens=tokens)
