"""``compose show``."""

from __future__ import annotations

import re
from typing import Any

import typer
import yaml

from composer.api import resolve_spec
from composer.build.dimensions import dimensions
from composer.build.sources import describe_model
from composer.cli.options import Json, MaybeFrom, Revision, Set, SpecName
from composer.cli.screen import print_json
from composer.spec.loading import load_spec

WIDTH = 100
_LEAVES = 3
"""Mappings of at most so many plain values stand on one line."""


def show(spec: SpecName, source: MaybeFrom = None, settings: Set = None, revision: Revision = None, as_json: Json = False) -> None:
    """Print a spec as YAML, after `extends` and --set.

    What it prints is a spec that says the same by itself. With --from it is the resolved document: every default and every
    dimension of that source, layer by layer, and in JSON its hash.
    """
    loaded = load_spec(spec, settings or ())
    if source is None:
        _print(loaded.model_dump(mode="json", exclude_unset=True), as_json)
        return
    resolved = resolve_spec(loaded, dimensions(describe_model(source, revision).trunk))
    document = resolved.model_dump(mode="json")
    if as_json:
        document["hash"] = resolved.hash
    else:
        typer.echo(f"# {loaded.name} on {source}, resolved. Hash of what it means: {resolved.hash}")
    _print(document, as_json)


def _print(document: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        typer.echo(to_yaml(document), nl=False)


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
    return yaml.dump(_as_written(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDTH)


def _as_written(value: Any) -> Any:
    """A part without keys as the bare word that it may be, any other with its kind and its name first."""
    if isinstance(value, dict):
        if value.keys() == {"kind"} and isinstance(value["kind"], str):
            return value["kind"]
        first = [key for key in ("kind", "name") if "kind" in value and key in value]
        return {key: _as_written(value[key]) for key in dict.fromkeys((*first, *value))}
    return [_as_written(item) for item in value] if isinstance(value, list) else value


def _plain(value: Any) -> bool:
    return not isinstance(value, dict | list)
