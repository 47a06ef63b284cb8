"""The JSON schema of a spec as users write it: bare words for parts, ``extends``, and null to remove a value. ``$defs`` has two
versions of a mapping: ``Rope`` is complete; ``Rope.over`` extends a parent, so it requires nothing and accepts null. Lists are
replaced, so their items are complete in both. ``HeadSpec.named`` is a head that may extend another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from blocks.part import field_docs
from composer.spec.document import Spec
from composer.spec.inherit import OWN

Schema = dict[str, Any]

OVER, NAMED = ".over", ".named"
_AROUND = ("title", "description", "default")
_EXTENDS = {
    "type": "string",
    "description": "The spec that this one extends: a file, relative to this one, or the name of a shipped spec.",
}
_EXTENDS_HEAD = {"type": "string", "description": "The head that this one extends: `head`, or another one of `heads`."}
_HEAD = "#/$defs/HeadSpec"
_NAMED_HEADS = {
    _HEAD: {"if": {"required": ["extends"]}, "then": {"$ref": f"{_HEAD}{NAMED}"}, "else": {"$ref": _HEAD}},
    f"{_HEAD}{OVER}": {"$ref": f"{_HEAD}{NAMED}"},
}
"""How the heads of a spec's ``heads`` are read, by how ``head`` is."""


class _Described(GenerateJsonSchema):
    """Titles and descriptions as the catalogue has them; no titles made of field names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_schema(self, schema: Any) -> Schema:
        model, part_schema = schema["cls"], super().model_schema(schema)
        for name, text in field_docs(model).items():
            part_schema["properties"].get(name, {}).setdefault("description", text)
        if hasattr(model, "equation"):
            part_schema["title"] = f"{model.role} {model.model_fields['kind'].default}"
            part_schema["description"] = f"{part_schema.get('description', '')}\n\n{model.equation}\n\n{model.source}".strip()
        return part_schema


def json_schema() -> Schema:
    """JSON Schema draft 7, for editors: ``# yaml-language-server: $schema=…``."""
    spec = Spec.model_json_schema(schema_generator=_Described)
    definitions: dict[str, Schema] = {**spec.pop("$defs"), "Spec": spec}
    spec["properties"] = {"compose": spec["properties"].pop("compose"), "extends": _EXTENDS, **spec["properties"]}
    for union in list(_inside(definitions)):
        for option in union["oneOf"] if "discriminator" in union else ():
            part = definitions[_name(option)]
            part["required"] = ["kind", *(key for key in part.get("required", ()) if key != "kind")]
    written: dict[str, Schema] = {}
    wanted = ["Spec", f"Spec{OVER}"]
    while wanted:
        name = wanted.pop()
        base = name.removesuffix(OVER).removesuffix(NAMED)
        written[name] = _mapping(definitions[base], definitions, over=name != base)
        if name.endswith(NAMED):
            written[name]["properties"] = {"extends": _EXTENDS_HEAD, **written[name]["properties"]}
        names = {_name(node) for node in _inside(written[name]) if "$ref" in node}
        wanted += names - written.keys() - set(wanted)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A spec of Composer",
        "description": spec.pop("description"),
        "if": {"required": ["extends"]},
        "then": {"$ref": f"#/$defs/Spec{OVER}"},
        "else": {"$ref": "#/$defs/Spec"},
        "$defs": dict(sorted(written.items())),
    }


def _mapping(schema: Schema, definitions: dict[str, Schema], over: bool) -> Schema:
    """Return the schema of a model in one of the two readings."""
    own_keys = (*OWN, "extends", "kind")
    properties = {
        key: _value(value, definitions, over, null=over and key not in own_keys) for key, value in schema["properties"].items()
    }
    required = [key for key in schema.get("required", ()) if not over or key in OWN]
    return {**schema, "properties": properties, "required": required}


def _value(schema: Schema, definitions: dict[str, Schema], over: bool, null: bool = False) -> Schema:
    """Return the schema of a value. over: it merges with a parent's; null: that one may be removed."""
    around = {key: schema[key] for key in _AROUND if key in schema}
    constraints = {key: value for key, value in schema.items() if key not in _AROUND}
    options = [dict(option) for option in constraints.get("anyOf", [constraints])]
    alternatives = [alternative for option in options for alternative in _option(option, definitions, over)]
    if null and {"type": "null"} not in alternatives:
        alternatives.append({"type": "null"})
    return {**around, **(alternatives[0] if len(alternatives) == 1 and "$ref" not in alternatives[0] else {"anyOf": alternatives})}


def _option(schema: Schema, definitions: dict[str, Schema], over: bool) -> Iterator[Schema]:
    """Yield the alternatives that one of a value's alternatives is written as."""
    references = schema.get("oneOf", [schema]) if "discriminator" in schema or "$ref" in schema else []
    if references:
        words = [word for option in references for word in _words(definitions[_name(option)], over)]
        if words:
            yield {"enum": words}
        for option in references:
            yield {"$ref": f"#/$defs/{_name(option)}{OVER if over else ''}"}
        return
    schema = dict(schema)
    if "items" in schema:
        schema["items"] = _value(schema["items"], definitions, over=False)
    if "patternProperties" in schema:
        values = schema["patternProperties"].items()
        schema["patternProperties"] = {key: _under_any_name(_value(value, definitions, over, null=over)) for key, value in values}
        schema["additionalProperties"] = False
    yield schema


def _under_any_name(value: Schema) -> Schema:
    """Return a value under any name: a head may extend another one there."""
    options = [_NAMED_HEADS.get(option.get("$ref", ""), option) for option in value.get("anyOf", ())]
    return {**value, "anyOf": options} if options else value


def _words(part: Schema, over: bool) -> list[str]:
    """Return the bare words for a part: those whose other keys may be left out, or may be inherited."""
    kind = part["properties"].get("kind", {}).get("const")
    return [kind] if kind and (over or set(part.get("required", ())) <= {"kind"}) else []


def _name(reference: Schema) -> str:
    return reference["$ref"].rpartition("/")[2]


def _inside(node: Any) -> Iterator[Schema]:
    """Yield every mapping inside, itself included."""
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _inside(child)
