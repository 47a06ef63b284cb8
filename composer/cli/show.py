"""``compose show``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import composer
from composer.cli.options import SPEC, Json, MaybeFrom, Revision, Set, complete_spec
from composer.cli.screen import print_document, print_json
from composer.errors import ComposerError
from composer.files import failing_as, write_whole
from composer.graph.lowering import AUTO
from composer.spec.document import Spec
from composer.spec.loading import expand
from composer.spec.shipped import shipped_specs
from composer.spec.writing import to_yaml
from converters.bounded import lost_link
from converters.trunk import Dtype

if TYPE_CHECKING:
    from composer.commands.specs import ShownSpec


def show(
    spec: Annotated[str | None, typer.Argument(help=f"{SPEC} Left out: their names.", autocompletion=complete_spec)] = None,
    source: MaybeFrom = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Resolve it on its own trunk, as `build --fresh` does.")] = False,
    settings: Set = None,
    revision: Revision = None,
    expanded: Annotated[bool, typer.Option("--expand", help="Print each variant of a sweep as a spec of its own.")] = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FOLDER", help="With --expand: write one file a variant there.")
    ] = None,
    code: Annotated[
        bool, typer.Option("--code", help="Print the program of each head, a line a step, with shapes and forms.")
    ] = False,
    backend: Annotated[str | None, typer.Option(help="With --code, as `compose explain` has it.")] = None,
    device: Annotated[Literal["cpu", "cuda"] | None, typer.Option(help="With --code, as `compose explain` has it.")] = None,
    dtype: Annotated[Dtype | None, typer.Option(help="With --code, as `compose explain` has it.")] = None,
    as_json: Json = False,
) -> None:
    """Print a spec as YAML, or the names of the shipped ones.

    It is printed after `extends` and --set, and says the same by itself. With --from, or with --fresh for a spec with a trunk of
    its own, every default and every dimension is written out: a spec that leaves nothing to its source, and means the same on it.
    In JSON that is the resolved document, layer by layer, with its hash. With --code it is what it computes, as a listing.
    """
    if not code and (backend or device or dtype):
        raise ComposerError("--backend, --device and --dtype choose what runs: they need --code")
    if spec is None:
        if any((source is not None, fresh, settings, revision is not None, expanded, out is not None, code)):
            raise ComposerError("no spec is named: say which one to show; `compose show` alone lists the shipped ones")
        names = list(shipped_specs())
        _print(names, "\n".join(names), as_json=as_json)
        return
    if out is not None and (source is not None or fresh or not expanded):
        raise ComposerError("-o writes the specs of a sweep: it needs --expand, and goes without --from and --fresh")
    if code and expanded:
        from composer.commands.specs import CODE_OF_ONE

        raise ComposerError(CODE_OF_ONE)
    if code:
        found = composer.code(
            spec,
            source,
            fresh=fresh,
            overrides=settings or (),
            revision=revision,
            backend=backend or AUTO,
            device=device or "cpu",
            dtype=dtype,
        )
        _print([one.model_dump(mode="json") for one in found.heads], found.text, as_json=as_json)
        return
    if not expanded:
        one = composer.show(spec, source, fresh=fresh, overrides=settings or (), revision=revision)
        _print(_document(one), one.yaml, as_json=as_json)
        return
    specs = expand(spec, settings or ())
    if out is not None:
        files = _write(spec, specs, out)
        _print(files, "\n".join(files), as_json=as_json)
        return
    variants = {name: composer.show(one, source, fresh=fresh, revision=revision) for name, one in specs.items()}
    text = "---\n".join(one.yaml if one.hash else f"# {one.name}\n{one.yaml}" for one in variants.values())
    _print({name: _document(one) for name, one in variants.items()}, text, as_json=as_json)


def _print(document: Any, text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        print_document(text.removesuffix("\n"))


def _document(found: ShownSpec) -> dict[str, Any]:
    return found.document | ({"hash": found.hash} if found.hash else {})


def _write(sweep: str, specs: Mapping[str, Spec], folder: Path) -> list[str]:
    """One file a variant; none where one of them is there already."""
    files = {folder / f"{spec.name}.yaml": (name, spec) for name, spec in specs.items()}
    taken = [str(path) for path in files if path.exists()]
    if taken:
        raise ComposerError(f"{', '.join(taken)}: there already; choose another folder, or remove what stands there")
    if lost := lost_link(folder):
        raise ComposerError(f"{lost}; choose another folder, or remove it")
    with failing_as(ComposerError, f"{folder} cannot be written"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path, (name, spec) in files.items():
                text = to_yaml(spec.model_dump(mode="json", exclude_unset=True))
                write_whole(path, f"# The variant {name} of {sweep}.\n{text}", replace=False)
        except FileExistsError:
            raise ComposerError(f"{folder} holds one of them by now; choose another folder, or remove what stands there") from None
    return list(map(str, files))
