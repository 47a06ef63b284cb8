"""``diff``: what differs between two specs in meaning."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from blocks.part import Closed
from composer.commands.draw import check_file, draw_beside
from composer.errors import GraphError, translate_errors
from composer.options.classes import argument, function_of, option, options_class
from composer.options.command import Screen, command
from composer.options.shared import (
    SPEC,
    ForceOption,
    PartsOption,
    SetOption,
    SourceOfRevision,
    TextOnlyOption,
    complete_spec,
    to_optional_path,
)
from composer.reporting.tables import Readable, Table, View
from composer.reporting.terminal import heading, print_json, print_table, say
from composer.reporting.words import layers_in_words, short_hashes
from composer.spec.difference import Difference, differences_of_specs, differences_on_source
from composer.spec.document import Spec
from composer.spec.inherit import short_path
from composer.spec.loading import SpecLike, load_spec, locate, resolve_spec
from composer.spec.overrides import override_list
from composer.spec.places import join_path
from composer.spec.problems import without_source
from composer.spec.sweep import refuse_sweep
from composer.spec.writing import format_value
from composer.weights.config import dimensions
from composer.weights.sources import describe_model


class SpecDifferences(Readable, Closed):
    """What differs between two specs in meaning. hashes: of both, where they are resolved. on: the source, if there is one."""

    specs: tuple[str, str]
    on: str | None
    hashes: tuple[str, str] | None
    differences: tuple[Difference, ...]

    @property
    def same(self) -> bool:
        """Whether the specs mean the same."""
        return not self.differences

    @property
    def title(self) -> str:
        first, second = self.specs
        return f"{first} → {second}" + (f" on {self.on}" if self.on else "")

    def rows(self) -> tuple[tuple[str, ...], ...]:
        """Return a row for each difference: its place, and both values."""
        return tuple((*_place_cells(row), f"{format_value(row.first)} → {format_value(row.second)}") for row in self.differences)

    def summary(self) -> tuple[str, ...]:
        """Remarks below the rows: how the specs were compared, or that they mean the same."""
        if self.differences:
            has_no_source = self.on is None and self.hashes is None
            return ("Compared head by head, as for any source; layer by layer: --from SOURCE",) if has_no_source else ()
        if self.hashes:
            return (short_hashes(f"the same meaning on {self.on or 'their own trunk'}: {self.hashes[0]}"),)
        return ("the same meaning on every source",)

    def view(self) -> View:
        rows = self.rows()
        return View(self.title, (Table("", ("",) * len(rows[0]), rows),) if rows else (), self.summary())


@options_class
class OfTwoSpecs(PartsOption):
    first: SpecLike = argument(SPEC, is_checked=False, complete=complete_spec)
    second: SpecLike = argument(f"{SPEC} --set changes this spec.", is_checked=False, complete=complete_spec)


@options_class
class DiffOptions(ForceOption, TextOnlyOption, SetOption, SourceOfRevision, OfTwoSpecs):
    """Show what differs between two specs in meaning, not in text.

    Names, papers and recipes have no meaning, and a default means the same written out or not. With --from they are compared layer
    by layer, as they would be built on that source; without it head by head, and their own trunks where they have them.
    """

    example: ClassVar[str] = 'composer.diff("lolcats", "lola", "teacher").differences'
    draw: Path | None = option(
        "Draw both beside each other, with differences marked, as an .svg file.",
        default=None,
        converter=to_optional_path,
        metavar="FILE",
    )


@translate_errors
def run_diff(options: DiffOptions) -> SpecDifferences:
    source = options.source
    check_file(options.draw, force=options.force)
    specs = [load_spec(options.first), load_spec(options.second, options.overrides)]
    if source is None:
        for spec in specs:
            _check(spec)
        differences = differences_of_specs(*specs)
        hashes = [resolve_spec(spec, None).hash for spec in specs] if all(spec.trunk for spec in specs) else None
    else:
        size = dimensions(describe_model(source, options.revision, text_only=options.text_only).trunk)
        resolved = [resolve_spec(spec, size) for spec in specs]
        differences, hashes = differences_on_source(*resolved), [resolved_spec.hash for resolved_spec in resolved]
    if options.draw is not None:
        draw_beside(specs, source, options.revision, options.draw, text_only=options.text_only, force=options.force)
    arguments = (options.first, options.second)
    names = [
        str(spec_like) if isinstance(spec_like, str | Path) else spec.name for spec_like, spec in zip(arguments, specs, strict=True)
    ]
    return SpecDifferences(
        specs=(names[0], " ".join((names[1], *(f"--set {setting}" for setting in override_list(options.overrides))))),
        on=source,
        hashes=None if hashes is None else (hashes[0], hashes[1]),
        differences=tuple(differences),
    )


diff = function_of(DiffOptions, run_diff)


def _check(spec: Spec) -> None:
    """Raise SpecError if a document is no spec that a source could be built with."""
    try:
        refuse_sweep(spec)
        for problem in without_source(spec):
            raise problem
        differences_of_specs(spec, spec)
    except GraphError as error:
        raise locate(error, spec) from error


def _place_cells(row: Difference) -> tuple[str, ...]:
    layers = row.layers or ()
    return (*((layers_in_words(layers),) if layers else ()), join_path(row.path))


@command(DiffOptions, "as_json")
def diff_command(options: DiffOptions, screen: Screen) -> None:
    report = run_diff(options)
    if screen.as_json:
        rows = [row.model_dump(mode="json") | {"path": join_path(row.path)} for row in report.differences]
        print_json({"specs": report.specs, "same": report.same, "hashes": report.hashes, "differences": rows})
        return
    if rows := report.rows():
        heading(report.title)
        print_table(rows)
    for line in (*report.summary(), *([] if options.draw is None else [f"Picture: {short_path(options.draw)}"])):
        say(line)
