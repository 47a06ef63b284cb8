"""Whether a spec can be used: every variant of a sweep, on a source, on its own trunk, or each head by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path as File

from blocks.part import Closed
from composer.api import SpecLike
from composer.errors import GraphError, Mistake, SpecError
from composer.graph.composition import HeadSpec
from composer.graph.flow_of_pairs import edges, memory_names
from composer.spec.document import Spec
from composer.spec.inherit import own_source
from composer.spec.loading import expand, load_spec, locate
from composer.spec.problems import heads_said, problems
from composer.spec.resolve import Dimensions, Resolved, resolve
from composer.spec.sweep import SEPARATOR, together
from composer.weights.dimensions import dimensions
from composer.weights.sources import describe_model


class SpecCheck(Closed):
    """What became of one spec. hash: of what it means on its source or trunk, where there is one."""

    spec: str
    ok: bool
    says: str
    hash: str | None
    mistakes: tuple[Mistake, ...]


def answers_on(said: SpecLike, size: Dimensions | None, overrides: Sequence[str] = ()) -> Iterator[SpecCheck]:
    """One, or of a sweep one a variant. size: of the source; None where there is none. overrides: of each."""
    name = str(said) if isinstance(said, str | File) else None
    try:
        spec = said if isinstance(said, Spec) else load_spec(said)
        document = spec.model_dump(mode="json", exclude_unset=True) if isinstance(said, Spec) else said
        if spec.vary is None:
            variants = {None: load_spec(document, overrides) if overrides else spec}
        else:
            variants = expand(document, overrides)
    except SpecError as error:
        yield _wrong(name or "the spec", error)
        return
    for variant, one in variants.items():
        label = name or spec.name
        source = label if variant is None else f"{label}{SEPARATOR}{variant}"
        try:
            resolved = _resolved(one, size or _own_size(said, one))
        except SpecError as error:
            if variant is not None and spec.vary is not None:
                error = together([(variant, error)], spec.vary, told_apart=True)
            yield _wrong(source, error)
            continue
        yield SpecCheck(spec=source, ok=True, says=_said(one), hash=resolved.hash if resolved else None, mistakes=())


def _own_size(said: SpecLike, spec: Spec) -> Dimensions | None:
    """What it was resolved for, or, of a built model, what that one has."""
    folder = own_source(said)
    return spec.dimensions if folder is None else dimensions(describe_model(folder).trunk)


def _wrong(name: str, error: SpecError) -> SpecCheck:
    return SpecCheck(spec=name, ok=False, says="", hash=None, mistakes=error.mistakes)


def _resolved(spec: Spec, size: Dimensions | None) -> Resolved | None:
    """The spec on its source or its own trunk, or None where it has neither. Raises SpecError with every mistake."""
    if found := problems(spec, size):
        raise SpecError(*(mistake for error in found for mistake in locate(error, spec).mistakes))
    try:
        return resolve(spec, size) if size is not None or spec.trunk is not None else None
    except GraphError as error:
        raise locate(error, spec) from error


def _said(spec: Spec) -> str:
    return "; ".join(f"{path[-1]}: {_flow(head)}" for path, head in heads_said(spec))


def _flow(head: HeadSpec) -> str:
    """Where pairs go: down, to all memories, or along edges; what no edge reaches sees the tokens themselves."""
    names = memory_names(head)
    if head.graph is None:
        return (" → " if head.flow == "cascade" else " + ").join(names)
    ends = edges(head)
    beside = [name for name in names if all(name not in edge for edge in ends)]
    return " + ".join([", ".join(" → ".join(edge) for edge in ends), *beside])
