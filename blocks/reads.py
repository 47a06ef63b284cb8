"""How the memories of a head are weighed against each other."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
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
            forms=(Form(EVERY, "as defined", self.combine),),
        )

    @property
    def combine(self) -> Callable[..., Float[Tensor, "B T H V"]]:
        """The function that combines partials. Its arguments are ``partial`` and, if it weighs memories, ``weight``: the partials
        and the logits of weights, by the names of memories. A memory without a weight may have a logit in its partial."""
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

    @property
    def combine(self) -> Callable[..., Tensor]:
        return pass_output


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

    @property
    def combine(self) -> Callable[..., Tensor]:
        return shared if self.scale == "exact" else shared_by_row_maximum

    @property
    def asks_maximum(self) -> bool:
        return self.scale == "row_max"

    def problem_over(self, exact: Sequence[bool]) -> Problem | None:
        if self.scale == "exact" or len(set(exact)) > 1:
            return None
        return "`scale: row_max` rescales exact memories against others; this head has not both: remove it", ("scale",)


class Mixture(Read):
    """Shares by weights alone: the masses are left out, and a memory that is empty keeps its weight, and its output is 0."""

    equation: ClassVar[str] = "o_t = Σ_m softmax_m(w_m) · o_m(t)"
    source: ClassVar[str] = (
        "LoLCATs (workshop), eq. 8: σ and 1 - σ where one of two memories has a weight; Munkhdalai et al. 2024, arXiv:2404.07143 "
        "(Infini-attention), likewise; Latte, definition 3: p(l|t)"
    )
    leaves_masses_out: ClassVar[bool] = True
    kind: Literal["mixture"] = "mixture"

    @property
    def combine(self) -> Callable[..., Tensor]:
        return mixture


class Sum(Read):
    """Memories with a mass are merged as in ``shared``; raw numerators are added to that."""

    equation: ClassVar[str] = "o_t = shared(memories with a mass) + Σ numerators"
    source: ClassVar[str] = "this project: outputs that nothing divides have no mass to share a denominator by"
    takes_raw: ClassVar[bool] = True
    kind: Literal["sum"] = "sum"

    def over(self, masses: Sequence[bool]) -> Read:
        return Shared() if all(masses) else self

    @property
    def combine(self) -> Callable[..., Tensor]:
        return merged


class Gated(Read):
    """The sum of all outputs, each times its own weight, or as it is if it has none. Masses are left out."""

    equation: ClassVar[str] = "o_t = Σ_m σ(w_m) · o_m(t)"
    source: ClassVar[str] = "Yuan et al. 2025, arXiv:2502.11089 (NSA), eq. 5"
    leaves_masses_out: ClassVar[bool] = True
    is_mean: ClassVar[bool] = False
    kind: Literal["gated"] = "gated"

    @property
    def combine(self) -> Callable[..., Tensor]:
        return gated


Partials = Mapping[str, Partial]
Logits = Mapping[str, Tensor]


def pass_output(partial: Partials) -> Float[Tensor, "B T H V"]:
    """Return the output of the only memory."""
    (only,) = partial.values()
    return only.output


def shared(partial: Partials, weight: Logits) -> Float[Tensor, "B T H V"]:
    """Return the mean of the outputs by masses, each times the sigmoid of its logit."""
    masses: list[Tensor] = []
    for name, memory in partial.items():
        assert memory.lse is not None, "the graph lets no raw numerator into a shared denominator"
        logit = weight.get(name, memory.logit)
        masses.append(memory.lse if logit is None else memory.lse + torch.nn.functional.logsigmoid(logit))
    # Where no memory has a mass, all outputs are 0, and any weights do.
    least = torch.finfo(masses[0].dtype).min / 4
    if len(masses) == 2:
        first, second = masses
        return _between(partial, first - second.clamp(min=least))
    return _sum_weighted(partial, torch.stack(masses, dim=-1).clamp(min=least).softmax(-1))


def shared_by_row_maximum(partial: Partials, weight: Logits) -> Float[Tensor, "B T H V"]:
    """Compute ``shared`` with the masses of exact memories divided by their largest weight at the token, over all of them."""
    exact = {name: memory for name, memory in partial.items() if memory.maximum is not None and memory.lse is not None}
    if exact:
        largest = torch.stack([memory.maximum for memory in exact.values() if memory.maximum is not None]).amax(0)
        largest = largest.masked_fill(largest.isneginf(), 0.0)
        partial = {
            name: replace(memory, lse=memory.lse - largest) if name in exact and memory.lse is not None else memory
            for name, memory in partial.items()
        }
    return shared(partial, weight)


def mixture(partial: Partials, weight: Logits) -> Float[Tensor, "B T H V"]:
    """Return the mean of the outputs by the softmax of their logits. The logit of a memory without one is 0."""
    output = next(iter(partial.values())).output
    none = output.new_zeros(output.shape[2], dtype=accumulating(output.dtype))
    logits = _logits(partial, weight, none)
    if len(logits) == 2:
        return _between(partial, logits[0] - logits[1])
    return _sum_weighted(partial, torch.stack(torch.broadcast_tensors(*logits), dim=-1).softmax(-1))


def merged(partial: Partials, weight: Logits) -> Float[Tensor, "B T H V"]:
    """Return the sum of raw numerators, each times the sigmoid of its logit, and of ``shared`` of the other outputs."""
    with_mass = {name: memory for name, memory in partial.items() if memory.lse is not None}
    outputs: list[Tensor] = []
    for name, memory in partial.items():
        if memory.lse is None:
            logit = weight.get(name, memory.logit)
            outputs.append(memory.output if logit is None else memory.output * logit.sigmoid().to(memory.output.dtype)[..., None])
    if with_mass:
        outputs.append(shared(with_mass, weight))
    return torch.stack(outputs).sum(0)


def gated(partial: Partials, weight: Logits) -> Float[Tensor, "B T H V"]:
    """Return the sum of the outputs, each times the sigmoid of its logit, if it has one."""
    output = next(iter(partial.values())).output
    fully = output.new_full(output.shape[2:3], math.inf, dtype=accumulating(output.dtype))
    logits = torch.broadcast_tensors(*_logits(partial, weight, fully))
    return _sum_weighted(partial, torch.stack(logits, dim=-1).sigmoid())


def _logits(partial: Partials, weight: Logits, default: Tensor) -> list[Tensor]:
    """Return the logit of each memory: that of its weight, or else its own."""
    logits = {name: default if memory.logit is None else memory.logit for name, memory in partial.items()}
    return [weight.get(name, logit) for name, logit in logits.items()]


def _between(partials: Partials, logit: Tensor) -> Tensor:
    """Return the mean of two outputs with the weights σ(logit) and 1 - σ(logit)."""
    (above, below), dtype = partials.values(), logit.dtype
    first, second = above.output, below.output
    if first.dtype == second.dtype == dtype:
        return torch.lerp(second, first, logit.sigmoid()[..., None])
    mixed = torch.lerp(second.to(dtype), first.to(dtype), logit.sigmoid()[..., None])
    return mixed if first.dtype == dtype else mixed.to(torch.promote_types(first.dtype, second.dtype))


def _sum_weighted(partials: Partials, weights: Tensor) -> Tensor:
    """Return the sum, in the widest dtype of the outputs: a raw numerator may be too large for the model's own."""
    outputs, dtype = [memory.output for memory in partials.values()], weights.dtype
    shares = weights[..., None].unbind(-2)
    total = shares[0] * outputs[0].to(dtype)
    for share, output in zip(shares[1:], outputs[1:], strict=True):
        total = torch.addcmul(total, share, output.to(dtype))
    return total.to(functools.reduce(torch.promote_types, {output.dtype for output in outputs}))


READS = Role("read", Read, Shared, Mixture, Sum, Gated)
ReadConfig = Annotated[Read, READS]


class Sinks(Unnamed, TakesPartials):
    """Adds the mass of a head's sink to the mass of one memory, whose output shrinks by as much."""

    role: ClassVar[str] = "sinks"
    equation: ClassVar[str] = "o_t ← o_t · σ(lse_t - s), lse_t ← log(exp(lse_t) + exp(s))"
    source: ClassVar[str] = "OpenAI 2025, gpt-oss, arXiv:2508.10925, section 2.2"

    def operation(self, shape: Shape) -> Operation:
        partial = Port("partial", Kind.PARTIAL, shape.heads, shape.value_dim)
        return Operation(
            reads=(partial, Port("sinks", Kind.SINKS, shape.heads, 1)),
            gives=(partial,),
            forms=(Form(EVERY, "added to the denominator", self._run),),
        )

    def _run(
        self, parameters: Parameters, call: Call, *, partial: Partial, sinks: Float[Tensor, " H"]
    ) -> tuple[tuple[Partial], State]:
        """Return the partial with the mass of the sink added. The output of an empty memory is 0, with the mass of the sink."""
        assert partial.lse is not None, "needs_mass was set for the memory"
        sinks = sinks.to(accumulating(sinks.dtype))
        share = torch.sigmoid(partial.lse - sinks)[..., None].to(partial.output.dtype)
        return (replace(partial, output=partial.output * share, lse=torch.logaddexp(partial.lse, sinks)),), {}
