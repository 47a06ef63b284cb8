"""The base of all feature maps: an optional learned matrix per head, and one or two sides."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from pydantic import PositiveInt, model_validator

from blocks import initialise
from blocks.calibration import Attended, divergence, fit
from blocks.flow import Pairs
from blocks.legend import Float, Shape, Tensor, torch
from blocks.operation import EVERY, Form, Kind, Operation, Port
from blocks.part import FieldError, Fresh, Parameters, Part, Per, Problem
from blocks.positions import Position
from blocks.tensors import accumulating, derives_by_hand, repeat_heads


@dataclass(frozen=True)
class UnitLength:
    """Features divided by √(‖φ‖² + epsilon). Their length is 1 if epsilon is 0."""

    epsilon: float = 0.0


Scale = Literal["plain", "logarithm"] | UnitLength
"""The form of features that a memory expects: unchanged, as logarithms, or divided by their length."""
BALANCE = "balance"
"""In the parameters of a map that is being fitted: the key for the logarithm of the factor of the other memories' mass."""
Plain = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""A function of the inputs, the matrix of each head and its bias, which returns the unscaled features."""


class FeatureMap(Part):
    """φ(x) = f(u), or f(u) ‖ f(-u) where two-sided, with u = x, xW, xW + x (skip), each plus b (bias)."""

    role: ClassVar[str] = "feature map"
    unread: ClassVar[str] = "no memory of this head sees features; remove `feature_map` (or set it to null), or add a state memory"
    positive: ClassVar[bool] = True
    """Whether features are never negative, so that queries and keys have a mass."""
    exponential: ClassVar[bool] = False
    """Whether the fast forms use the logarithms of the features."""
    even: ClassVar[bool] = False
    """Whether the largest of the F features is at least 1/F, as it is for features whose sum is 1."""
    incidental: ClassVar[frozenset[str]] = frozenset({"init"})

    linear: bool = False
    """Apply a learned matrix per head first."""
    dim: PositiveInt | None = None
    """Number of columns of the matrix. Default: the head dimension."""
    bias: bool = False
    skip: bool = False
    """Add the input to the output of the matrix."""
    two_sided: bool = False
    """Concatenate f(u) and f(-u), which doubles the number of features."""
    share: Literal["none", "qk"] = "none"
    """qk: queries and keys have the same matrix."""
    per: Per = "query_head"
    """Whether keys have one matrix per query head or per key head. Queries have one per query head unless they share the keys'
    matrix."""
    init: Literal["identity", "random"] = "identity"
    """identity: u = x at the start. W starts at zero if ``skip`` adds x already."""

    @model_validator(mode="after")
    def _matrix_options_need_a_matrix(self) -> Self:
        options = ("dim", "bias", "skip", "share", "per", "init")
        changed = [name for name in options if getattr(self, name) != FeatureMap.model_fields[name].default]
        if not self.linear and changed:
            verb, those = ("shapes", "it") if len(changed) == 1 else ("shape", "them")
            raise FieldError(
                f"{', '.join(changed)} {verb} the learned matrix, and there is none: set linear: true or leave {those} out",
                changed[0],
            )
        return self

    def misfit(self, shape: Shape) -> Problem | None:
        if not self.skip or self.dim in {None, shape.head_dim}:
            return None
        return (
            f"xW + x needs W to keep the dimension: x has {shape.head_dim} numbers and xW has {self.dim}; "
            f"set `dim: {shape.head_dim}` (or leave it out), or `skip: false`"
        ), ("dim",)

    def operation(self, shape: Shape) -> Operation:
        """Build the operation of queries for one memory. A head with several such memories has two operations for each; they
        share the map's parameters."""
        return Operation(
            reads=(Port("query", Kind.QUERY, shape.heads, shape.head_dim),),
            gives=(Port("features", Kind.FEATURES, shape.heads, shape.features),),
            forms=self.forms(self.map_queries),
        )

    def operation_of_keys(self, shape: Shape, incoming: int) -> Operation:
        """Build the operation of the pairs that enter the memory. incoming: the number of heads of their keys."""
        return Operation(
            reads=(Port("entering", Kind.PAIRS, dim=shape.head_dim, needed=False),),
            gives=(Port("keys", Kind.KEYS, self.key_heads(shape, incoming), shape.features),),
            forms=self.forms(self.map_keys),
        )

    def forms(self, run: Callable[..., Any]) -> tuple[Form, ...]:
        """Return the forms of an operation. run: its definition, which accepts ``plain``, too: a function that replaces the
        definition of the features."""
        return (Form(EVERY, "as defined", run),)

    def map_queries(
        self, parameters: Parameters, query: Float[Tensor, "B T H D"], *, scale: Scale, plain: Plain | None = None
    ) -> Float[Tensor, "B T H F"]:
        """Return the features of rotated queries. scale: the form of features that the memory expects."""
        return self.map_side(parameters, "query_", query, scale, plain)

    def map_keys(
        self, parameters: Parameters, entering: Pairs | None, *, position: Position, scale: Scale, plain: Plain | None = None
    ) -> Float[Tensor, "B E N F"] | None:
        """Return the features of the keys of pairs; None if no pair enters. position: how keys are rotated."""
        return None if entering is None else self.map_side(parameters, "key_", entering.mappable(position), scale, plain)

    def activate(self, inputs: Tensor) -> Tensor:
        """Apply f, elementwise or over the last dimension. This is the definition."""
        raise NotImplementedError

    def log_activate(self, inputs: Tensor) -> Tensor:
        """Return log f(x), for exponential maps."""
        raise NotImplementedError

    def sides(self, inputs: Tensor) -> Tensor:
        """Return f(u) ‖ f(-u)."""
        return self.activate(torch.stack((inputs, -inputs), dim=-2)).flatten(-2)

    def log_sides(self, inputs: Tensor) -> Tensor:
        """Return log f(u) ‖ log f(-u)."""
        return self.log_activate(torch.stack((inputs, -inputs), dim=-2)).flatten(-2)

    def with_dim(self, shape: Shape) -> Self:
        """Return the same map with its dimension set."""
        return self.model_copy(update={"dim": self.dim or shape.head_dim}) if self.linear else self

    def features(self, shape: Shape) -> int:
        """Return the number of features F."""
        return ((self.dim if self.linear else None) or shape.head_dim) * (2 if self.two_sided else 1)

    def key_heads(self, shape: Shape, incoming: int) -> int:
        """Return the number of heads of the keys' features, for keys with ``incoming`` heads."""
        return shape.heads if self.linear and self.per == "query_head" else incoming

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        if not self.linear:
            return {}
        key_maps = shape.heads if self.per == "query_head" else shape.key_heads
        rows = {"": key_maps} if self.share == "qk" else {"query_": shape.heads, "key_": key_maps}
        columns = self.dim or shape.head_dim
        start = initialise.constant(0.0) if self.skip else initialise.identity
        start = initialise.fan_in(shape.head_dim) if self.init == "random" else start
        fresh = {f"{side}weight": Fresh((heads, shape.head_dim, columns), start) for side, heads in rows.items()}
        if self.bias:
            zero = initialise.constant(0.0)
            fresh |= {f"{side}bias": Fresh((heads, columns), zero) for side, heads in rows.items()}
        return fresh

    def calibrate(self, parameters: Parameters, attended: Attended, shape: Shape) -> dict[str, Tensor]:
        """Fit matrices and biases to the teacher's weights by a few steps on measured queries and keys. φ(q)·φ(k) is not linear
        in the matrices, so there is no closed form. A map without a matrix, or with features that can be negative, keeps its
        initial values."""
        if not self.linear or not self.positive or attended.query is None or attended.key is None:
            return {}
        outside_logit: Tensor | None = None
        if attended.balanced is not None:
            # The mass of everything outside the memory, from the memory's share with its initial features.
            mass = self._scores(parameters, attended).masked_fill(~attended.in_memory, -math.inf).logsumexp(-1)
            least = torch.finfo(mass.dtype).eps
            outside_logit = mass - torch.logit(attended.share.to(mass.dtype), least)
            outside_logit = outside_logit.masked_fill(~attended.in_memory.any(-1), 0.0).detach()
        start = dict(parameters)
        if attended.balanced:
            start[BALANCE] = attended.weights.new_zeros(shape.heads)

        def loss(now: dict[str, Tensor]) -> Tensor:
            moved = outside_logit + now[BALANCE] if outside_logit is not None and BALANCE in now else outside_logit
            return divergence(attended, self._scores(now, attended), moved)

        calibrated_parameters = fit(start, loss)
        return {name: calibrated_parameters[name] for name in parameters}

    def _scores(self, parameters: Parameters, attended: Attended) -> Float[Tensor, "B Q H T"]:
        """Return log φ(q)·φ(k) + age · log α."""
        assert attended.query is not None, "it has been asked"
        assert attended.key is not None, "it has been asked"
        scale: Scale = "logarithm" if self.exponential else "plain"
        query, key = self.map(parameters, attended.query, attended.key, scale=scale)
        key, highest = repeat_heads(key, query.shape[2]), query.new_zeros(())
        if self.exponential:
            # The largest logarithm of each head's features is subtracted before the product and added afterwards.
            query_max, key_max = query.detach().amax(-1, keepdim=True), key.detach().amax((0, 1, 3), keepdim=True)
            query, key, highest = (query - query_max).exp(), (key - key_max).exp(), query_max + key_max
        products = torch.einsum("bqhf,bthf->bqht", query, key)
        scores = products.clamp(min=torch.finfo(products.dtype).tiny).log() + highest
        return scores if attended.decay is None else scores + attended.decay[:, None] * attended.age

    def flops(self, shape: Shape, tokens: int) -> int:
        keys = self.key_heads(shape, shape.convolved_heads or shape.key_heads)
        matrix = 2 * shape.head_dim * (self.dim or shape.head_dim) if self.linear else 0
        return (shape.heads + keys) * (matrix + self.features(shape))

    def map(
        self, parameters: Parameters, query: Float[Tensor, "B T H D"], key: Float[Tensor, "B E N D"], *, scale: Scale = "plain"
    ) -> tuple[Float[Tensor, "B T H F"], Float[Tensor, "B E M F"]]:
        """Return the features of queries and keys, in the accumulating dtype."""
        return self.map_side(parameters, "query_", query, scale), self.map_side(parameters, "key_", key, scale)

    def map_key(self, parameters: Parameters, key: Float[Tensor, "B E N D"], *, scale: Scale = "plain") -> Tensor:
        """Return the features of keys alone, B E M F, with M heads of the map's own, or N."""
        return self.map_side(parameters, "key_", key, scale)

    def map_side(self, parameters: Parameters, side: str, inputs: Tensor, scale: Scale, plain: Plain | None = None) -> Tensor:
        side = "" if self.share == "qk" else side
        logarithm = scale == "logarithm" or (isinstance(scale, UnitLength) and self.exponential)
        if plain is not None:
            features = plain(inputs, parameters[f"{side}weight"], parameters.get(f"{side}bias"))
        else:
            dtype = accumulating(inputs.dtype)
            if inputs.dtype != dtype:
                inputs = inputs.to(dtype)
            mapped = inputs
            if self.linear:
                mapped = self._matrix(inputs, parameters[f"{side}weight"], parameters.get(f"{side}bias"))
            if self.two_sided:
                activate = self.log_sides if logarithm else self.sides
            else:
                activate = self.log_activate if logarithm else self.activate
            features = activate(mapped)
        if not isinstance(scale, UnitLength):
            return features
        epsilon: float | Tensor = scale.epsilon
        if logarithm:
            # The largest feature is subtracted before the exponential; epsilon is scaled by the same factor.
            largest = features.detach().amax(-1, keepdim=True)
            features = (features - largest).exp()
            epsilon = epsilon * (-2 * largest).exp() if epsilon else 0.0
        if isinstance(epsilon, float) and epsilon and features.requires_grad and derives_by_hand(features):
            from blocks.gradients import divide_by_root

            return divide_by_root(features, 1, epsilon)
        if scale.epsilon:
            return features * (features.square().sum(-1, keepdim=True) + epsilon).rsqrt()
        length = torch.linalg.vector_norm(features, dim=-1, keepdim=True)
        return features / length.clamp(min=torch.finfo(features.dtype).tiny ** 0.5)

    def _matrix(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if weight.shape[0] > inputs.shape[2]:
            inputs = repeat_heads(inputs, weight.shape[0])
        if weight.dtype != inputs.dtype:
            weight = weight.to(inputs.dtype)
        mapped = of_each_head(inputs, weight)
        if bias is not None:
            mapped = mapped + repeat_heads(bias.to(inputs.dtype), mapped.shape[2], dim=0)
        return mapped + inputs if self.skip else mapped


def of_each_head(inputs: Float[Tensor, "B T H D"], weight: Float[Tensor, "n D F"]) -> Float[Tensor, "B T H F"]:
    """Multiply the inputs of each head by its matrix. There are n matrices: H, or fewer if consecutive heads share one."""
    batch, length, heads, size = inputs.shape
    if weight.shape[0] != heads:
        weight = repeat_heads(weight, heads, dim=0)
    if batch * length == 1:
        return inputs.view(heads, 1, size).bmm(weight).view(1, 1, heads, -1)
    return inputs.flatten(0, 1).transpose(0, 1).bmm(weight).transpose(0, 1).view(batch, length, heads, weight.shape[2])
