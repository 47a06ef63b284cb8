"""``compose show``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
import yaml

from composer.api import resolve_spec
from composer.cli.code import print_code
from composer.cli.options import SPEC, Json, MaybeFrom, Revision, Set, complete_spec
from composer.cli.screen import print_json
from composer.errors import ComposerError
from composer.files import write_whole
from composer.graph.lowering import AUTO
from composer.spec.dimensions import Dimensions
from composer.spec.document import Spec
from composer.spec.loading import expand, load_spec
from composer.spec.locked import locked
from composer.spec.shipped import shipped_specs
from composer.weights.dimensions import dimensions
from composer.weights.sources import describe_model
from converters.bounded import lost_link
from converters.trunk import Dtype

WIDTH = 100
_LEAVES = 3
"""Mappings of at most so many plain values stand on one line."""


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
        bool, typer.Option("--code", help="With --from or --fresh: the program of each head, a line a step, with shapes and forms.")
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
    asked = {"--from": source is not None, "--fresh": fresh, "--set": settings, "--revision": revision is not None}
    asked |= {"--expand": expanded, "-o": out is not None, "--code": code}
    if not code and (backend or device or dtype):
        raise ComposerError("--backend, --device and --dtype choose what runs: they need --code")
    if spec is None:
        if any(asked.values()):
            raise ComposerError("no spec is named: say which one to show; `compose show` alone lists the shipped ones")
        _list_shipped(as_json)
        return
    _check(asked)
    on = "its own trunk" if fresh else source
    trunk = None if source is None else describe_model(source, revision).trunk
    size = None if trunk is None else dimensions(trunk)
    if code:
        kind = dtype or (trunk.dtype if trunk else "float32")
        resolved = resolve_spec(load_spec(spec, settings or ()), size)
        print_code(resolved, str(on), backend=backend or AUTO, device=device or "cpu", dtype=kind, as_json=as_json)
        return
    specs = expand(spec, settings or ()) if expanded else {}
    if not expanded:
        _print_one(load_spec(spec, settings or ()), on, size, as_json)
    elif out is not None:
        files = _write(spec, specs, out)
        if as_json:
            print_json(files)
        else:
            typer.echo("\n".join(files))
    elif as_json:
        print_json({name: _document(variant, on, size) for name, variant in specs.items()})
    else:
        typer.echo("---\n".join(_text(variant, on, size, named=True) for variant in specs.values()), nl=False)


def _check(asked: Mapping[str, Any]) -> None:
    """Whether options go together. asked: of each, whether it is there. Raises ComposerError."""
    on_something = asked["--from"] or asked["--fresh"]
    if asked["--from"] and asked["--fresh"]:
        raise ComposerError("a spec is resolved on a source (--from) or on a trunk of its own (--fresh), not both: leave one out")
    if asked["-o"] and (on_something or not asked["--expand"]):
        raise ComposerError("-o writes the specs of a sweep: it needs --expand, and goes without --from and --fresh")
    if asked["--code"] and (asked["--expand"] or not on_something):
        raise ComposerError("--code shows what one spec computes: it needs --from or --fresh, and goes without --expand")


def _list_shipped(as_json: bool) -> None:
    names = list(shipped_specs())
    if as_json:
        print_json(names)
    else:
        typer.echo("\n".join(names))


def _print_one(spec: Spec, on: str | None, size: Dimensions | None, as_json: bool) -> None:
    if as_json:
        print_json(_document(spec, on, size))
    else:
        typer.echo(_text(spec, on, size, named=False), nl=False)


def _document(spec: Spec, on: str | None, size: Dimensions | None) -> dict[str, Any]:
    """The spec as it is written, or, where it is shown on something, resolved, with its hash. size: None for its own trunk."""
    if on is None:
        return spec.model_dump(mode="json", exclude_unset=True)
    resolved = resolve_spec(spec, size)
    return resolved.model_dump(mode="json") | {"hash": resolved.hash}


def _text(spec: Spec, on: str | None, size: Dimensions | None, *, named: bool) -> str:
    """The same as YAML; the hash, and the name where there are several, in a comment above it."""
    document = _document(spec, on, size)
    found = document.pop("hash", None)
    document = document if found is None else locked(document)
    heading = f"# {spec.name} on {on}, resolved. Hash of what it means: {found}\n" if found else f"# {spec.name}\n"
    return (heading if found or named else "") + to_yaml(document)


def _write(sweep: str, specs: Mapping[str, Spec], folder: Path) -> list[str]:
    """One file a variant; none where one of them is there already."""
    files = {folder / f"{spec.name}.yaml": (name, spec) for name, spec in specs.items()}
    taken = [str(path) for path in files if path.exists()]
    if taken:
        raise ComposerError(f"{', '.join(taken)}: there already; choose another folder, or remove what stands there")
    if lost := lost_link(folder):
        raise ComposerError(f"{lost}; choose another folder, or remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, (name, spec) in files.items():
            text = to_yaml(spec.model_dump(mode="json", exclude_unset=True))
            write_whole(path, f"# The variant {name} of {sweep}.\n{text}", replace=False)
    except FileExistsError:
        raise ComposerError(f"{folder} holds one of them by now; choose another folder, or remove what stands there") from None
    except OSError as error:
        raise ComposerError(f"{folder} cannot be written: {error.strerror}") from None
    return list(map(str, files))


class _Dumper(yaml.SafeDumper):
    """Short mappings of plain values on one line; text that YAML 1.2 would read as a number is quoted."""

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> yaml.MappingNode:
        short = len(mapping) <= _LEAVES and all(map(_plain, mapping.values()))
        return super().represent_mapping(tag, mapping.items(), flow_style=short)

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        return super().represent_sequence(tag, sequence, flow_style=all(map(_plain, sequence)))

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


_Dumper.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"0o[0-7]+\Z"), ["0"])
_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?\Z"), list("-+.0123456789")
)


def to_yaml(document: dict[str, Any]) -> str:
    """The document as text that reads back as itself."""
    return yaml.dump(as_written(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDTH)


def as_written(value: Any) -> Any:
    """A part without keys as the bare word that it may be, any other with its kind and its name first."""
    if isinstance(value, dict):
        if value.keys() == {"kind"} and isinstance(value["kind"], str):
            return value["kind"]
        first = [key for key in ("kind", "name") if "kind" in value and key in value]
        return {key: as_written(value[key]) for key in dict.fromkeys((*first, *value))}
    return [as_written(item) for item in value] if isinstance(value, list) else value


def _plain(value: Any) -> bool:
    return not isinstance(value, dict | list)
