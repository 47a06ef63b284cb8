"""The origin of a model in memory: the record of its build, and the values that it began with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.errors import ComposerError
from composer.spec.outside import stored_parts
from composer.spec.parameters import fresh_parameters
from composer.spec.resolve import Resolved
from composer.weights.config import recorded_trunk
from composer.weights.plan import Assignment, Dropped, FreshParameter, GivenParameter, Inherited, Plan, dtype_of, notes_on
from composer.weights.record import Record, StoredSource, record_of, stored_source, versions
from composer.weights.sources import describe_model
from composer.weights.stream import filled
from composer.weights.untrained import untrained
from converters.source import Source
from converters.trunk import Sizes, Trunk, dtype_name

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from composer.model.classes import Composed

IN_MEMORY = "(a model in memory)"
"""What a record has as the source's folder, for a source that was in memory."""


@dataclass(frozen=True)
class Origin:
    """The state of a model when it was loaded or built in this process.

    record: of the folder that the model was loaded from; for a model built in memory, the record that a build would have written.
    folder: the folder with its values, inherited ones under the source's names; None where no folder has them. sha256: of the
    record's file; None for a model built in memory.
    """

    record: Record
    folder: Path | None
    sha256: str | None


def origin_of(
    resolved: Resolved,
    spec_document: Mapping[str, Any],
    plan: Plan,
    trunk: Sizes,
    source: StoredSource | None,
    seed: int,
    raw: tuple[str, ...],
    folder: Path | None = None,
) -> Origin:
    """The origin of a model that was built in memory. raw: its untrained parameters."""
    record = Record(
        spec=dict(spec_document),
        resolved=resolved,
        spec_hash=resolved.hash,
        source=source,
        seed=seed,
        trunk=asdict(trunk),
        plan=plan,
        files={},
        untrained=raw,
        parts=stored_parts(resolved),
        versions=versions(),
    )
    return Origin(record, folder, None)


def origin_in_memory(
    student: Composed,
    resolved: Resolved,
    spec_document: Mapping[str, Any],
    assignment: Assignment,
    model: PreTrainedModel,
    opened: Source | None,
    seed: int,
) -> Origin:
    """The origin of a student of ``model``, which is in memory. opened: the folder that ``model`` has just been read from."""
    from composer.weights.from_model import trunk_of

    trunk = trunk_of(student)
    plan = _plan(resolved, assignment, student, opened, trunk)
    if opened is not None:
        known = record_of(opened)
        return origin_of(
            resolved, spec_document, plan, trunk, stored_source(opened, known), seed, untrained(opened, known, plan), opened.folder
        )
    before: Origin | None = getattr(model, "_origin", None)
    tensors = model.state_dict()
    raw: tuple[str, ...] = ()
    if before is not None:
        raw = tuple(_still_raw(before, (name for name in before.record.untrained if name in assignment.inherited), tensors))
    return origin_of(resolved, spec_document, plan, trunk, _source_of(model), seed, (*plan.fresh, *raw))


def values_at_first(record: Record) -> Callable[[str], torch.Tensor | None]:
    """The first values of a fresh parameter, by its name: they follow from the seed. None for any other parameter."""
    from composer.weights.fresh import parameters

    trunk = recorded_trunk(record.trunk)
    own = parameters(record.resolved, trunk) if isinstance(trunk, Trunk) else fresh_parameters(record.resolved)
    fresh = record.plan.fresh
    return lambda name: filled(name, own[name], fresh[name].dtype, record.seed) if name in fresh and name in own else None


def _still_raw(before: Origin, names: Iterable[str], tensors: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """The named parameters that still have their initial values, or whose initial values are not known."""
    import torch

    at_first = values_at_first(before.record)
    for name in names:
        value = at_first(name)
        if value is None or torch.equal(value.to(tensors[name].dtype), tensors[name].detach().cpu()):
            yield name


def _plan(resolved: Resolved, assignment: Assignment, student: Composed, opened: Source | None, trunk: Sizes) -> Plan:
    tensors = student.state_dict()
    files = {} if opened is None else {name: tensor.file.name for name, tensor in opened.tensors.items()}

    def facts(name: str) -> dict[str, Any]:
        return {"output": "", "shape": tuple(tensors[name].shape), "dtype": dtype_name(tensors[name].dtype)}

    parameters: dict[str, Inherited | GivenParameter | FreshParameter] = {
        name: Inherited(tensor=own, file=files.get(own, ""), **facts(name)) for name, own in assignment.inherited.items()
    }
    for name, fresh in assignment.fresh.items():
        parameters[name] = FreshParameter(output="", shape=fresh.shape, dtype=dtype_of(fresh, trunk.dtype))
    dropped = {own: Dropped(file=files.get(own, ""), shape=(), reason=reason) for own, reason in assignment.dropped.items()}
    notes = notes_on(resolved, trunk, fresh=False)
    return Plan(dtype=trunk.dtype, parameters=parameters, dropped=dropped, shards=(), notes=notes)


def _source_of(model: PreTrainedModel) -> StoredSource:
    """The source in a record, as far as the model knows where it was loaded from."""
    named, config = str(model.name_or_path or ""), model.config
    folder = Path(named).expanduser()
    here = bool(named) and (folder / "config.json").is_file()
    try:
        config_sha256 = describe_model(folder).config_sha256 if here else ""
    except ComposerError:
        here, config_sha256 = False, ""
    return StoredSource(
        family=str(config.model_type),
        folder=str(folder.resolve()) if here else IN_MEMORY,
        repo_id=named if not here and named.count("/") == 1 and not folder.is_absolute() else None,
        revision=None,
        commit=getattr(config, "_commit_hash", None),
        config_sha256=config_sha256,
        spec_hash=getattr(config, "spec_hash", None),
    )
