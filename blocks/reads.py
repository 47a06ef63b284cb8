"""How the memories of a head are weighed against each other."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from blocks.flow import Partial
from blocks.legend import Float, Shape, Tensor, torch
from blocks.operation import EVERY, Call, Form, Kind, Operation, Port, State
from blocks.part import Parameters, Part, Problem, Unnamed
from blocks.registry import Role
from blocks.tensors import accumulating


class TakesPartials(Part):
    """The requirements of a read on the memories whose partials it combines."""

    leaves_masses_out: ClassVar[bool] = False
    """Memories are weighed by their logits alone, so it needs no mass."""

    @property
    def asks_maximum(self) -> bool:
        """True if the read needs the largest logits of exact memories."""
        return False


class Read(TakesPartials):
    """Combines the partials of several memories into the head's output."""

    role: ClassVar[str] = "read"
    takes_raw: ClassVar[bool] = False
    """Raw numerators are welcome."""
    is_mean: ClassVar[bool] = True
    """Whether the factors of outputs with a mass add up to 1."""

    def operation(self, shape: Shape) -> Operation:
        heads, size = shape.heads, shape.value_dim
        weight = Port("weight", Kind.WEIGHT, heads, 1, many=True, needed=False)
        return Operation(
            reads=(Port("partial", Kind.PARTIAL, heads, size, many=True), weight),
            gives=(Port("output", Kind.OUTPUT, heads, size),),
            forms=(Form(EVERY, "as defined", self._run),),
        )

    def _run(
        self, parameters: Parameters, call: Call, *, partial: Mapping[str, Partial], weight: Mapping[str, Tensor]
    ) -> tuple[tuple[Tensor], State]:
        """Both by the memories' names."""
        weighed = [
            Partial(item.output, item.lse, weight[name], item.maximum) if name in weight else item for name, item in partial.items()
        ]
        return (self.combine(parameters, weighed),), {}

    def combine(self, parameters: Parameters, partials: Sequence[Partial]) -> Float[Tensor, "B T H V"]:
        raise NotImplementedError

    def problem_over(self, exact: Sequence[bool]) -> Problem | None:
        """What is wrong with it over memories of which these are exact; None where nothing is."""
        return None

    def over(self, masses: Sequence[bool]) -> Read:
        """Return the plainest read that does the same over memories of which these have a mass."""
        return self


class Alone(Unnamed, Read):
    """The output of the only memory, as it is."""

    equation: ClassVar[str] = "o_t = o_1(t)"
    source: ClassVar[str] = "the head has one memory"
    leaves_masses_out: ClassVar[bool] = True

    def combine(self, parameters: Parameters, partials: Sequence[Partial]) -> Float[Tensor, "B T H V"]:
        (only,) = partials
        return only.output


class Shared(Read):
    """One denominator over all memories; a memory's weight σ multiplies its mass.

    exact: the masses as they are. row_max, as in LoLCATs' published code: exp(q·k/√D) of the exact memories is divided by its
    largest value at the token, over all of them, and the linear term is not: another function, not another way to compute it.
    """

    equation: ClassVar[str] = "o_t = Σ_m softmax_m(lse_m(t) + log σ(w_m)) · o_m(t)"
    source: ClassVar[str] = "LoLCATs as in its code and in LoLA, eq. 13"
    incidental: ClassVar[frozenset[str]] = frozenset({"scale"})
    kind: Literal["shared"] = "shared"
    scale: Literal["exact", "row_max"] = "exact"
    """exact: the textbook's masses; row_max: the logits of exact memories minus their row maximum, the linear term as it is."""

    def combine(self, parameters: Parameters, partials: Sequence[Partial]) -> Float[Tensor, "B T H V"]:
        masses = [_mass(partial) for partial in (partials if self.scale == "exact" else self._scale(partials))]
        # Where no memory has a mass, all outputs are 0, and any weights do.
        least = torch.finfo(masses[0].dtype).min / 4
        if len(masses) == 2:
            first, second = masses
            return _between(partials, first - second.clamp(min=least))
        return _sum_weighted(partials, torch.stack(masses, dim=-1).clamp(min=least).softmax(-1))

    @property
    def asks_maximum(self) -> bool:
        return self.scale == "row_max"

    def problem_over(self, exact: Sequence[bool]) -> Problem | None:
        if self.scale == "exact" or len(set(exact)) > 1:
            return None
        return "`scale: row_max` rescales exact memories against others; this head has not both: remove it", ("scale",)

    def _scale(self, partials: Sequence[Partial]) -> Sequence[Partial]:
        maxima = [partial.maximum for partial in partials if partial.maximum is not None]
        if not maxima:
            return partials
        largest = torch.stack(maxima).amax(0)
        largest = largest.masked_fill(largest.isneginf(), 0.0)
        return [
            partial if partial.maximum is None or partial.lse is None else replace(partial, lse=partial.lse - largest)
            for partial in partials
        ]


class Mixture(Read):
    """Shares by weights alone: the masses are left out, and a memory that is empty keeps its weight, and its output is 0."""

    equation: ClassVar[str] = "o_t = Σ_m softmax_m(w_m) · o_m(t)"
    source: ClassVar[str] = (
        "LoLCATs (workshop), eq. 8: σ and 1 - σ where one of two memories has a weight; Munkhdalai et al. 2024, arXiv:2404.07143 "
        "(Infini-attention), likewise; Latte, definition 3: p(l|t)"
    )
    leaves_masses_out: ClassVar[bool] = True
    kind: Literal["mixture"] = "mixture"

    def combine(self, parameters: Parameters, partials: Sequence[Partial]) -> Float[Tensor, "B T H V"]:
        output = partials[0].output
        none = output.new_zeros(output.shape[2], dtype=accumulating(output.dtype))
        logits = [none if partial.logit is None else partial.logit for partial in partials]
        if len(logits) == 2:
            return _between(partials, logits[0] - logits[1])
        weights = torch.stack(torch.broadcast_tensors(*logits), dim=-1).softmax(-1)
        return _sum_weighted(partials, weights)


_SHARED = Shared()
"""Made once: a compiler does not look into how a schema is made."""


class Sum(Read):
    """Memories with a mass are merged as in ``shared``; raw numerators are added to that."""

    equation: ClassVar[str] = "o_t = shared(memories with a mass) + Σ numerators"
    source: ClassVar[str] = "this project: outputs that nothing divides have no mass to share a denominator by"
    takes_raw: ClassVar[bool] = True
    kind: Literal["sum"] = "sum"

    def over(self, masses: Sequence[bool]) -> Read:
        return Shared() if all(masses) else self

    def combine(self, parameters: Parameters, partials: Sequence[Partial]) -> Float[Tensor, "B T H V"]:
        with_mass = [partial for partial in partials if partial.lse is not None]
        outputs = [_scale(partial) for partial in partials if partial.lse is None]
        if with_mass:
            outputs.append(_SHARED.combine(parameters, with_mass))
        return torch.stack(outputs).sum(0)


class Gated(Read):
    """The sum of all outputs, each times its own weight, or as it is if it has none. Masses are left out."""

    equation: ClassVar[str] = "o_t = Σ_m σ(w_m) · o_m(t)"
    source: ClassVar[str] = "Yuan et al. 2025, arXiv:2502.11089 (NSA), eq. 5"
    leaves_masses_out: ClassVar[bool] = True
    is_mean: ClassVar[bool] = False
    kind: Literal["gated"] = "gated"

    def combine(self, parameters: Parameters, partials: Sequence[Partial]) -> Float[Tensor, "B T H V"]:
        output = partials[0].output
        fully = output.new_full(output.shape[2:3], math.inf, dtype=accumulating(output.dtype))
        logits = [fully if partial.logit is None else partial.logit for partial in partials]
        return _sum_weighted(partials, torch.stack(torch.broadcast_tensors(*logits), dim=-1).sigmoid())


def _mass(partial: Partial) -> Float[Tensor, "B T H"]:
    assert partial.lse is not None, "the graph lets no raw numerator into a shared denominator"
    if partial.logit is None:
        return partial.lse
    return partial.lse + torch.nn.functional.logsigmoid(partial.logit)


def _scale(partial: Partial) -> Tensor:
    if partial.logit is None:
        return partial.output
    return partial.output * partial.logit.sigmoid().to(partial.output.dtype)[..., None]


def _between(partials: Sequence[Partial], logit: Tensor) -> Tensor:
    """Return the mean of two outputs with the weights σ(logit) and 1 - σ(logit)."""
    first, second, dtype = partials[0].output, partials[1].output, logit.dtype
    if first.dtype == second.dtype == dtype:
        return torch.lerp(second, first, logit.sigmoid()[..., None])
    mixed = torch.lerp(second.to(dtype), first.to(dtype), logit.sigmoid()[..., None])
    return mixed if first.dtype == dtype else mixed.to(torch.promote_types(first.dtype, second.dtype))


def _sum_weighted(partials: Sequence[Partial], weights: Tensor) -> Tensor:
    """Return the sum, in the widest dtype of the outputs: a raw numerator may be too large for the model's own."""
    dtype = weights.dtype
    shares = weights[..., None].unbind(-2)
    total = shares[0] * partials[0].output.to(dtype)
    for share, partial in zip(shares[1:], partials[1:], strict=True):
        total = torch.addcmul(total, share, partial.output.to(dtype))
    return total.to(functools.reduce(torch.promote_types, {partial.output.dtype for partial in partials}))


READS = Role("read", Read, Shared, Mixture, Sum, Gated)
ReadConfig = Annotated[Read, READS]
