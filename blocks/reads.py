"""How the memories of a head are weighed against each other."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from blocks.flow import Partial, accumulating
from blocks.legend import Float, Tensor, torch
from blocks.part import Parameters, Part, bare, kinds


class Read(Part):
    """Takes the partials of several memories and gives the head's output."""

    role: ClassVar[str] = "read"
    takes_raw: ClassVar[bool] = False
    """Raw numerators are welcome."""
    leaves_masses_out: ClassVar[bool] = False
    """Memories are weighed by their logits alone, so it needs no mass."""

    def combine(self, parameters: Parameters, partials: Sequence[Partial]) -> Float[Tensor, "B T H D"]:
        raise NotImplementedError


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

    def combine(self, parameters: Parameters, partials: Sequence[Partial]) -> Float[Tensor, "B T H D"]:
        masses = torch.stack([_mass(partial) for partial in self._scaled(partials)], dim=-1)
        largest = masses.detach().amax(-1, keepdim=True)
        raw = (masses - largest.masked_fill(largest.isneginf(), 0.0)).exp()
        total = raw.sum(-1, keepdim=True)
        weights = raw / total.masked_fill(total == 0, 1.0)
        return _weighted(partials, weights)

    def _scaled(self, partials: Sequence[Partial]) -> Sequence[Partial]:
        maxima = [partial.maximum for partial in partials if partial.maximum is not None]
        if self.scale == "exact" or not maxima:
            return partials
        largest = torch.stack(maxima).amax(0)
        largest = largest.masked_fill(largest.isneginf(), 0.0)
        return [
            partial if partial.maximum is None or partial.lse is None else replace(partial, lse=partial.lse - largest)
            for partial in partials
        ]


class Mixture(Read):
    """Shares by weights alone: the masses are left out, and a memory that is empty keeps its weight and answers 0."""

    equation: ClassVar[str] = "o_t = Σ_m softmax_m(w_m) · o_m(t)"
    source: ClassVar[str] = (
        "LoLCATs (workshop), eq. 8: σ and 1 - σ where one of two memories has a weight; Latte, definition 3: p(l|t)"
    )
    leaves_masses_out: ClassVar[bool] = True
    kind: Literal["mixture"] = "mixture"

    def combine(self, parameters: Parameters, partials: Sequence[Partial]) -> Float[Tensor, "B T H D"]:
        output = partials[0].output
        none = output.new_zeros(output.shape[2], dtype=accumulating(output.dtype))
        logits = [none if partial.logit is None else partial.logit for partial in partials]
        weights = torch.stack(torch.broadcast_tensors(*logits), dim=-1).softmax(-1)
        return _weighted(partials, weights)


class Sum(Read):
    """Memories with a mass are merged as in ``shared``; raw numerators are added to that."""

    equation: ClassVar[str] = "o_t = shared(memories with a mass) + Σ numerators"
    source: ClassVar[str] = "Infini-attention and others, arXiv:2404.07143"
    takes_raw: ClassVar[bool] = True
    kind: Literal["sum"] = "sum"

    def combine(self, parameters: Parameters, partials: Sequence[Partial]) -> Float[Tensor, "B T H D"]:
        with_mass = [partial for partial in partials if partial.lse is not None]
        outputs = [_scaled(partial) for partial in partials if partial.lse is None]
        if with_mass:
            outputs.append(Shared().combine(parameters, with_mass))
        return torch.stack(outputs).sum(0)


def _mass(partial: Partial) -> Float[Tensor, "B T H"]:
    assert partial.lse is not None, "the graph lets no raw numerator into a shared denominator"
    if partial.logit is None:
        return partial.lse
    return partial.lse + torch.nn.functional.logsigmoid(partial.logit)


def _scaled(partial: Partial) -> Tensor:
    if partial.logit is None:
        return partial.output
    return partial.output * partial.logit.sigmoid().to(partial.output.dtype)[..., None]


def _weighted(partials: Sequence[Partial], weights: Tensor) -> Tensor:
    """The sum, in the widest dtype of the answers: a raw numerator may be too large for the model's own."""
    kind = weights.dtype
    total = sum(weights[..., index, None] * partial.output.to(kind) for index, partial in enumerate(partials))
    assert isinstance(total, torch.Tensor)
    return total.to(functools.reduce(torch.promote_types, (partial.output.dtype for partial in partials)))


ReadConfig = Annotated[Shared | Mixture | Sum, Field(discriminator="kind"), BeforeValidator(bare)]
READS = kinds(ReadConfig)
