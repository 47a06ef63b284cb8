"""``show``, ``code``, ``check`` and ``diff``: specs are looked at before anything is built; nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from blocks.part import Closed
from composer.api import SpecLike, load_spec, resolve_spec, specs_of
from composer.commands.checking import SpecCheck, answers_on
from composer.commands.drawing import check_file, draw_beside
from composer.devices import device_type
from composer.errors import ComposerError, GraphError, translate_errors
from composer.options import argument, function_of, option, options_class
from composer.shared_options import (
    SPEC,
    FreshOrNot,
    InDtype,
    OfSource,
    OfSpec,
    OnDevice,
    Overriding,
    Replacing,
    TextDecoderAlone,
    WithBackend,
    WithParts,
    complete_spec,
    to_optional_path,
)
from composer.spec.code import Listing, code_of
from composer.spec.difference import Difference, differences_of_specs, differences_on_source
from composer.spec.document import Spec
from composer.spec.loading import locate
from composer.spec.locked import locked
from composer.spec.overrides import each
from composer.spec.places import dotted
from composer.spec.problems import without_source
from composer.spec.sweep import refuse_sweep
from composer.spec.writing import format_value, to_yaml
from composer.tables import Readable, Table, View
from composer.weights.config import dimensions
from composer.weights.sources import describe_model
from composer.weights.target import target_of
from composer.words import layers_in_words, plural, short_hashes

NOTHING_KNOWN = "Layers and sizes are checked against a source: --from SOURCE"


class ShownSpec(Readable, Closed):
    """A spec as a self-contained document. on: the source that it is resolved on. hash: of the resolved spec."""

    name: str
    on: str | None
    document: dict[str, Any]
    hash: str | None

    @property
    def yaml(self) -> str:
        """The document as YAML that reads back as itself, below a comment with its hash."""
        heading = f"# {self.name} on {self.on}, resolved. Hash of what it means: {self.hash}\n" if self.hash else ""
        return heading + to_yaml(locked(self.document) if self.hash else self.document)

    def view(self) -> View:
        return View("", verbatim=self.yaml)


@options_class
class ShowOptions(FreshOrNot, TextDecoderAlone, Overriding, OfSource, OfSpec):
    """Print a spec as YAML, or the names of the shipped specs.

    The document is printed after `extends` and --set. With --from, or with --fresh for a spec with its own trunk, every default and
    every dimension is written out, layer by layer: a spec that leaves nothing to its source, and means the same on it.
    """

    example: ClassVar[str] = 'print(composer.show("lawcat", "teacher").yaml)'


@translate_errors
def run_show(options: ShowOptions) -> ShownSpec:
    loaded = load_spec(options.spec, options.overrides)
    if options.source is None and not options.fresh:
        return ShownSpec(name=loaded.name, on=None, document=loaded.model_dump(mode="json", exclude_unset=True), hash=None)
    target = target_of(
        options.spec, loaded, options.source, fresh=options.fresh, revision=options.revision, text_only=options.text_only
    )
    assert target is not None, "there is a source, or fresh"
    resolved = resolve_spec(loaded, target.size)
    return ShownSpec(name=loaded.name, on=target.on, document=resolved.model_dump(mode="json"), hash=resolved.hash)


@options_class
class CodeOptions(InDtype, OnDevice, WithBackend, FreshOrNot, TextDecoderAlone, Overriding, OfSource, OfSpec):
    """Print what each head of a spec computes: a line for each step, with shapes and forms."""

    example: ClassVar[str] = 'print(composer.code("lawcat", "teacher").text)'


@translate_errors
def run_code(options: CodeOptions) -> Listing:
    loaded = load_spec(options.spec, options.overrides)
    target = target_of(
        options.spec, loaded, options.source, fresh=options.fresh, revision=options.revision, text_only=options.text_only
    )
    if target is None:
        raise ComposerError(f"{loaded.name} has no sizes, which a program needs. Add a source: --from SOURCE.")
    device, dtype = device_type(options.device), options.dtype or target.dtype
    return code_of(resolve_spec(loaded, target.size), target.on, backend=options.backend, device=device, dtype=dtype)


class CheckReport(Readable, Closed):
    """The checks of all specs, and of all variants of sweeps."""

    answers: tuple[SpecCheck, ...]

    @property
    def ok(self) -> bool:
        return all(answer.ok for answer in self.answers)

    @property
    def mistakes(self) -> tuple[str, ...]:
        """The mistakes of all specs, a line each, with file, line and column."""
        return tuple(str(mistake) for answer in self.answers for mistake in answer.mistakes)

    def rows(self) -> tuple[tuple[str, ...], ...]:
        """Return a row for each spec without a mistake."""
        hashes = [answer.hash for answer in self.answers if answer.ok]
        return tuple(
            ("ok", answer.spec, *([short_hashes(answer.hash or "")] if any(hashes) else []), answer.says)
            for answer in self.answers
            if answer.ok
        )

    def summary(self) -> tuple[str, ...]:
        """Remarks below the rows: the mistakes, or warnings, and that specs were checked without a source."""
        wrong = sum(not answer.ok for answer in self.answers)
        if wrong:
            return (*self.mistakes, f"{plural(wrong, 'spec')} of {len(self.answers)} cannot be used")
        notes = tuple(dict.fromkeys(f"Note: {note}" for answer in self.answers for note in answer.notes))
        return notes if all(answer.hash for answer in self.answers) else (*notes, NOTHING_KNOWN)

    def view(self) -> View:
        rows = self.rows()
        return View("", (Table("", ("",) * len(rows[0]), rows),) if rows else (), self.summary())


@options_class
class OfSpecs(WithParts):
    specs: SpecLike | Sequence[SpecLike] = argument(
        "YAML files, names of shipped specs, or folders of built models. Of a sweep, every variant is checked.",
        is_checked=False,
        complete=complete_spec,
        metavar="SPEC",
        kind=list[str],
    )


@options_class
class CheckOptions(TextDecoderAlone, Overriding, OfSource, OfSpecs):
    """Check specs: every mistake, with its file, line and column.

    Mistakes are returned in the report. With --from, specs are also resolved against that source: its sizes and its number of
    layers and heads. A spec with its own trunk, or a built model, is resolved on that.
    """

    example: ClassVar[str] = 'assert composer.check("mine.yaml", "teacher").ok'


@translate_errors
def run_check(options: CheckOptions) -> CheckReport:
    trunk = None
    if options.source is not None:
        trunk = describe_model(options.source, options.revision, text_only=options.text_only).trunk
    size, rotations = (None, {}) if trunk is None else (dimensions(trunk), trunk.length_rotations)
    return CheckReport(
        answers=tuple(answer for spec in specs_of(options.specs) for answer in answers_on(spec, size, options.overrides, rotations))
    )


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
        return tuple((*_where(row), f"{format_value(row.first)} → {format_value(row.second)}") for row in self.differences)

    def summary(self) -> tuple[str, ...]:
        """Remarks below the rows: how the specs were compared, or that they mean the same."""
        if self.differences:
            alone = self.on is None and self.hashes is None
            return ("Compared head by head, as for any source; layer by layer: --from SOURCE",) if alone else ()
        if self.hashes:
            return (short_hashes(f"the same meaning on {self.on or 'their own trunk'}: {self.hashes[0]}"),)
        return ("the same meaning on every source",)

    def view(self) -> View:
        rows = self.rows()
        return View(self.title, (Table("", ("",) * len(rows[0]), rows),) if rows else (), self.summary())


@options_class
class OfTwoSpecs(WithParts):
    first: SpecLike = argument(SPEC, is_checked=False, complete=complete_spec)
    second: SpecLike = argument(f"{SPEC} --set changes this spec.", is_checked=False, complete=complete_spec)


@options_class
class DiffOptions(Replacing, TextDecoderAlone, Overriding, OfSource, OfTwoSpecs):
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
        specs=(names[0], " ".join((names[1], *(f"--set {setting}" for setting in each(options.overrides))))),
        on=source,
        hashes=None if hashes is None else (hashes[0], hashes[1]),
        differences=tuple(differences),
    )


show = function_of(ShowOptions, run_show)
code = function_of(CodeOptions, run_code)
check = function_of(CheckOptions, run_check)
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


def _where(row: Difference) -> tuple[str, ...]:
    layers = row.layers or ()
    return (*((layers_in_words(layers),) if layers else ()), dotted(row.path))
