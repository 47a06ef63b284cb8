"""Checks specs: every variant of a sweep, on a source, on its own trunk, or each head by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path as File
from types import MappingProxyType
from typing import cast

from blocks.part import Closed
from composer.api import SpecLike
from composer.errors import GraphError, Mistake, SpecError
from composer.graph.composition import HeadSpec
from composer.graph.flow_of_pairs import edges, memory_names
from composer.spec.document import Spec
from composer.spec.loading import locate, variants_of
from composer.spec.notes import notes_on_source
from composer.spec.overrides import Overrides
from composer.spec.problems import heads_with_paths, problems
from composer.spec.resolve import Dimensions, Resolved, resolve
from composer.spec.sweep import SEPARATOR, merged_error
from composer.weights.target import target_of
from converters.length_rotations import LengthRotation


class SpecCheck(Closed):
    """The result of checking one spec. hash: of the resolved document, where there is a source or a trunk to resolve it on. notes:
    warnings about the spec on its source."""

    spec: str
    ok: bool
    says: str
    hash: str | None
    mistakes: tuple[Mistake, ...]
    notes: tuple[str, ...] = ()


def answers_on(
    spec: SpecLike,
    size: Dimensions | None,
    overrides: Overrides = (),
    rotations: Mapping[int, LengthRotation] = MappingProxyType({}),
) -> Iterator[SpecCheck]:
    """Yield the check of a spec, or of each variant of a sweep. size: of the source; None where there is none. overrides: of each.
    rotations: the source's layers whose rotary frequencies depend on the length of the text so far."""
    named = str(spec) if isinstance(spec, str | File) else None
    try:
        vary, specs = variants_of(spec, overrides)
    except SpecError as error:
        yield _wrong(named or "the spec", error)
        return
    label = named or str(spec.name if isinstance(spec, Spec) else cast("Mapping[str, object]", spec)["name"])
    for variant, variant_spec in specs.items():
        source = label if variant is None else f"{label}{SEPARATOR}{variant}"
        try:
            target = target_of(spec, variant_spec) if size is None else None
            resolved = _resolved(variant_spec, target.size if target else size)
        except SpecError as error:
            if variant is not None and vary is not None:
                error = merged_error([(variant, error)], vary, name_variants=True)
            yield _wrong(source, error)
            continue
        says, hashed = _heads_in_words(variant_spec, resolved), resolved.hash if resolved else None
        notes = notes_on_source(resolved, target.rotations if target else rotations) if resolved else ()
        yield SpecCheck(spec=source, ok=True, says=says, hash=hashed, mistakes=(), notes=notes)


def _wrong(name: str, error: SpecError) -> SpecCheck:
    return SpecCheck(spec=name, ok=False, says="", hash=None, mistakes=error.mistakes)


def _resolved(spec: Spec, size: Dimensions | None) -> Resolved | None:
    """Return the spec on its source or its own trunk, or None where it has neither. Raises SpecError with every mistake."""
    if errors := problems(spec, size):
        raise SpecError(*(mistake for error in errors for mistake in locate(error, spec).mistakes))
    try:
        return resolve(spec, size) if size is not None or spec.trunk is not None else None
    except GraphError as error:
        raise locate(error, spec) from error


def _heads_in_words(spec: Spec, resolved: Resolved | None) -> str:
    """Return the flow of each head, also of a `head` that no layer of the source has because of the rules."""
    flows = {str(path[-1]): _flow(head) for path, head in heads_with_paths(spec)}
    absent = set(flows) - set(flows if resolved is None else resolved.heads)
    return "; ".join(f"{name}: {flow}" + " (in no layer)" * (name in absent) for name, flow in flows.items())


def _flow(head: HeadSpec) -> str:
    """Return the flow of pairs in words: down, to all memories, or along edges; memories without edges read the tokens
    themselves."""
    names = memory_names(head)
    if head.graph is None:
        return (" → " if head.flow == "cascade" else " + ").join(names)
    ends = edges(head)
    beside = [name for name in names if all(name not in edge for edge in ends)]
    return " + ".join([", ".join(" → ".join(edge) for edge in ends), *beside])
