"""Whether a spec can be used: every variant of a sweep, on a source, on its own trunk, or each head by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as File
from typing import cast

from blocks.part import Closed
from composer.api import SpecLike
from composer.errors import GraphError, Mistake, Path, SpecError
from composer.graph.composition import HeadSpec
from composer.graph.flow_of_pairs import edges, memory_names
from composer.spec.document import Spec, Vary
from composer.spec.layer_rules import named, unused
from composer.spec.loading import locate, variants_of
from composer.spec.resolve import Dimensions, Resolved, resolve
from composer.spec.sweep import SEPARATOR, together
from composer.weights.ground import ground_of

ANY = Dimensions(hidden_size=2048, layers=1, heads=32, key_heads=8, head_dim=64, rope_theta=1e4)
"""Stands in for a source that is not named: no rule that a head breaks here depends on these sizes."""


class SpecCheck(Closed):
    """What became of one spec. hash: of what it means on its source or trunk, where there is one."""

    spec: str
    ok: bool
    says: str
    hash: str | None
    mistakes: tuple[Mistake, ...]


def answers_on(said: SpecLike, size: Dimensions | None, overrides: Sequence[str] = ()) -> Iterator[SpecCheck]:
    """One, or of a sweep one a variant. size: of the source; None where there is none. overrides: of each."""
    named = str(said) if isinstance(said, str | File) else None
    try:
        vary, specs = _variants(said, overrides)
    except SpecError as error:
        yield _wrong(named or "the spec", error)
        return
    label = named or str(said.name if isinstance(said, Spec) else cast("Mapping[str, object]", said)["name"])
    for variant, one in specs.items():
        source = label if variant is None else f"{label}{SEPARATOR}{variant}"
        try:
            ground = ground_of(said, one) if size is None else None
            resolved = _resolved(one, ground.size if ground else size)
        except SpecError as error:
            if variant is not None and vary is not None:
                error = together([(variant, error)], vary, told_apart=True)
            yield _wrong(source, error)
            continue
        yield SpecCheck(spec=source, ok=True, says=_said(one), hash=resolved.hash if resolved else None, mistakes=())


def _variants(said: SpecLike, overrides: Sequence[str]) -> tuple[Vary | None, dict[str | None, Spec]]:
    if not isinstance(said, Spec):
        return variants_of(said, overrides)
    if said.vary is None and not overrides:
        return None, {None: said}  # as it is, with the places that it knows
    return variants_of(said.model_dump(mode="json", exclude_unset=True), overrides)


def _wrong(name: str, error: SpecError) -> SpecCheck:
    return SpecCheck(spec=name, ok=False, says="", hash=None, mistakes=error.mistakes)


def _resolved(spec: Spec, size: Dimensions | None) -> Resolved | None:
    """The spec on its source or its own trunk, or None where it has neither and each head was checked alone. Raises SpecError."""
    try:
        if size is not None or spec.trunk is not None:
            return resolve(spec, size)
        check_alone(spec)
    except GraphError as error:
        raise locate(error, spec) from error
    return None


def _heads(spec: Spec) -> Iterator[tuple[Path, HeadSpec]]:
    if spec.head is not None:
        yield ("head",), spec.head
    yield from ((("heads", name), head) for name, head in spec.heads.items())


def check_alone(spec: Spec) -> None:
    """Check each head by itself, whatever the source. Raises GraphError."""
    for path, head in _heads(spec):
        _check_head(spec, path, head)
    for name in spec.heads:
        if not any(name in named(rule.use) for rule in spec.layers):
            raise unused(spec, name, 0)


def _check_head(spec: Spec, path: Path, head: HeadSpec) -> None:
    kept = head.feature_map.dim if head.feature_map is not None and head.feature_map.skip else None
    size = ANY if kept is None else ANY.model_copy(update={"head_dim": kept})
    try:
        resolve(Spec(compose=spec.compose, name=spec.name, head=head), size)
    except GraphError as error:
        raise GraphError(str(error), (*path, *error.path[1:])) from error


def _said(spec: Spec) -> str:
    return "; ".join(f"{path[-1]}: {_flow(head)}" for path, head in _heads(spec))


def _flow(head: HeadSpec) -> str:
    """Where pairs go: down, to all memories, or along edges; what no edge reaches sees the tokens themselves."""
    names = memory_names(head)
    if head.graph is None:
        return (" → " if head.flow == "cascade" else " + ").join(names)
    ends = edges(head)
    beside = [name for name in names if all(name not in edge for edge in ends)]
    return " + ".join([", ".join(" → ".join(edge) for edge in ends), *beside])
