"""``check``: every mistake of specs, of every variant of a sweep, on a source, on its own trunk, or each head by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path as File
from typing import ClassVar, cast

import typer

from blocks.part import Closed
from composer.errors import ComposerError, GraphError, Mistake, SpecError, mistakes_of, translate_errors
from composer.graph.composition import HeadSpec, edges, memory_names
from composer.graph.wiring import build_graph
from composer.options.classes import argument, function_of, options_class
from composer.options.command import Screen, command
from composer.options.shared import PartsOption, SetOption, SourceOfRevision, TextOnlyOption, complete_spec
from composer.reporting.tables import Readable, Table, View
from composer.reporting.terminal import print_json, print_table, say
from composer.reporting.words import plural, short_hashes
from composer.spec.document import Spec
from composer.spec.explain import explain_resolved, notes_on_speed
from composer.spec.loading import SpecLike, locate, specs_of, variants_of
from composer.spec.notes import notes_on_layers
from composer.spec.overrides import Overrides
from composer.spec.problems import ANY, heads_with_paths, problems
from composer.spec.resolve import Dimensions, Resolved, complete_head, resolve
from composer.spec.sweep import SEPARATOR, merge_errors
from composer.weights.config import dimensions
from composer.weights.sources import describe_model
from composer.weights.target import Target, target_of

NOTHING_KNOWN = "Layers and sizes are checked against a source: --from SOURCE"


class SpecCheck(Closed):
    """The result of checking one spec. hash: of the resolved document, where there is a source or a trunk to resolve it on. notes:
    warnings about the spec on its source."""

    spec: str
    ok: bool
    says: str
    hash: str | None
    mistakes: tuple[Mistake, ...]
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The spec. A variant of a sweep is named in words: after a colon, ``16`` would read as a line of the file."""
        sweep, separator, variant = self.spec.rpartition(SEPARATOR)
        return f"{sweep}, variant {variant}" if separator and "/" not in variant else self.spec


class CheckReport(Readable, Closed):
    """The checks of all specs, and of all variants of sweeps."""

    checks: tuple[SpecCheck, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    @property
    def mistakes(self) -> tuple[str, ...]:
        """The mistakes of all specs, a line each, with file, line and column."""
        return tuple(str(mistake) for check in self.checks for mistake in check.mistakes)

    def rows(self) -> tuple[tuple[str, ...], ...]:
        """Return a row for each spec without a mistake."""
        hashes = [check.hash for check in self.checks if check.ok]
        return tuple(
            ("ok", check.label, *([short_hashes(check.hash or "")] if any(hashes) else []), check.says)
            for check in self.checks
            if check.ok
        )

    def summary(self) -> tuple[str, ...]:
        """Remarks below the rows: the mistakes, or warnings, and that specs were checked without a source."""
        wrong = sum(not check.ok for check in self.checks)
        if wrong:
            return (*self.mistakes, f"{plural(wrong, 'spec')} of {len(self.checks)} cannot be used")
        notes = tuple(dict.fromkeys(f"Note: {note}" for check in self.checks for note in check.notes))
        return notes if all(check.hash for check in self.checks) else (*notes, NOTHING_KNOWN)

    def view(self) -> View:
        rows = self.rows()
        return View("", (Table("", ("",) * len(rows[0]), rows),) if rows else (), self.summary())


@options_class
class OfSpecs(PartsOption):
    specs: SpecLike | Sequence[SpecLike] = argument(
        "YAML files, names of shipped specs, or folders of built models. Of a sweep, every variant is checked.",
        is_checked=False,
        complete=complete_spec,
        metavar="SPEC",
        kind=list[str],
    )


@options_class
class CheckOptions(TextOnlyOption, SetOption, SourceOfRevision, OfSpecs):
    """Check specs: every mistake, with its file, line and column.

    Mistakes are returned in the report. With --from, specs are also resolved against that source: its sizes and its number of
    layers and heads. A spec with its own trunk, or a built model, is resolved on that.
    """

    example: ClassVar[str] = 'assert composer.check("mine.yaml", "teacher").ok'


@translate_errors
def run_check(options: CheckOptions) -> CheckReport:
    target = None
    if options.source is not None:
        trunk = describe_model(options.source, options.revision, text_only=options.text_only).trunk
        target = Target(options.source, dimensions(trunk), trunk.dtype, trunk)
    return CheckReport(
        checks=tuple(check for spec in specs_of(options.specs) for check in check_each(spec, target, options.overrides))
    )


check = function_of(CheckOptions, run_check)


def check_each(spec: SpecLike, source: Target | None, overrides: Overrides = ()) -> Iterator[SpecCheck]:
    """Yield the check of a spec, or of each variant of a sweep. source: None where there is none. overrides: of each."""
    named = str(spec) if isinstance(spec, str | File) else None
    try:
        vary, specs = variants_of(spec, overrides)
    except SpecError as error:
        yield _wrong(named or "the spec", error)
        return
    label = named or str(spec.name if isinstance(spec, Spec) else cast("Mapping[str, object]", spec)["name"])
    for variant, variant_spec in specs.items():
        name = label if variant is None else f"{label}{SEPARATOR}{variant}"
        try:
            target = source or target_of(spec, variant_spec)
            resolved = _resolve(variant_spec, target.size if target else None)
        except SpecError as error:
            if variant is not None and vary is not None:
                error = merge_errors([(variant, error)], vary, name_variants=True)
            yield _wrong(name, error)
            continue
        says, hashed = _heads_in_words(variant_spec, resolved), resolved.hash if resolved else None
        yield SpecCheck(spec=name, ok=True, says=says, hash=hashed, mistakes=(), notes=_notes(variant_spec, resolved, target))


def _notes(spec: Spec, resolved: Resolved | None, target: Target | None) -> tuple[str, ...]:
    """Return the notes of an explanation on the source or trunk, or without one those on the speed of each head."""
    if resolved is None or target is None:
        graphs = (build_graph(complete_head(head, ANY), ANY.shape(1)) for _, head in heads_with_paths(spec))
        return tuple(dict.fromkeys(note for graph in graphs for note in notes_on_speed(graph)))
    explained = explain_resolved(resolved, dtype=target.dtype, windows=target.windows, rotations=target.rotations)
    return (*notes_on_layers(resolved, has_head=spec.head is not None), *explained.notes)


def _wrong(name: str, error: SpecError) -> SpecCheck:
    return SpecCheck(spec=name, ok=False, says="", hash=None, mistakes=error.mistakes)


def _resolve(spec: Spec, size: Dimensions | None) -> Resolved | None:
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


MISTAKE = 2


@command(CheckOptions, "quiet", "as_json")
def check_command(options: CheckOptions, screen: Screen) -> None:
    try:
        report = run_check(options)
    except ComposerError as error:
        if not screen.as_json:
            raise
        report = without_source(run_check(replace(options, source=None, revision=None)), error)
        say(str(error), err=True)
    if screen.as_json:
        print_json([check.model_dump(mode="json") for check in report.checks])
    else:
        _print(report, quiet=screen.quiet)
    if not report.ok:
        raise typer.Exit(MISTAKE)


def without_source(report: CheckReport, error: ComposerError) -> CheckReport:
    """Add the mistake that the source cannot be read to each spec of a report."""
    return report.model_copy(
        update={
            "checks": tuple(
                check.model_copy(update={"ok": False, "says": "", "hash": None, "mistakes": (*check.mistakes, *mistakes_of(error))})
                for check in report.checks
            )
        }
    )


def _print(report: CheckReport, *, quiet: bool) -> None:
    if (rows := report.rows()) and not quiet:
        print_table(rows, indent=0, wrap=False)
    for line in report.mistakes if quiet else report.summary():
        say(line, err=not report.ok)
