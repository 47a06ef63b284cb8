"""``show``, ``code``, ``check`` and ``diff``: specs are looked at before anything is built; nothing here needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blocks.part import Closed
from composer.api import SpecLike, load_spec, resolve_spec, specs_of
from composer.arguments import DtypeLike, Reference, named_dtype
from composer.commands.checking import SpecCheck, answers_on
from composer.commands.drawing import check_file, draw_beside
from composer.devices import device_type
from composer.errors import ComposerError, GraphError, in_words
from composer.graph.lowering import AUTO
from composer.spec.code import Listing, code_of
from composer.spec.difference import Difference, differences_of_specs, differences_on_source
from composer.spec.document import Spec
from composer.spec.loading import locate
from composer.spec.locked import locked
from composer.spec.overrides import Overrides, each
from composer.spec.places import dotted
from composer.spec.problems import without_source
from composer.spec.sweep import refuse_sweep
from composer.spec.writing import said, to_yaml
from composer.tables import Readable, Table, View
from composer.weights.dimensions import dimensions
from composer.weights.sources import describe_model
from composer.weights.target import target_of
from composer.words import layers_in_words, plural, short_hashes

CODE_OF_ONE = "--code shows what one spec computes: it goes without --expand, and a spec that says no sizes itself needs --from"
NOTHING_KNOWN = "Layers and sizes are checked against a source: --from SOURCE"


class ShownSpec(Readable, Closed):
    """A spec as a document that says all by itself. on, hash: where it is resolved, and of what it means there."""

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


@in_words
def show(
    spec: SpecLike,
    source: Reference | None = None,
    *,
    fresh: bool = False,
    overrides: Overrides = (),
    revision: str | None = None,
) -> ShownSpec:
    """A spec after ``extends`` and overrides; with a source, or ``fresh`` for one with a trunk of its own, resolved: every default
    and every dimension, layer by layer.

    spec: a file, the name of a shipped one, what stands in one, or a ``Spec``. Raises ComposerError.

        print(composer.show("lawcat", "teacher").yaml)
    """
    loaded = load_spec(spec, overrides)
    if source is None and not fresh:
        return ShownSpec(name=loaded.name, on=None, document=loaded.model_dump(mode="json", exclude_unset=True), hash=None)
    target = target_of(spec, loaded, source, fresh=fresh, revision=revision)
    assert target is not None, "one of the two is said"
    resolved = resolve_spec(loaded, target.size)
    return ShownSpec(name=loaded.name, on=target.on, document=resolved.model_dump(mode="json"), hash=resolved.hash)


@in_words
def code(
    spec: SpecLike,
    source: Reference | None = None,
    *,
    fresh: bool = False,
    overrides: Overrides = (),
    revision: str | None = None,
    backend: str = AUTO,
    device: str = "cpu",
    dtype: DtypeLike | None = None,
) -> Listing:
    """What each head of a spec computes on a source (or, ``fresh``, on its own trunk), a line a step, with shapes and forms.

    source: None takes what the spec says itself, as ``explain`` does. dtype: what the model would compute in; left out, the
    source's own, or float32. Raises ComposerError.

        print(composer.code("lawcat", "teacher").text)
    """
    dtype = named_dtype(dtype)
    loaded = load_spec(spec, overrides)
    target = target_of(spec, loaded, source, fresh=fresh, revision=revision)
    if target is None:
        raise ComposerError(CODE_OF_ONE)
    resolved = resolve_spec(loaded, target.size)
    return code_of(resolved, target.on, backend=backend, device=device_type(device), dtype=dtype or target.dtype)


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
        """A row for each spec without a mistake."""
        hashes = [answer.hash for answer in self.answers if answer.ok]
        return tuple(
            ("ok", one.spec, *([short_hashes(one.hash or "")] if any(hashes) else []), one.says) for one in self.answers if one.ok
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


@in_words
def check(
    specs: SpecLike | Sequence[SpecLike],
    source: Reference | None = None,
    *,
    overrides: Overrides = (),
    revision: str | None = None,
) -> CheckReport:
    """Every mistake of specs, with its file, line and column; of a sweep, of every variant. They are returned, not raised.

    source: they are resolved against it, too; a spec with a trunk of its own, or a built model, is resolved on that. overrides: of
    each. Raises ComposerError where the source cannot be read.

        assert composer.check("mine.yaml", "teacher").ok
    """
    trunk = None if source is None else describe_model(source, revision).trunk
    size, rotations = (None, {}) if trunk is None else (dimensions(trunk), trunk.length_rotations)
    return CheckReport(answers=tuple(answer for spec in specs_of(specs) for answer in answers_on(spec, size, overrides, rotations)))


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
        """A row for each difference: its place, and both values."""
        return tuple((*_where(row), f"{said(row.first)} → {said(row.second)}") for row in self.differences)

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


@in_words
def diff(
    first: SpecLike,
    second: SpecLike,
    source: Reference | None = None,
    *,
    overrides: Overrides = (),
    revision: str | None = None,
    draw: str | Path | None = None,
    force: bool = False,
) -> SpecDifferences:
    """What differs between two specs in meaning, not in text: names, papers and recipes mean nothing, nor do defaults written out.

    - source: they are compared layer by layer, as they would be built on it; else head by head.
    - overrides: of the second.
    - draw: an .svg file for a picture of both beside each other, what differs marked; force: replaces what is there.

    Raises ComposerError.

        composer.diff("lolcats", "lola", "teacher").differences
    """
    check_file(draw, force=force)
    specs = [load_spec(first), load_spec(second, overrides)]
    if source is None:
        for spec in specs:
            _check(spec)
        found = differences_of_specs(*specs)
        hashes = [resolve_spec(spec, None).hash for spec in specs] if all(spec.trunk for spec in specs) else None
    else:
        size = dimensions(describe_model(source, revision).trunk)
        resolved = [resolve_spec(spec, size) for spec in specs]
        found, hashes = differences_on_source(*resolved), [one.hash for one in resolved]
    if draw is not None:
        draw_beside(specs, source, revision, draw, force=force)
    names = [str(one) if isinstance(one, str | Path) else spec.name for one, spec in zip((first, second), specs, strict=True)]
    return SpecDifferences(
        specs=(names[0], " ".join((names[1], *(f"--set {setting}" for setting in each(overrides))))),
        on=None if source is None else str(source),
        hashes=None if hashes is None else (hashes[0], hashes[1]),
        differences=tuple(found),
    )


def _check(spec: Spec) -> None:
    """Raises SpecError where a document is no spec that a source could be built with."""
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
