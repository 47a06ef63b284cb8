"""The weight plan: the origin of every parameter of a student, and the use of every tensor of its source.

It is made from names, shapes and specs alone, can be shown before anything is written, and is stored with the weights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from blocks.part import Closed, Fresh
from composer.errors import BuildError
from composer.spec.rotations import notes_on_rotations
from composer.weights.meaning import meanings, stored_heads
from converters.canonical import EMBEDDING
from converters.coverage import Covered, Shaped
from converters.shard import BYTES, Shard
from converters.source import Source
from converters.trunk import Dtype, Sizes

if TYPE_CHECKING:
    from composer.spec.resolve import Resolved

FRESH_FILE = "fresh.safetensors"


class Inherited(Closed):
    """A parameter whose values come from the source."""

    kind: Literal["inherited"] = "inherited"
    tensor: str
    """The source's name of it."""
    file: str
    """The source's file that holds it; empty where the source was in memory."""
    output: str
    """The student's file that holds it."""
    shape: tuple[int, ...]
    dtype: Dtype
    added: tuple[str, ...] = Field(default=(), exclude_if=lambda names: not names)
    """Adapters that are merged into it, by their names in files beside the source."""


class GivenParameter(Closed):
    """A parameter whose values come from a file beside the source, with its name there."""

    kind: Literal["given"] = "given"
    tensor: str
    file: str
    output: str
    shape: tuple[int, ...]
    dtype: Dtype


class FreshParameter(Closed):
    """A parameter that is in no checkpoint; its values follow from the seed and its name."""

    kind: Literal["fresh"] = "fresh"
    output: str
    shape: tuple[int, ...]
    dtype: Dtype


class Dropped(Closed):
    """A tensor of the source that the student does not use."""

    file: str
    shape: tuple[int, ...]
    reason: str


class ShardPlan(Closed):
    """The use of one of the source's files: linked, rewritten tensor by tensor, or left out."""

    file: str
    output: str | None
    action: Literal["link", "rewrite", "leave"]
    reason: str
    bytes: int
    """Size of the student's file, without its header where it is rewritten."""


class Plan(Closed):
    """Covers both sides: every parameter of the student, by its canonical name, and every tensor of the source."""

    dtype: Dtype
    """The dtype that the model computes in, and that of fresh parameters, precise ones excepted."""
    parameters: dict[str, Annotated[Inherited | GivenParameter | FreshParameter, Field(discriminator="kind")]]
    dropped: dict[str, Dropped]
    shards: tuple[ShardPlan, ...]
    notes: tuple[str, ...] = ()

    @property
    def inherited(self) -> dict[str, Inherited]:
        return {name: entry for name, entry in self.parameters.items() if isinstance(entry, Inherited)}

    @property
    def given(self) -> dict[str, GivenParameter]:
        return {name: entry for name, entry in self.parameters.items() if isinstance(entry, GivenParameter)}

    @property
    def fresh(self) -> dict[str, FreshParameter]:
        return {name: entry for name, entry in self.parameters.items() if isinstance(entry, FreshParameter)}

    def bytes(self, action: Literal["link", "rewrite"]) -> int:
        """Bytes of the files that are linked, or rewritten."""
        return sum(shard.bytes for shard in self.shards if shard.action == action)

    @property
    def total_bytes(self) -> int:
        """Bytes of all parameters."""
        return sum(bytes_of(entry.shape, entry.dtype) for entry in self.parameters.values())

    @property
    def fresh_bytes(self) -> int:
        """Bytes of all parameters that the source does not have."""
        return sum(bytes_of(entry.shape, entry.dtype) for entry in (*self.given.values(), *self.fresh.values()))


@dataclass(frozen=True)
class Assignment:
    """Coverage both ways, before files come into it.

    inherited: the source's name of each inherited parameter. own: the parameters of the composed heads, inherited or fresh.
    dropped: for each tensor that is not used, by the source's name, the reason.
    """

    inherited: dict[str, str]
    own: dict[str, Fresh]
    dropped: dict[str, str]

    @property
    def fresh(self) -> dict[str, Fresh]:
        return {name: fresh for name, fresh in self.own.items() if name not in self.inherited}

    def dtype(self, name: str, stored: Dtype, dtype: Dtype | None) -> Dtype:
        """The type of a parameter in the student. dtype: of all parameters; None: each stays as it is stored."""
        if dtype is None:
            return stored
        return dtype_of(self.own[name], dtype) if name in self.own else dtype


def dtype_of(fresh: Fresh, dtype: Dtype) -> Dtype:
    """The type of a head's own parameter in a model of ``dtype``."""
    return "float32" if fresh.precise and BYTES[dtype] < BYTES["float32"] else dtype


def assign(
    resolved: Resolved,
    covered: Covered,
    tensors: Mapping[str, Shaped],
    same: Callable[[str, str], bool],
    heads: Resolved | None = None,
) -> Assignment:
    """Gives every parameter of the student its origin, and every tensor of the source its use or the reason it is dropped.

    A source that is itself a student keeps those parameters of its composed heads that the new spec has, too, in the same shape and
    with the same meaning. same: whether two of the source's tensors, by name, hold equal values. heads: of such a source.
    Raises ``BuildError``.
    """
    from composer.spec.parameters import fresh_parameters

    wanted = fresh_parameters(resolved)
    unfit = _unfit(resolved, wanted, covered, tensors, heads)
    kept = {name: own for name, own in covered.composed.items() if own not in unfit}
    dropped = {**covered.passed_over, **unfit}
    if covered.output_copy is not None:
        if not same(covered.output_copy, covered.trunk[EMBEDDING]):
            raise BuildError(
                f"config.json ties the output to the embedding, but the source has a {covered.output_copy} that differs from "
                f"{covered.trunk[EMBEDDING]}. If the output is a matrix of its own, set tie_word_embeddings to false there."
            )
        dropped[covered.output_copy] = "a copy of the embedding, to which the output is tied"
    return Assignment(
        inherited={**covered.trunk, **kept},
        own=wanted,
        dropped=dropped,
    )


def _unfit(
    resolved: Resolved, wanted: Mapping[str, Fresh], covered: Covered, tensors: Mapping[str, Shaped], heads: Resolved | None
) -> dict[str, str]:
    """The source's parameters of composed heads that this spec has no place for, by the source's names, and why."""
    if not covered.composed:
        return {}
    here, there = meanings(resolved), {} if heads is None else meanings(heads)
    unfit = {}
    for name, own in covered.composed.items():
        module, shape = name.rpartition(".")[0], tensors[own].shape
        if name not in wanted:
            unfit[own] = "this spec has no such parameter"
        elif wanted[name].shape != shape:
            unfit[own] = f"its shape is {list(shape)}, this spec's is {list(wanted[name].shape)}"
        elif module not in there:
            unfit[own] = "the source's config.json does not say what it means"
        elif reason := here[module].difference(there[module]):
            unfit[own] = reason
    return unfit


def make_plan(resolved: Resolved, source: Source, dtype: Dtype | None = None) -> Plan:
    """The plan for a folder. dtype: of every tensor; None keeps each tensor's own. Raises ``BuildError``."""
    from composer.weights.contents import same_contents

    assignment = assign(
        resolved,
        source.covered,
        source.tensors,
        same=lambda one, other: same_contents(source.tensors[one], source.tensors[other]),
        heads=stored_heads(source.config),
    )
    shards = _shard_plans(source, assignment, dtype)
    output = {shard.file: shard.output or "" for shard in shards}
    parameters: dict[str, Inherited | GivenParameter | FreshParameter] = {}
    for name, own in assignment.inherited.items():
        tensor = source.tensors[own]
        parameters[name] = Inherited(
            tensor=own,
            file=tensor.file.name,
            output=output[tensor.file.name],
            shape=tensor.shape,
            dtype=assignment.dtype(name, tensor.dtype, dtype),
        )
    model_dtype = dtype or source.trunk.dtype
    for name, fresh in assignment.fresh.items():
        parameters[name] = FreshParameter(output=FRESH_FILE, shape=fresh.shape, dtype=dtype_of(fresh, model_dtype))
    return Plan(
        dtype=model_dtype,
        parameters=parameters,
        dropped={
            own: Dropped(file=source.tensors[own].file.name, shape=source.tensors[own].shape, reason=reason)
            for own, reason in assignment.dropped.items()
        },
        shards=shards,
        notes=(*source.notes, *notes_on(resolved, source.trunk, fresh=False)),
    )


def notes_on(resolved: Resolved, trunk: Sizes, *, fresh: bool) -> tuple[str, ...]:
    """Return warnings about the student. trunk: the model around its heads. fresh: it is built from nothing."""
    from composer.spec.explain import uses_projections

    notes = []
    if resolved.direction == "bidirectional" and trunk.labels is None:
        notes.append("The spec is bidirectional, so this model writes no text; for a classifier, give it a `trunk` with `labels`.")
    if resolved.direction == "bidirectional" and not fresh:
        notes.append("Attention is bidirectional from now on; weights of a causal model were not trained for it.")
    unused = sorted(name for name, head in resolved.heads.items() if not uses_projections(head))
    if unused:
        kept = "are there" if fresh else "are kept"
        heads = ", ".join(f"`{name}`" for name in unused)
        notes.append(f"q_proj and k_proj {kept}, and not used by heads made of latents alone: {heads}.")
    return (*notes, *notes_on_rotations(resolved, trunk.length_rotations))


def _shard_plans(source: Source, assignment: Assignment, dtype: Dtype | None) -> tuple[ShardPlan, ...]:
    canonical = {own: name for name, own in assignment.inherited.items()}
    used = [file for file, shard in source.shards.items() if any(name in canonical for name in shard.tensors)]
    plans = []
    for file, shard in source.shards.items():
        if file not in used:
            plans.append(ShardPlan(file=file, output=None, action="leave", reason="nothing in it is used", bytes=0))
            continue
        output = f"source-{used.index(file) + 1}-of-{len(used)}.safetensors"
        kinds: dict[str, Dtype] = {
            own: assignment.dtype(canonical.get(own, own), tensor.dtype, dtype) for own, tensor in shard.tensors.items()
        }
        change = _change(shard, canonical, source.covered, kinds)
        size = sum(bytes_of(t.shape, kinds[own]) for own, t in shard.tensors.items() if own in canonical)
        plans.append(
            ShardPlan(file=file, output=output, action="rewrite", reason=change, bytes=size)
            if change
            else ShardPlan(file=file, output=output, action="link", reason="nothing in it changes", bytes=shard.bytes)
        )
    return tuple(plans)


def _change(shard: Shard, canonical: Mapping[str, str], covered: Covered, kinds: Mapping[str, Dtype]) -> str:
    """Why a file cannot stay as it is; empty where it can. kinds: the type that each tensor shall have, by the source's name.

    Loaders read every tensor of a file, whether the index names it or not, and complain of those without a place. What they
    pass over by themselves, and a copy of a tied matrix, does not stand in the way of linking.
    """
    silent = {*covered.passed_over, covered.output_copy}
    dropped = [own for own in shard.tensors if own not in canonical and own not in silent]
    renamed = [own for own in shard.tensors if canonical.get(own, own) != own]
    retyped = Counter(kinds[own] for own, tensor in shard.tensors.items() if tensor.dtype != kinds[own])
    counts = [(count, f"turned into {dtype}") for dtype, count in retyped.items()]
    counts += [(len(renamed), "renamed"), (len(dropped), "dropped")]
    return ", ".join(f"{count} {what}" for count, what in counts if count)


def bytes_of(shape: tuple[int, ...], dtype: Dtype) -> int:
    """The bytes of a tensor."""
    return math.prod(shape) * BYTES[dtype]
