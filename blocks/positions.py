"""Position embeddings: how queries and keys are rotated before their product."""

from __future__ import annotations

import functools
import math
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

from pydantic import PositiveFloat, PositiveInt

from blocks.flow import Tokens
from blocks.legend import Float, Int, Shape, Tensor, torch
from blocks.part import Closed, Part, Problem, Unnamed
from blocks.registry import Role
from blocks.tensors import has_numbers


class Rotary(Protocol):
    """The rotary embedding of a model. Layers with the same object rotate alike.

    by_call: its tables depend on all positions of a call.
    """

    by_call: bool

    def tables(self, position: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine at positions B T, or 3 B T, in the dtype of ``like``."""
        ...

    def apply(self, states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Return the states B T H D, rotated."""
        ...


class Llama3Scaling(Closed):
    """Llama 3's stretching of the slow frequencies (Grattafiori et al. 2024, as in its released code)."""

    kind: Literal["llama3"] = "llama3"
    factor: PositiveFloat
    low_frequency_factor: PositiveFloat
    high_frequency_factor: PositiveFloat
    original_length: PositiveInt
    """Positions of the training before the stretch."""


class Position(Part):
    """Rotates queries and keys by their positions."""

    role: ClassVar[str] = "position"

    @property
    def by_call(self) -> bool:
        """Whether its angles depend on all positions of a call."""
        return False

    @property
    def is_of_model(self) -> bool:
        """Whether it is the rotation of the model around the head, by that model's own code."""
        return False

    @property
    def follows_source(self) -> bool:
        """Whether the source model's own rotation is applied."""
        return False

    def on(self, theta: float | None, scaling: Llama3Scaling | None) -> Self:
        """Return the same position with the source model's values in place of fields that are left out. theta None: the model has
        another kind of rotation."""
        return self

    def within(self, rotary: Rotary | None) -> Position:
        """Return the same position in a layer with this rotary embedding; None: the layer has none."""
        return self

    @property
    def base(self) -> tuple[object, ...]:
        """The identity of the rotation: two positions with the same base rotate alike, and one with an empty base does not
        rotate."""
        return ()

    @property
    def description(self) -> str:
        """The rotation in words; empty if there is none."""
        return ""

    def rotate(
        self, states: Float[Tensor, "B T H D"], position: Int[Tensor, "B T"] | Int[Tensor, "B T H"]
    ) -> Float[Tensor, "B T H D"]:
        """Return ``states`` rotated to these positions."""
        raise NotImplementedError

    def rotate_back(
        self, states: Float[Tensor, "B T H D"], position: Int[Tensor, "B T"] | Int[Tensor, "B T H"]
    ) -> Float[Tensor, "B T H D"]:
        """Undo ``rotate``."""
        return states

    def rotate_tokens(self, states: Float[Tensor, "B T H D"], tokens: Tokens) -> Float[Tensor, "B T H D"]:
        """Return ``states`` rotated to the positions of a call's tokens."""
        return self.rotate(states, tokens.position)


class NoPosition(Position):
    """Queries and keys meet as they are."""

    equation: ClassVar[str] = "q_t, k_s"
    source: ClassVar[str] = "Haviv et al. 2022, arXiv:2203.16634"
    idle: ClassVar[bool] = True
    kind: Literal["none"] = "none"

    def rotate(self, states: Tensor, position: Tensor) -> Tensor:
        """``states`` themselves."""
        return states


class Rope(Position):
    """Rotary positions in the two-halves layout of Llama checkpoints."""

    equation: ClassVar[str] = "(x_i + j·x_{i+D/2}) · exp(j · t · θ^(-2i/D)), i < D/2"
    source: ClassVar[str] = "Su et al. 2021, arXiv:2104.09864, eq. 34"
    kind: Literal["rope"] = "rope"
    theta: PositiveFloat | None = None
    """Base of the frequencies. Left out: the source model's own theta and scaling."""
    scaling: Llama3Scaling | None = None

    @property
    def follows_source(self) -> bool:
        return self.theta is None

    def misfit(self, shape: Shape) -> Problem | None:
        if shape.head_dim % 2 == 0:
            return None
        return f"rope rotates pairs of coordinates, and the head dimension {shape.head_dim} is odd; set `position: none`", ()

    def on(self, theta: float | None, scaling: Llama3Scaling | None) -> Self:
        return (
            self
            if self.theta is not None or theta is None
            else self.model_copy(update={"theta": theta, "scaling": self.scaling or scaling})
        )

    def within(self, rotary: Rotary | None) -> Position:
        if self.theta is not None:
            return self

        return NoPosition() if rotary is None else HostRotation(rotary=rotary)

    @property
    def description(self) -> str:
        if self.theta is None:
            return "rope"
        return f"rope (theta {self.theta:,.10g}{'' if self.scaling is None else ', scaled'})"

    def frequencies(self, head_dim: int) -> Float[Tensor, " half"]:
        """Radians per position, in float32 as the checkpoints' own code computes them."""
        if self.theta is None:
            raise ValueError("theta is not resolved: resolve the spec against a source, or set position.theta")
        inverse = 1.0 / self.theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
        if self.scaling is None:
            return inverse
        s = self.scaling
        wavelength = 2 * math.pi / inverse
        blend = (s.original_length / wavelength - s.low_frequency_factor) / (s.high_frequency_factor - s.low_frequency_factor)
        blended = (1 - blend) * inverse / s.factor + blend * inverse
        slow = wavelength > s.original_length / s.low_frequency_factor
        fast = wavelength < s.original_length / s.high_frequency_factor
        return torch.where(slow, inverse / s.factor, torch.where(fast, inverse, blended))

    def rotate(
        self, states: Float[Tensor, "B T H D"], position: Int[Tensor, "B T"] | Int[Tensor, "B T H"]
    ) -> Float[Tensor, "B T H D"]:
        """Rotate each pair of coordinates by the angle of its position. Angles are float32, as in the source's own code."""
        return _rotate(states, *self._table(position, states))

    def rotate_back(
        self, states: Float[Tensor, "B T H D"], position: Int[Tensor, "B T"] | Int[Tensor, "B T H"]
    ) -> Float[Tensor, "B T H D"]:
        """Undo ``rotate``. Cosines and sines are rounded, so their squares do not sum to 1: the result is divided by their sum."""
        wide = torch.promote_types(states.dtype, torch.float32)
        cosine, sine = (table.to(wide) for table in self._table(position, states))
        return (_rotate(states.to(wide), cosine, -sine) / (cosine.square() + sine.square())).to(states.dtype)

    def rotate_tokens(self, states: Float[Tensor, "B T H D"], tokens: Tokens) -> Float[Tensor, "B T H D"]:
        """Rotate to the positions of the tokens of a call. The tables are computed once per call, for all layers."""
        key = ("rope", self.theta, self.scaling, states.shape[-1], states.dtype)
        if key not in tokens.tables:
            tokens.tables[key] = self._table(tokens.position, states)
        return _rotate(states, *tokens.tables[key])

    def _table(self, position: Int[Tensor, "B T"] | Int[Tensor, "B T H"], like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the angles, once for each half of the coordinates; the first half's sine is negative."""
        position = position if position.dim() == 3 else position[..., None]
        compute = _frequencies_once if has_numbers(like) else _frequencies
        angles = position[..., None].float() * compute(self, like.shape[-1], like.device)  # pyright: ignore[reportArgumentType] - frozen
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)

    @property
    def base(self) -> tuple[object, ...]:
        s = self.scaling
        scaled = () if s is None else (s.factor, s.low_frequency_factor, s.high_frequency_factor, float(s.original_length))
        return (self.theta or 0.0, *scaled)

    def flops(self, shape: Shape, tokens: int) -> int:
        return 3 * (shape.heads + shape.key_heads) * shape.head_dim


def _frequencies(rope: Rope, head_dim: int, device: torch.device) -> Float[Tensor, " head_dim"]:
    """Return one a coordinate; those of the first half are negative."""
    half = rope.frequencies(head_dim)
    return torch.cat((-half, half)).to(device)


@functools.lru_cache
def _frequencies_once(rope: Rope, head_dim: int, device: torch.device) -> Tensor:
    # The first caller may be in inference mode, or inside a context with another default device.
    with torch.inference_mode(mode=False), torch.device("cpu"):
        return _frequencies(rope, head_dim, device)


def _rotate(states: Float[Tensor, "B T H D"], cosine: Tensor, sine: Tensor) -> Float[Tensor, "B T H D"]:
    # Rounded as transformers rounds, so each product by itself.
    return (states * cosine).add_(states.roll(states.shape[-1] // 2, dims=-1).mul_(sine))


class HostRotation(Unnamed, Position):
    """The rotation of the model around a head, by its own code: scaled, of a part of the coordinates, of neighbours or of halves.

    No spec has this part. It replaces a ``rope`` without ``theta`` when a head is put into a model.
    """

    equation: ClassVar[str] = "R_t q, R_s k"
    source: ClassVar[str] = "the model's own code"
    rotary: Any
    """A ``Rotary``."""

    @property
    def is_of_model(self) -> bool:
        return True

    @property
    def by_call(self) -> bool:
        return self.rotary.by_call

    @property
    def base(self) -> tuple[Any, ...]:
        return (self.rotary,)

    @property
    def description(self) -> str:
        return "the model's own rotation"

    def rotate(
        self, states: Float[Tensor, "B T H D"], position: Int[Tensor, "B T"] | Int[Tensor, "B T H"]
    ) -> Float[Tensor, "B T H D"]:
        """Return ``states`` rotated to these positions."""
        flat, table = self._flat(states, position)
        return self.rotary.apply(flat, *table).view(states.shape)

    def rotate_back(
        self, states: Float[Tensor, "B T H D"], position: Int[Tensor, "B T"] | Int[Tensor, "B T H"]
    ) -> Float[Tensor, "B T H D"]:
        """Undo ``rotate``. Tables are rounded, and some models scale them, so that a rotation forth and back is not 1: the result
        is divided by its value."""
        wide = torch.promote_types(states.dtype, torch.float32)
        flat, table = self._flat(states, position)
        flat, (cosine, sine), rotate = flat.to(wide), (tensor.to(wide) for tensor in table), self.rotary.apply
        forth_and_back = rotate(rotate(torch.ones_like(flat[:, :, :1]), cosine, sine), cosine, -sine)
        return (rotate(flat, cosine, -sine) / forth_and_back).to(states.dtype).view(states.shape)

    def rotate_tokens(self, states: Float[Tensor, "B T H D"], tokens: Tokens) -> Float[Tensor, "B T H D"]:
        """Rotate to the positions of the tokens of a call. The tables are computed once per call, for all layers that rotate
        alike."""
        return self.rotary.apply(states, *self._tables(states, tokens))

    def _tables(self, states: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        key = (self.rotary, states.dtype)
        if key in tokens.tables:
            return tokens.tables[key]
        if self.by_call and tokens.call is not None:
            call, columns = tokens.call
            cosine, sine = self._tables(states, call)
            tokens.tables[key] = cosine[:, columns], sine[:, columns]
        else:
            places = tokens.coordinates
            position = tokens.position if places is None else places.permute(2, 0, 1)
            tokens.tables[key] = self.rotary.tables(position, states)
        return tokens.tables[key]

    def _flat(self, states: Tensor, position: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the states with heads as tokens if each head has its own positions."""
        flat = states if position.dim() == 2 else states.flatten(1, 2).unsqueeze(2)
        return flat, self.rotary.tables(position.flatten(1), states)


POSITIONS = Role("position", Position, NoPosition, Rope)
PositionConfig = Annotated[Position, POSITIONS]
