"""Messages of the mistakes in a document: the place, the value, what was expected, and the most similar name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from blocks.external_parts import is_outside, remedy
from blocks.part import FieldError, FieldPath, field_docs
from composer.errors import MOST_SHOWN, SpecError
from composer.spec.fields import Alternatives, choices, fields, is_model, limits, parts, under
from composer.spec.places import Place, SpecNode, at, brief, nearest
from composer.spec.writing import format_value

PATTERNS = {
    r"^[a-z][a-z0-9_-]*$": "a name (lower-case letters, digits, - and _, a letter first)",
    r"^[a-z][a-z0-9_]*$": "a name (lower-case letters, digits and _, a letter first)",
    r"^[a-z0-9][a-z0-9_-]*$": "the end of a name (lower-case letters, digits, - and _), in quotes where it is a number",
    r"^[^\s=.\[\]]+(\.[^\s=.\[\]]+|\[-?\d+\])*$": "a path such as head.memory.0.size",
    r"^(all|(-?[0-9]{1,9})?:(-?[0-9]{1,9})?(:-?[0-9]{1,9})?)$": "`all` or a range such as 0:8:2",
    r"^[1-9][0-9]{0,8}/[1-9][0-9]{0,8}$": "a share such as 1/4",
    r"^\s*[a-z][a-z0-9_]*\s*->\s*[a-z][a-z0-9_]*\s*$": "an edge such as `pairs -> window`",
}
"""The patterns of the schemas in plain words."""
NUMBERS = ("int_type", "float_type")
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?")


@dataclass(frozen=True, eq=False)
class Fault:
    """One of pydantic's errors, on the document.

    path: without the union tags of pydantic's ``loc``. here: the schema's alternatives at the path; around: those of its parent;
    above: those of the parent's own parents, the document first.
    fork: steps of the path above the first union without a ``kind``, each of whose alternatives has errors; None without one.
    """

    error: Any
    path: FieldPath
    here: Alternatives
    around: Alternatives
    above: tuple[Alternatives, ...]
    fork: int | None
    of_key: bool

    @property
    def type(self) -> str:
        return self.error["type"]

    @property
    def value(self) -> Any:
        return self.error["input"]

    @property
    def context(self) -> dict[str, Any]:
        return self.error.get("ctx", {})

    @property
    def key(self) -> str:
        return str(self.path[-1]) if self.path else ""

    @property
    def description(self) -> str:
        """The docstring of the field."""
        docs = [field_docs(model).get(self.key, "") for model in self.around if is_model(model) and self.key in model.model_fields]
        return " ".join(docs[-1].replace("``", "`").split()) if docs else ""


def spec_error(error: ValidationError, document: SpecNode, model: type[BaseModel]) -> SpecError:
    """Return all that is wrong, one line each, in the order of the document."""
    faults = [_fault(details, document, model) for details in error.errors(include_url=False)]
    placed = [(_place(fault, document), fault, others) for fault, others in _settle(faults)]
    placed.sort(key=lambda entry: (entry[0].file, entry[0].line or 0, entry[0].column or 0) if entry[0] else ("", 0, 0))
    lines = [at(place, fault.path, _message(fault, others)) for place, fault, others in placed[:MOST_SHOWN]]
    more = [f"and {len(placed) - MOST_SHOWN:,} more mistakes"] if len(placed) > MOST_SHOWN else []
    return SpecError(*lines, *more)


def _fault(error: Any, document: SpecNode, model: type[BaseModel]) -> Fault:
    """Walk ``loc`` through schema and document: tags of parts narrow, labels of other unions are skipped."""
    path: FieldPath = ()
    here: Alternatives = (model,)
    around: Alternatives = ()
    above: tuple[Alternatives, ...] = ()
    fork, of_key = None, False
    node: SpecNode | None = document
    loc = error["loc"]
    for number, step in enumerate(loc):
        role_parts = parts(here)
        last = number == len(loc) - 1
        child = node.child(step) if node else None
        if step in role_parts:
            here = (role_parts[step],)
        elif step == "[key]":
            of_key = True
        elif child is not None or isinstance(step, int) or (last and error["type"] in ("missing", "extra_forbidden")):
            path, above, around, here, node = (*path, step), (*above, around), here, under(here, step), child
        elif step == "kind":  # of a bare word
            path, above, around, here = (*path, step), (*above, around), here, under(here, step)
        elif fork is None:
            fork = len(path)
    if error["type"] in ("union_tag_invalid", "union_tag_not_found"):
        path = (*path, "kind")
    reason = error.get("ctx", {}).get("error")
    if isinstance(reason, FieldError):
        path = (*path, *reason.path)
    return Fault(error, path, here, around, above[1:], fork, of_key)


def _settle(faults: list[Fault]) -> Iterator[tuple[Fault, list[Fault]]]:
    """Yield the faults to report, each with those of its union's other alternatives, and without those that follow from another
    fault."""
    deepest: dict[FieldPath, int] = {}
    beside: dict[tuple[FieldPath, FieldPath], list[Fault]] = {}
    for fault in faults:
        if fault.fork is not None:
            fork = fault.path[: fault.fork]
            deepest[fork] = max(deepest.get(fork, 0), len(fault.path))
            beside.setdefault((fork, fault.path), []).append(fault)
    reported: set[Fault] = set()
    for fault in faults:
        if fault.type == "too_short" and len(fault.value) >= fault.context["min_length"]:
            continue  # the items of this value have their own faults
        fork = fault.path[: fault.fork]
        if fault.fork is None:
            yield fault, []
        elif len(fault.path) == deepest[fork] and fault not in reported:
            others = [other for other in beside[fork, fault.path] if other is not fault]
            reported.update(others)
            yield fault, others


def _place(fault: Fault, document: SpecNode) -> Place | None:
    node, key = document, False
    for step in fault.path:
        child = node.child(step)
        if child is None:
            break
        node, key = child, True
    if key and (fault.of_key or fault.type == "extra_forbidden"):
        return node.key or node.place
    return node.start


def _message(fault: Fault, others: list[Fault]) -> str:
    if fault.type == "literal_error" and fault.key == "kind" and is_outside(fault.value):
        return unregistered_message(fault.value, choices(fault.here))
    if fault.type in _WHOLE:
        return _WHOLE[fault.type](fault)
    if fault.type in ("value_error", "assertion_error"):
        return str(fault.context["error"])
    *expectations, last = dict.fromkeys(_expectation(alternative) for alternative in (fault, *others))
    expectations = [text.replace('" or "', '", "') for text in expectations]
    wanted = f"{', '.join(expectations)} or {last}" if expectations else last
    if fault.value is None:
        return f"null, and nothing is inherited that it could remove; expected {wanted}, or leave the key out"
    hint = nearest(fault.value, choices(fault.here)) or _quote_hint(fault) if isinstance(fault.value, str) else ""
    if not others and fault.type == "string_type" and isinstance(fault.value, int | float):
        hint = "; put it in quotes"  # a number that was meant as text, such as 2410.10254
    if fault.type in ("tuple_type", "list_type") and not others:
        hint = _as_list(fault.value)
    if others and not hint and fault.description:
        hint = f". {fault.description}"
    return f"expected {wanted}, got {brief(fault.value)}{hint}"


def unknown_key_message(path: FieldPath, around: Alternatives, above: tuple[Alternatives, ...] = ()) -> str:
    """Return the message for an unknown key, with the place where it belongs, or the most similar key. around: the alternatives of
    its parent; above: those of the parent's own parents, the document first."""
    key, extends = str(path[-1]), ["extends"] if len(path) == 1 or (len(path) == 3 and path[0] == "heads") else []
    keys = sorted([*fields(around), *extends], key=lambda name: name != "kind")
    outer = [step for step, alternatives in zip(path, above, strict=False) if key in fields(alternatives) and step != key]
    guess = f"; it belongs beside {brief(outer[-1])}: it is indented too far." if outer else nearest(key, keys)
    if not guess:
        homes = [name for name in keys if key in fields(under(around, name))]
        guess = f'; it belongs under "{homes[0]}".' if homes else "."
    return f"unknown key {brief(key)}{guess} Known keys: {', '.join(keys)}"


def _missing(fault: Fault) -> str:
    return f"missing. {fault.description}" if fault.description else "missing"


def _unknown_kind_message(fault: Fault) -> str:
    kinds = list(parts(fault.here))
    tag = fault.value.get("kind") if isinstance(fault.value, dict) else fault.value
    if is_outside(tag):
        return unregistered_message(tag, kinds)
    return f"unknown kind {brief(tag)}{nearest(tag, kinds) or '.'} Known kinds: {', '.join(kinds)}"


def unregistered_message(kind: str, kinds: Iterable[str] = ()) -> str:
    """Return the message for a part from outside that is not registered. kinds: the kinds of its role."""
    guess = nearest(kind, [name for name in kinds if is_outside(name)]) or "."
    return f"the part {brief(kind)} is not registered{guess} {remedy(kind)}"


def _no_kind(fault: Fault) -> str:
    models, mapping = parts(fault.here), fault.value if isinstance(fault.value, dict) else {}
    meant = [key for key in mapping if key in models]
    if len(meant) == 1:
        inside = mapping[meant[0]] if isinstance(mapping[meant[0]], dict) else {}
        others = {key: value for key, value in mapping.items() if key != meant[0]}
        return f"missing; write {format_value({'kind': meant[0], **inside, **others}, bare=False)}"
    having = [kind for kind, model in models.items() if mapping and mapping.keys() <= model.model_fields.keys()]
    those = f" Those with {' and '.join(mapping)}: {', '.join(having)}." if having and len(having) < len(models) else ""
    return f"missing.{those} Known kinds: {', '.join(models)}"


def _as_list(value: Any) -> str:
    """Return a single value, written as a list of one."""
    if isinstance(value, dict):
        return "; begin each of its items with a dash, as in `- kind: …`" if "kind" in value else "; begin each item with a dash"
    return f"; write [{value}]" if isinstance(value, str) and value.isidentifier() else ""


_WHOLE: dict[str, Callable[[Fault], str]] = {
    "extra_forbidden": lambda fault: unknown_key_message(fault.path, fault.around, fault.above),
    "missing": _missing,
    "union_tag_invalid": _unknown_kind_message,
    "union_tag_not_found": _no_kind,
}


def _expectation(fault: Fault) -> str:
    """What was expected, in words that follow ``expected``."""
    words = _EXPECTED.get(fault.type)
    if words is None:
        return fault.error["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    return words(fault) if callable(words) else words.format(**fault.context).replace(" 0.0", " 0")


def _mapping(fault: Fault) -> str:
    kinds = list(parts(fault.here))
    if kinds:
        return f"a part ({', '.join(kinds)}) or a mapping with its `kind`"
    keys = ", ".join(name for model in fault.here if is_model(model) for name in model.model_fields)
    return f"a mapping with the keys {keys}" if keys else "a mapping"


def _one_of(fault: Fault) -> str:
    return fault.context["expected"].replace("'", '"')


def _bounds_in_words(fault: Fault) -> str:
    """Return the bounds of a number; both of them if the place accepts other types than numbers, too."""
    field = fields(fault.around).get(fault.key) if fault.fork is not None else None
    bounds = limits(field.annotation) if field is not None else {}
    if fault.fork is None or len(bounds) < 2:
        bounds = {name: bound for name, bound in fault.context.items() if name in _BOUNDS}
    return "a number " + " and ".join(f"{_BOUNDS[name]} {_short(bound)}" for name, bound in bounds.items())


def _short(bound: float) -> str:
    """1, not 1.0; whole numbers with all of their digits."""
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def _fitting(fault: Fault) -> str:
    pattern = fault.context["pattern"]
    return PATTERNS.get(pattern, f"text that fits {pattern}")


def _quote_hint(fault: Fault) -> str:
    """Return a number in quotes, or with underscores as in Python, is text in YAML 1.2."""
    text = fault.value.replace("_", "")
    return f"; write {text}" if fault.type in NUMBERS and _NUMBER.fullmatch(text) else ""


_BOUNDS = {"gt": "greater than", "ge": "of at least", "lt": "less than", "le": "of at most"}
_EXPECTED: dict[str, str | Callable[[Fault], str]] = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "string_pattern_mismatch": _fitting,
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
    "literal_error": _one_of,
    "greater_than": _bounds_in_words,
    "greater_than_equal": _bounds_in_words,
    "less_than": _bounds_in_words,
    "less_than_equal": _bounds_in_words,
    "multiple_of": "a multiple of {multiple_of}",
    "tuple_type": "a list",
    "list_type": "a list",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "dict_type": _mapping,
    "model_type": _mapping,
    "model_attributes_type": _mapping,
}
