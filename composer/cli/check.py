"""``compose check``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from composer.cli.options import Json, MaybeFrom, Revision, Set, complete_spec
from composer.cli.screen import plural, print_json, print_table, short_hashes
from composer.errors import GraphError, Mistake, SpecError
from composer.graph.composition import HeadSpec
from composer.graph.flow_of_pairs import edges, memory_names
from composer.spec.document import Spec
from composer.spec.inherit import own_source
from composer.spec.layer_rules import named, unused
from composer.spec.loading import load_spec, load_specs, locate
from composer.spec.resolve import Dimensions, Resolved, resolve
from composer.spec.sweep import SEPARATOR, together
from composer.weights.dimensions import dimensions
from composer.weights.sources import describe_model

if TYPE_CHECKING:
    from composer.spec.places import Path

ANY = Dimensions(hidden_size=2048, layers=1, heads=32, key_heads=8, head_dim=64, rope_theta=1e4)
"""Stands in for a source that is not named: no rule that a head breaks here depends on these sizes."""
MISTAKE = 2
SPECS = "YAML files, names of shipped specs, or folders of built models."


def check(
    specs: Annotated[
        list[str],
        typer.Argument(help=SPECS, autocompletion=complete_spec),
    ],
    source: MaybeFrom = None,
    settings: Set = None,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Check specs: every mistake, with its file, line and column.

    Of a sweep, every variant. With --from they are resolved against that source, too: its sizes and its number of layers and
    heads; a spec with a trunk of its own is resolved on that.
    """
    size = None
    if source is not None:
        size = dimensions(describe_model(source, revision).trunk)
    answers = [answer for name in specs for answer in _answers(name, settings or (), size)]
    wrong = [answer for answer in answers if not answer.ok]
    if as_json:
        print_json([asdict(answer) for answer in answers])
    else:
        _print(answers, wrong)
    if wrong:
        raise typer.Exit(MISTAKE)


@dataclass(frozen=True)
class _Answer:
    """What became of one spec. hash: of what it means on its source or trunk, where there is one."""

    spec: str
    ok: bool
    says: str
    hash: str | None
    mistakes: tuple[Mistake, ...]


def _answers(name: str, settings: Sequence[str], size: Dimensions | None) -> Iterator[_Answer]:
    """One, or of a sweep one a variant."""
    try:
        specs = load_specs(name, settings)
    except SpecError as error:
        yield _wrong(name, error)
        return
    for source, spec in specs.items():
        try:
            resolved = _resolved(spec, size or _own_size(name, spec))
        except SpecError as error:
            vary, variant = load_spec(name).vary, source.removeprefix(f"{name}{SEPARATOR}")
            yield _wrong(source, together([(variant, error)], vary, told_apart=True) if vary else error)
            continue
        yield _Answer(source, True, _said(spec), resolved.hash if resolved else None, ())


def _own_size(name: str, spec: Spec) -> Dimensions | None:
    """What it was resolved for, or, of a built model, what that one has."""
    folder = own_source(name)
    return spec.dimensions if folder is None else dimensions(describe_model(folder).trunk)


def _wrong(name: str, error: SpecError) -> _Answer:
    return _Answer(name, False, "", None, error.mistakes)


def _print(answers: Sequence[_Answer], wrong: Sequence[_Answer]) -> None:
    good = [answer for answer in answers if answer.ok]
    if good:
        rows = [("ok", one.spec, *([short_hashes(one.hash)] if one.hash else []), one.says) for one in good]
        print_table(rows, indent=0, wrap=False)
    if wrong:
        typer.echo("\n".join(str(mistake) for answer in wrong for mistake in answer.mistakes), err=True)
        typer.echo(f"{plural(len(wrong), 'spec')} of {len(answers)} cannot be used", err=True)
    elif not all(answer.hash for answer in answers):
        typer.echo("Layers and sizes are checked against a source: --from SOURCE")


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
