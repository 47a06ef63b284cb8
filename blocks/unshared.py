"""Keys and values of each query head's own, where a group of query heads shares a projection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from blocks import initialise
from blocks.legend import Float, Shape, Tensor, torch
from blocks.operation import EVERY, Call, Form, Kind, Operation, Port, State
from blocks.part import Fresh, Parameters, Part, in_order
from blocks.registry import Role
from blocks.tensors import repeat_heads

KeyOrValue = Literal["k", "v"]
NAMES: Mapping[KeyOrValue, tuple[str, Kind]] = {"k": ("key", Kind.KEY), "v": ("value", Kind.VALUE)}


class Copies(Part):
    """A copy of the shared projection for each query head, kept as its difference from the shared one, which is 0 at the start.

    So the head starts as the same function, on every model. Nothing of the trunk is copied, and the shared projection still learns,
    also by adapters. If a model norms or clips its keys, the difference is added after that. All later parts, states too, have as
    many key heads as query heads.
    """

    role: ClassVar[str] = "unshare"
    unread: ClassVar[str] = "latents have no keys; set `inputs: [v]`, or remove `unshare` (or set it to null)"
    equation: ClassVar[str] = "k_h = k_{g(h)} + x_t Δ_h, Δ_h = W_h - W_{g(h)}: C × D (v likewise)"
    source: ClassVar[str] = "Ainslie et al. 2023, arXiv:2305.13245, section 2.1, the other way round"
    kind: Literal["copies"] = "copies"
    inputs: Annotated[tuple[KeyOrValue, ...], Field(min_length=1)] = ("k", "v")
    """Which tensors are separate for each query head. The other tensors are shared and repeated for each."""

    @field_validator("inputs")
    @classmethod
    def _in_order(cls, inputs: tuple[KeyOrValue, ...]) -> tuple[KeyOrValue, ...]:
        return in_order(inputs, NAMES)

    def operation(self, shape: Shape) -> Operation:
        """shape: as the model around has it, with the key heads that are shared."""
        return Operation(
            reads=(
                Port("hidden", Kind.HIDDEN, dim=shape.hidden_size),
                *(Port(name, kind, shape.key_heads, self._size(kind, shape)) for name, kind in NAMES.values()),
            ),
            gives=tuple(
                Port(name, kind, shape.heads, self._size(kind, shape), needed=letter in self.inputs)
                for letter, (name, kind) in NAMES.items()
            ),
            forms=(Form(EVERY, "one product", self._run),),
        )

    def _run(
        self, parameters: Parameters, call: Call, *, hidden: Tensor, key: Tensor, value: Tensor
    ) -> tuple[tuple[Tensor, Tensor], State]:
        heads = call.shape.heads
        shared = {"key": repeat_heads(key, heads), "value": repeat_heads(value, heads)}
        for name in (NAMES[letter][0] for letter in self.inputs):
            shared[name] = self.add_difference(shared[name], parameters[name], hidden)
        return (shared["key"], shared["value"]), {}

    def add_difference(
        self, shared: Float[Tensor, "B T H x"], difference: Float[Tensor, "H x C"], hidden: Float[Tensor, "B T C"]
    ) -> Float[Tensor, "B T H x"]:
        """Return the keys or values of each query head: the shared ones, plus a learned difference."""
        added = torch.nn.functional.linear(hidden.to(difference.dtype), difference.flatten(0, 1))
        return shared + added.view(shared.shape).to(shared.dtype)

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        kinds = (NAMES[name] for name in self.inputs)
        return {
            name: Fresh((shape.heads, self._size(kind, shape), shape.hidden_size), initialise.constant(0.0)) for name, kind in kinds
        }

    def flops(self, shape: Shape, tokens: int) -> int:
        return 2 * shape.hidden_size * shape.heads * sum(self._size(NAMES[name][1], shape) for name in self.inputs)

    def _size(self, kind: Kind, shape: Shape) -> int:
        """Numbers of a key or of a value."""
        return shape.head_dim if kind is Kind.KEY else shape.value_dim


UNSHARES = Role("unshare", Copies, Copies)
UnshareConfig = Annotated[Copies, UNSHARES]
