"""``lock``: everything that decides the bytes of a build, in one file."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar

from blocks.part import Closed
from composer.building.build import BuildOptions, check_origin, run_build
from composer.building.lock import SUFFIX, Lock, files_of_build, lock_source
from composer.errors import BuildError, ComposerError, translate_errors
from composer.options.classes import convert_options, function_of, option, options_class
from composer.options.command import Screen, command
from composer.options.shared import (
    OUT_FILE,
    DtypeOption,
    ForceOption,
    FreshOption,
    SetOption,
    SignedSeedOption,
    SourceOfRevision,
    SpecArgument,
    TextOnlyOption,
    TokenizerOption,
    to_optional_path,
)
from composer.reporting.tables import Readable, View
from composer.reporting.terminal import at_once, print_report
from composer.reporting.words import plural
from composer.spec.built_models import lock_document
from composer.spec.inherit import short_path
from composer.spec.loading import load_spec, resolve_spec
from composer.system.files import failing_as, recover, unique_partial_of, write_whole
from composer.system.locks import beside, exclusive_lock
from composer.weights.record import read_record, versions
from composer.weights.sources import open_model
from composer.weights.target import target_of


class LockReport(Readable, Closed):
    """A lock that was written. files: of the build, that it has hashes of; source: as the lock names it."""

    out: Path
    spec_hash: str
    source: str | None
    files: int

    def view(self) -> View:
        return View(f"Locked {short_path(self.out)}", notes=self.remarks)

    @property
    def remarks(self) -> tuple[str, ...]:
        source = "no source" if self.source is None else f"source {self.source}"
        files = f"hashes of {plural(self.files, 'file')} of the build"
        return (source, f"spec {self.spec_hash}", files, f"Next: compose build {shlex.quote(short_path(self.out))} -o FOLDER")


@options_class
class LockOptions(
    TokenizerOption,
    FreshOption,
    TextOnlyOption,
    ForceOption,
    SignedSeedOption,
    DtypeOption,
    SetOption,
    SourceOfRevision,
    SpecArgument,
):
    """Write everything that decides the bytes of a build to a file.

    The file has the resolved spec, the source with its commit and the hashes of its files, seed, dtype and versions. The model is
    built once in a temporary folder, for the hashes of its files. `compose build` of the file makes the same bytes, or lists the
    differences.
    """

    error: ClassVar[type[ComposerError]] = BuildError
    example: ClassVar[str] = 'composer.lock("lawcat", "teacher", "mine.lock.yaml")'
    out: Path | None = option(
        f"File to write. Left out, NAME{SUFFIX} here, with the name of the spec.",
        default=None,
        converter=to_optional_path,
        kw_only=False,
        **OUT_FILE,
    )

    def check(self) -> None:
        check_origin(self.source, self.fresh, self.revision)
        super().check()


@translate_errors
def run_lock(options: LockOptions) -> LockReport:
    loaded = load_spec(options.spec, options.overrides)
    out = (options.out or Path(f"{loaded.name}{SUFFIX}")).expanduser()
    if out.exists() and not options.force:
        raise BuildError(f"{out} exists already. Use --force to replace it, or choose another file.")
    of_source = {"revision": options.revision, "text_only": options.text_only}
    target = target_of(None, loaded, options.source, fresh=options.fresh, **of_source)
    assert target is not None, "there is a source, or fresh"
    document = lock_document(resolve_spec(loaded, target.size).model_dump(mode="json"))
    opened = None if options.source is None else open_model(options.source, dtype=options.dtype, **of_source)
    source = None if opened is None else lock_source(str(options.source), opened, text_only=options.text_only)
    with _scratch(out) as folder:
        built = folder / "model"
        run_build(
            convert_options(
                options, BuildOptions, spec=document, overrides=(), out=built, hash_contents=True, force=False, progress=False
            )
        )
        record = read_record(built)
    assert record is not None, "it has just been built"
    lock = Lock(
        spec=document,
        spec_hash=record.spec_hash,
        source=source,
        tokenizer=options.tokenizer,
        dtype=options.dtype,
        seed=options.seed,
        files=files_of_build(record),
        parts=record.parts,
        versions=versions(),
    )
    with failing_as(BuildError, f"{out} cannot be written"):
        write_whole(out, lock.yaml, replace=options.force)
    return LockReport(out=out, spec_hash=lock.spec_hash, source=None if source is None else source.reference, files=len(lock.files))


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``out``. It is removed after the block, and that of a killed run before it. Raises
    BuildError."""
    partial = unique_partial_of(out)
    busy = BuildError(f"Another lock of {out} is being written. Wait until it has ended, or choose another file.")
    with ExitStack() as stack:
        with failing_as(BuildError, f"{out.parent} cannot be written to"):
            out.parent.mkdir(parents=True, exist_ok=True)
            if stack.enter_context(exclusive_lock(beside(out), busy)):
                recover(out)
            partial.mkdir()
        stack.callback(shutil.rmtree, partial, ignore_errors=True)
        yield partial


lock = function_of(LockOptions, run_lock)


@command(LockOptions, "quiet", "as_json")
def lock_command(options: LockOptions, screen: Screen) -> None:
    at_once(f"Building {options.spec} once", quiet=screen.hides_progress)
    print_report(run_lock(options), as_json=screen.as_json)
