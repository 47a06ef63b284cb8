"""``show`` and ``code``: a spec, complete and in canonical form, and the program of its heads. Neither needs torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any, ClassVar

from blocks.part import Closed
from composer.errors import ComposerError, translate_errors
from composer.graph.lowering import AUTO
from composer.options.classes import argument, convert_options, function_of, option, options_class, options_of
from composer.options.command import Screen, command
from composer.options.shared import (
    OUT,
    SPEC,
    BackendOption,
    DeviceOption,
    DtypeOption,
    FreshOption,
    SetOption,
    SourceOfRevision,
    SpecArgument,
    TextOnlyOption,
    complete_spec,
    to_optional_path,
)
from composer.reporting.tables import Readable, View
from composer.reporting.terminal import print_document, print_json, print_table, say
from composer.spec.built_models import document_of
from composer.spec.code import Listing, code_of
from composer.spec.document import Spec
from composer.spec.loading import expand, load_spec, resolve_spec
from composer.spec.recipe import Stage
from composer.spec.shipped import purpose_of, shipped_specs
from composer.spec.writing import to_yaml
from composer.system.devices import device_type
from composer.system.files import failing_as, write_whole
from composer.weights.target import target_of
from converters.bounded import lost_link_message


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
        return heading + to_yaml(document_of(self.document) if self.hash else self.document)

    def view(self) -> View:
        return View("", verbatim=self.yaml)


@options_class
class ShowOptions(FreshOption, TextOnlyOption, SetOption, SourceOfRevision, SpecArgument):
    """Print a spec as YAML, or the names of the shipped specs.

    The document is printed after `extends` and --set. With --from, or with --fresh for a spec with its own trunk, every default and
    every dimension is written out, layer by layer: a spec that leaves nothing to its source, and means the same on it.
    """

    example: ClassVar[str] = 'print(composer.show("lawcat", "teacher").yaml)'


@translate_errors
def run_show(options: ShowOptions) -> ShownSpec:
    loaded = load_spec(options.spec, options.overrides)
    if options.source is None and not options.fresh:
        return ShownSpec(name=loaded.name, on=None, document=_document(loaded), hash=None)
    target = target_of(
        options.spec, loaded, options.source, fresh=options.fresh, revision=options.revision, text_only=options.text_only
    )
    assert target is not None, "there is a source, or fresh"
    resolved = resolve_spec(loaded, target.size)
    return ShownSpec(name=loaded.name, on=target.on, document=resolved.model_dump(mode="json"), hash=resolved.hash)


def _document(spec: Spec) -> dict[str, Any]:
    """Return a spec with the fields that were set, and the rows of a step: the time of a run depends on them."""
    document = spec.model_dump(mode="json", exclude_unset=True)
    for stage in (document.get("recipe") or {}).values():
        if isinstance(stage, dict):
            stage.setdefault("batch", Stage.model_fields["batch"].default)
    return document


@options_class
class CodeOptions(DtypeOption, DeviceOption, BackendOption, FreshOption, TextOnlyOption, SetOption, SourceOfRevision, SpecArgument):
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


show = function_of(ShowOptions, run_show)
code = function_of(CodeOptions, run_code)


CITATION = re.compile(r" \([^()]*arXiv:[^()]*\)")
"""A paper in the comment of a spec."""
LONGEST = 88
"""The most characters of a spec's purpose in the list of shipped specs."""


@options_class
class PrintOptions(CodeOptions):
    __doc__ = ShowOptions.__doc__

    spec: str | None = argument(  # pyright: ignore[reportIncompatibleVariableOverride]
        f"{SPEC} Left out: a list of the shipped specs.", default=None, complete=complete_spec
    )
    expanded: bool = option("Print each variant of a sweep as a separate spec.", default=False, flags=("--expand",))
    out: Path | None = option(
        "With --expand: write one file for each variant here.", default=None, converter=to_optional_path, **OUT
    )
    code: bool = option("Print the program of each head: a line for each step, with shapes and forms.", default=False)

    def check(self) -> None:
        super().check()
        if not self.code and (self.backend != AUTO or self.device != "cpu" or self.dtype):
            raise ComposerError("--backend, --device and --dtype choose what runs: they need --code")
        if self.spec is None:
            if any(getattr(self, name) != entry.default for name, entry in options_of(type(self)).items()):
                raise ComposerError("no spec is named: name the spec to show; `compose show` alone lists the shipped specs")
        elif self.out is not None and (self.source is not None or self.fresh or not self.expanded):
            raise ComposerError("--out writes the specs of a sweep: it needs --expand, and excludes --from and --fresh")
        elif self.code and self.expanded:
            raise ComposerError("--code prints the program of one spec: name a variant, SWEEP:VARIANT, instead of --expand.")


@command(PrintOptions, "as_json")
def show_command(options: PrintOptions, screen: Screen) -> None:
    spec, as_json = options.spec, screen.as_json
    if spec is None:
        _list_shipped(as_json=as_json)
    elif options.code:
        listing = run_code(convert_options(options, CodeOptions))
        _print([head.model_dump(mode="json") for head in listing.heads], listing.text, as_json=as_json)
    elif not options.expanded:
        shown_spec = run_show(convert_options(options, ShowOptions))
        _print(_with_hash(shown_spec), shown_spec.yaml, as_json=as_json)
    elif options.out is not None:
        files = _write(spec, expand(spec, options.overrides), options.out)
        _print(files, "\n".join(files), as_json=as_json)
    else:
        variants = {
            name: run_show(convert_options(options, ShowOptions, spec=variant, overrides=()))
            for name, variant in expand(spec, options.overrides).items()
        }
        text = "---\n".join(variant.yaml if variant.hash else f"# {variant.name}\n{variant.yaml}" for variant in variants.values())
        _print({name: _with_hash(variant) for name, variant in variants.items()}, text, as_json=as_json)


def _list_shipped(*, as_json: bool) -> None:
    """Print a line for each shipped spec: its name and its purpose."""
    purposes = {name: purpose_of(name) for name in shipped_specs()}
    if as_json:
        print_json(purposes)
        return
    rows = [(name, shorten(CITATION.sub("", purpose), LONGEST, placeholder=" …")) for name, purpose in purposes.items()]
    print_table(rows, indent=0, wrap=False)
    say("\nNames with a slash: `ablations/` has sweeps, `published/` the heads of published students.")


def _print(document: Any, text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        print_document(text.removesuffix("\n"))


def _with_hash(shown_spec: ShownSpec) -> dict[str, Any]:
    return shown_spec.document | ({"hash": shown_spec.hash} if shown_spec.hash else {})


def _write(sweep: str, variants: Mapping[str, Spec], folder: Path) -> list[str]:
    """Return one file a variant; none where one of them is there already."""
    files = {folder / f"{spec.name}.yaml": (name, spec) for name, spec in variants.items()}
    existing = [str(path) for path in files if path.exists()]
    if existing:
        raise ComposerError(f"{', '.join(existing)}: already exists; choose another folder, or remove the files")
    if lost := lost_link_message(folder):
        raise ComposerError(f"{lost}; choose another folder, or remove it")
    with failing_as(ComposerError, f"{folder} cannot be written"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path, (name, spec) in files.items():
                text = to_yaml(spec.model_dump(mode="json", exclude_unset=True))
                write_whole(path, f"# The variant {name} of {sweep}.\n{text}", replace=False)
        except FileExistsError:
            raise ComposerError(
                f"a file of the same name was created in {folder} meanwhile; choose another folder, or remove it"
            ) from None
    return list(map(str, files))
