"""``compose show``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

from composer.cli.derived import Screen, command
from composer.cli.screen import print_document, print_json, print_table, say
from composer.commands.show import CodeOptions, ShownSpec, ShowOptions, run_code, run_show
from composer.errors import ComposerError
from composer.files import failing_as, write_whole
from composer.graph.lowering import AUTO
from composer.options import argument, convert_options, option, options_class, options_of
from composer.shared_options import OUT, SPEC, complete_spec, to_optional_path
from composer.spec.document import Spec
from composer.spec.loading import expand
from composer.spec.shipped import purpose_of, shipped_specs
from composer.spec.writing import to_yaml
from converters.bounded import lost_link_message

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
def show(options: PrintOptions, screen: Screen) -> None:
    spec, as_json = options.spec, screen.as_json
    if spec is None:
        _list_shipped(as_json=as_json)
    elif options.code:
        listing = run_code(convert_options(options, CodeOptions))
        _print([head.model_dump(mode="json") for head in listing.heads], listing.text, as_json=as_json)
    elif not options.expanded:
        shown_spec = run_show(convert_options(options, ShowOptions))
        _print(_document(shown_spec), shown_spec.yaml, as_json=as_json)
    elif options.out is not None:
        files = _write(spec, expand(spec, options.overrides), options.out)
        _print(files, "\n".join(files), as_json=as_json)
    else:
        variants = {
            name: run_show(convert_options(options, ShowOptions, spec=variant, overrides=()))
            for name, variant in expand(spec, options.overrides).items()
        }
        text = "---\n".join(variant.yaml if variant.hash else f"# {variant.name}\n{variant.yaml}" for variant in variants.values())
        _print({name: _document(variant) for name, variant in variants.items()}, text, as_json=as_json)


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


def _document(shown_spec: ShownSpec) -> dict[str, Any]:
    return shown_spec.document | ({"hash": shown_spec.hash} if shown_spec.hash else {})


def _write(sweep: str, variants: Mapping[str, Spec], folder: Path) -> list[str]:
    """Return one file a variant; none where one of them is there already."""
    files = {folder / f"{spec.name}.yaml": (name, spec) for name, spec in variants.items()}
    taken = [str(path) for path in files if path.exists()]
    if taken:
        raise ComposerError(f"{', '.join(taken)}: already exists; choose another folder, or remove the files")
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
