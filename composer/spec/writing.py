"""A document as YAML that people read and that reads back as itself."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

WIDTH = 100
_LEAVES = 3
"""Mappings with at most this many plain values are written on one line."""


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
    """Return the document as text that reads back as itself."""
    return yaml.dump(as_written(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=WIDTH)


def as_written(value: Any) -> Any:
    """Return a part without keys as the bare word that it may be, any other with its kind and its name first."""
    if isinstance(value, dict):
        if value.keys() == {"kind"} and isinstance(value["kind"], str):
            return value["kind"]
        first = [key for key in ("kind", "name") if "kind" in value and key in value]
        return {key: as_written(value[key]) for key in dict.fromkeys((*first, *value))}
    return [as_written(item) for item in value] if isinstance(value, list | tuple) else value


def format_value(value: Any, *, bare: bool = True) -> str:
    """Return a value on one line, as one would write it. bare: a part without keys is its word alone."""
    value = as_written(value) if bare else value
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {format_value(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(format_value(item) for item in value)}]"
    return value if isinstance(value, str) else json.dumps(value)


def _plain(value: Any) -> bool:
    return not isinstance(value, dict | list)
