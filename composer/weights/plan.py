"""The weight plan: the origin of every parameter of a student, and the use of every tensor of its source.

It is made from names, shapes and specs alone, can be shown before anything is written, and is stored with the weights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from pydantic import Field

from blocks.part import Closed, Fresh
from composer.errors import BuildError
from composer.spec.notes import notes_on_source
from composer.spec.resolve import Resolved
from composer.weights.config import dimensions, own_parameters
from composer.weights.parameter_meaning import meanings, read_stored_heads
from composer.weights.stream import same_contents
from converters.coverage import Covered, Shaped
from converters.shard import BYTES, Shard
from converters.source import SINGLE, Source
from converters.trunk import EMBEDDING, Dtype, Sizes, Trunk

if TYPE_CHECKING:
    from composer.weights.lolcats import LolcatsValues

FRESH_FILE = "fresh.safetensors"


class Inherited(Closed):
    """A parameter whose values are from the source."""

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
    """A parameter whose values are from a file beside the source, with its name there."""

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
    def from_beside(self) -> dict[str, GivenParameter]:
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
        return sum(bytes_of(entry.shape, entry.dtype) for entry in (*self.from_beside.values(), *self.fresh.values()))


class Typed(Shaped, Protocol):
    @property
    def dtype(self) -> Dtype: ...


@dataclass(frozen=True)
class Weights:
    """The weights that a student inherits parameters from: those of a folder, or of a model in memory.

    name: in messages. config: the contents of ``config.json``. covered: the tensors by their use. tensors: their shapes and types,
    by the source's names. are_equal: whether two of the tensors, by name, hold equal values. files: the file of each tensor; empty
    if unknown. shards: the files that a build links or rewrites. notes: on the source.
    """

    name: str
    config: Mapping[str, Any]
    covered: Covered
    tensors: Mapping[str, Typed]
    are_equal: Callable[[str, str], bool]
    files: Mapping[str, str]
    shards: Mapping[str, Shard]
    notes: tuple[str, ...]


def weights_of(source: Source) -> Weights:
    """Return the weights of a folder, whose headers have been read."""
    return Weights(
        name=str(source.folder),
        config=source.config,
        covered=source.covered,
        tensors=source.tensors,
        are_equal=lambda first, second: same_contents(source.tensors[first], source.tensors[second]),
        files={name: tensor.file.name for name, tensor in source.tensors.items()},
        shards=source.shards,
        notes=source.notes,
    )


def make_plan(
    resolved: Resolved,
    trunk: Sizes,
    weights: Weights | None = None,
    *,
    dtype: Dtype | None = None,
    beside: LolcatsValues | None = None,
    before: Plan | None = None,
) -> Plan:
    """Find the origin of every parameter of a student, and the use of every tensor of its source, or the reason that it is dropped.

    A source that is itself a student keeps those parameters of its heads that the new spec has, too, in the same shape and with
    the same meaning.

    - trunk: of the source, or of a student without one. Its dtype is that of fresh parameters, unless ``dtype`` is another.
    - weights: of the source. None: there is none, and every parameter is fresh.
    - dtype: of every tensor. None: each keeps its own.
    - beside: values in files beside the source.
    - before: the plan of the model that was saved as ``weights``. Parameters keep their origins and their files.

    Raises ``BuildError``.
    """
    if weights is not None and resolved.dimensions != dimensions(trunk):
        raise BuildError(f"The spec was resolved against another model than {weights.name}. Resolve it against this one.")
    assignment = _assign(resolved, trunk, weights, dtype)
    notes = notes_on(resolved, trunk, fresh=weights is None)
    if weights is None:
        parameters = _fresh_parameters(assignment, trunk.dtype, SINGLE, None)
        return Plan(dtype=dtype or trunk.dtype, parameters=parameters, dropped={}, shards=(), notes=notes)
    shards = () if before is not None else _plan_shards(weights, assignment, beside)
    outputs = {shard.file: shard.output or "" for shard in shards}
    parameters = _inherit_parameters(weights, assignment, outputs, beside, before)
    parameters |= _fresh_parameters(assignment, trunk.dtype, FRESH_FILE, beside)
    dropped = {
        name: Dropped(file=weights.files.get(name, ""), shape=weights.tensors[name].shape, reason=reason)
        for name, reason in assignment.dropped.items()
    }
    return Plan(
        dtype=dtype or trunk.dtype,
        parameters=parameters,
        dropped=dropped if before is None else before.dropped | dropped,
        shards=shards,
        notes=(*(() if beside is None else beside.notes), *weights.notes, *notes) if before is None else before.notes,
    )


@dataclass(frozen=True)
class _Assignment:
    """The origin of every parameter, without files.

    fresh_parameters: the parameters that need no source. inherited: the source's name of each parameter from the source. dropped:
    the reason for each of the source's tensors that is not used. dtype: of all parameters; None: each keeps its own.
    """

    fresh_parameters: Mapping[str, Fresh]
    inherited: Mapping[str, str]
    dropped: Mapping[str, str]
    dtype: Dtype | None

    def dtype_of(self, name: str, stored: Dtype) -> Dtype:
        """Return the type of an inherited parameter. stored: its type in the source."""
        if self.dtype is None:
            return stored
        return dtype_of(self.fresh_parameters[name], self.dtype) if name in self.fresh_parameters else self.dtype


def _assign(resolved: Resolved, trunk: Sizes, weights: Weights | None, dtype: Dtype | None) -> _Assignment:
    if weights is None:
        assert isinstance(trunk, Trunk), "a spec describes no other trunk"
        return _Assignment(own_parameters(resolved, trunk), {}, {}, dtype)
    parameters, covered = own_parameters(resolved), weights.covered
    unfit = _unfit(resolved, parameters, weights)
    dropped = {**covered.passed_over, **unfit}
    if covered.output_copy is not None:
        if not weights.are_equal(covered.output_copy, covered.trunk[EMBEDDING]):
            raise BuildError(
                f"config.json ties the output to the embedding, but the source has a {covered.output_copy} that differs from "
                f"{covered.trunk[EMBEDDING]}. If the output is a separate matrix, set tie_word_embeddings to false there."
            )
        dropped[covered.output_copy] = "a copy of the embedding, to which the output is tied"
    heads = {name: stored for name, stored in covered.composed.items() if stored not in unfit}
    return _Assignment(parameters, {**covered.trunk, **heads}, dropped, dtype)


def _unfit(resolved: Resolved, parameters: Mapping[str, Fresh], weights: Weights) -> dict[str, str]:
    """Return the source's parameters of composed heads that have no place in this spec, by the source's names, and the reasons."""
    heads, unfit = read_stored_heads(weights.config), dict[str, str]()
    if not weights.covered.composed:
        return unfit
    ours, theirs = meanings(resolved), {} if heads is None else meanings(heads)
    for name, stored in weights.covered.composed.items():
        module, shape = name.rpartition(".")[0], weights.tensors[stored].shape
        if name not in parameters:
            unfit[stored] = "this spec has no such parameter"
        elif parameters[name].shape != shape:
            unfit[stored] = f"its shape is {list(shape)}, this spec's is {list(parameters[name].shape)}"
        elif module not in theirs:
            unfit[stored] = "the source's config.json does not describe it"
        elif reason := ours[module].difference(theirs[module]):
            unfit[stored] = reason
    return unfit


def _inherit_parameters(
    weights: Weights, assignment: _Assignment, outputs: Mapping[str, str], beside: LolcatsValues | None, before: Plan | None
) -> dict[str, Inherited | GivenParameter | FreshParameter]:
    products = {} if beside is None else beside.products
    parameters: dict[str, Inherited | GivenParameter | FreshParameter] = {}
    for name, stored in assignment.inherited.items():
        tensor, file = weights.tensors[stored], weights.files.get(stored, "")
        output = outputs.get(file, "") if before is None else file
        place: dict[str, Any] = {"output": output, "shape": tensor.shape, "dtype": assignment.dtype_of(name, tensor.dtype)}
        if before is not None and name in before.parameters:
            parameters[name] = before.parameters[name].model_copy(update=place)
        else:
            added = (products[name].down.name, products[name].up.name) if name in products else ()
            parameters[name] = Inherited(tensor=stored, file=file if before is None else "", added=added, **place)
    return parameters


def _fresh_parameters(
    assignment: _Assignment, dtype: Dtype, output: str, beside: LolcatsValues | None
) -> dict[str, Inherited | GivenParameter | FreshParameter]:
    """Return the parameters that are not inherited. dtype: of the model, unless all parameters get another."""
    values = {} if beside is None else beside.values
    parameters: dict[str, Inherited | GivenParameter | FreshParameter] = {}
    for name, fresh in assignment.fresh_parameters.items():
        if name in assignment.inherited:
            continue
        place: dict[str, Any] = {"output": output, "shape": fresh.shape, "dtype": dtype_of(fresh, assignment.dtype or dtype)}
        if (value := values.get(name)) is None:
            parameters[name] = FreshParameter(**place)
        else:
            place["dtype"] = value.dtype if assignment.dtype is None else place["dtype"]
            parameters[name] = GivenParameter(tensor=value.name, file=str(value.file), **place)
    return parameters


def dtype_of(fresh: Fresh, dtype: Dtype) -> Dtype:
    """Return the type of a head's own parameter in a model of ``dtype``."""
    return "float32" if fresh.precise and BYTES[dtype] < BYTES["float32"] else dtype


def notes_on(resolved: Resolved, trunk: Sizes, *, fresh: bool) -> tuple[str, ...]:
    """Return warnings about the student. trunk: the model around its heads. fresh: it is built from nothing."""
    from composer.spec.explain import uses_projections

    notes = []
    if resolved.direction == "bidirectional" and trunk.labels is None:
        notes.append("The spec is bidirectional, so this model cannot generate. For a classifier, add a `trunk` with `labels`.")
    if resolved.direction == "bidirectional" and not fresh:
        notes.append("Attention is bidirectional from now on; weights of a causal model were not trained for it.")
    unused = sorted(name for name, head in resolved.heads.items() if not uses_projections(head))
    if unused:
        state = "are there" if fresh else "are kept"
        heads = ", ".join(f"`{name}`" for name in unused)
        notes.append(f"q_proj and k_proj {state}, and not used by heads made of latents alone: {heads}.")
    return (*notes, *notes_on_source(resolved, trunk.length_rotations))


def _plan_shards(weights: Weights, assignment: _Assignment, beside: LolcatsValues | None) -> tuple[ShardPlan, ...]:
    names = {stored: name for name, stored in assignment.inherited.items()}
    used = [file for file, shard in weights.shards.items() if any(stored in names for stored in shard.tensors)]
    products = {} if beside is None else beside.products
    plans = []
    for file, shard in weights.shards.items():
        if file not in used:
            plans.append(ShardPlan(file=file, output=None, action="leave", reason="nothing in it is used", bytes=0))
            continue
        output = f"source-{used.index(file) + 1}-of-{len(used)}.safetensors"
        dtypes: dict[str, Dtype] = {
            stored: assignment.dtype_of(names.get(stored, stored), tensor.dtype) for stored, tensor in shard.tensors.items()
        }
        merged = sum(names.get(stored) in products for stored in shard.tensors)
        if change := _change(shard, names, weights.covered, dtypes, merged):
            size = sum(bytes_of(tensor.shape, dtypes[stored]) for stored, tensor in shard.tensors.items() if stored in names)
            plans.append(ShardPlan(file=file, output=output, action="rewrite", reason=change, bytes=size))
        else:
            plans.append(ShardPlan(file=file, output=output, action="link", reason="nothing in it changes", bytes=shard.bytes))
    return tuple(plans)


def _change(shard: Shard, names: Mapping[str, str], covered: Covered, dtypes: Mapping[str, Dtype], merged: int) -> str:
    """Return why a file must be rewritten; empty if it can be linked. names: the student's, by the source's. dtypes: in the
    student, by the source's names. merged: number of tensors that adapters are merged into.

    Loaders read every tensor of a file, whether the index names it or not, and complain of those without a place. Tensors that they
    ignore, and a copy of a tied matrix, do not prevent linking.
    """
    silent = {*covered.passed_over, covered.output_copy}
    dropped = sum(stored not in names and stored not in silent for stored in shard.tensors)
    renamed = sum(names.get(stored, stored) != stored for stored in shard.tensors)
    retyped = Counter(dtypes[stored] for stored, tensor in shard.tensors.items() if tensor.dtype != dtypes[stored])
    counts = [(count, f"converted to {dtype}") for dtype, count in retyped.items()]
    counts += [(renamed, "renamed"), (dropped, "dropped"), (merged, "with adapters merged in")]
    return ", ".join(f"{count} {reason}" for count, reason in counts if count)


def bytes_of(shape: tuple[int, ...], dtype: Dtype) -> int:
    """Return the bytes of a tensor."""
    return math.prod(shape) * BYTES[dtype]
