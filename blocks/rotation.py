"""The rotation of the model around a head, as its own code computes it: ``position: rope`` where no ``theta`` is said.

No spec writes this part: it stands in the place of a ``rope`` once a head is in a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from blocks.legend import Float, Int, Tensor, torch
from blocks.part import Unnamed
from blocks.positions import Position

if TYPE_CHECKING:
    from blocks.flow import Tokens


class Turning(Protocol):
    """How a model turns queries and keys. Layers with one and the same turn alike.

    by_call: its tables depend on all positions of a call.
    """

    by_call: bool

    def tables(self, position: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine at positions B T, in the dtype of ``like``."""
        ...

    def apply(self, states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """The states B T H D, turned."""
        ...


class HostRotation(Unnamed, Position):
    """A rotation of any kind: scaled, of a part of the coordinates, of neighbours or of halves."""

    equation: ClassVar[str] = "R_t q, R_s k"
    source: ClassVar[str] = "the model's own code"
    turning: Any
    """A ``Turning``."""

    @property
    def is_of_model(self) -> bool:
        return True

    @property
    def by_call(self) -> bool:
        return self.turning.by_call

    @property
    def base(self) -> tuple[Any, ...]:
        return (self.turning,)

    @property
    def description(self) -> str:
        return "the model's own rotation"

    def rotate(
        self, states: Float[Tensor, "B T H D"], position: Int[Tensor, "B T"] | Int[Tensor, "B T H"]
    ) -> Float[Tensor, "B T H D"]:
        """``states`` as they stand at these positions."""
        flat, table = self._flat(states, position)
        return self.turning.apply(flat, *table).view(states.shape)

    def turned_back(
        self, states: Float[Tensor, "B T H D"], position: Int[Tensor, "B T"] | Int[Tensor, "B T H"]
    ) -> Float[Tensor, "B T H D"]:
        """Tables are rounded, and some models scale them, so that a turn forth and back is not 1: the way back divides by what it
        is."""
        wide = torch.promote_types(states.dtype, torch.float32)
        flat, table = self._flat(states, position)
        flat, (cosine, sine), turn = flat.to(wide), (tensor.to(wide) for tensor in table), self.turning.apply
        forth_and_back = turn(turn(torch.ones_like(flat[:, :, :1]), cosine, sine), cosine, -sine)
        return (turn(flat, cosine, -sine) / forth_and_back).to(states.dtype).view(states.shape)

    def turn(self, states: Float[Tensor, "B T H D"], tokens: Tokens) -> Float[Tensor, "B T H D"]:
        """The same at the tokens of a call; its tables are computed once a call, for all layers that turn alike."""
        return self.turning.apply(states, *self._tables(states, tokens))

    def _tables(self, states: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        key = (self.turning, states.dtype)
        if key in tokens.tables:
            return tokens.tables[key]
        if self.by_call and tokens.call is not None:
            call, columns = tokens.call
            cosine, sine = self._tables(states, call)
            tokens.tables[key] = cosine[:, columns], sine[:, columns]
        else:
            tokens.tables[key] = self.turning.tables(tokens.position, states)
        return tokens.tables[key]

    def _flat(self, states: Tensor, position: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """With heads that have positions of their own as tokens."""
        flat = states if position.dim() == 2 else states.flatten(1, 2).unsqueeze(2)
        return flat, self.turning.tables(position.flatten(1), states)
