"""Licences of weights: the files and the fields of a model card that state one, wherever the weights are from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from converters.bounded import MOST_RECORD, is_text, read_text, within

CARD = "README.md"
"""The model card, whose front matter the Hub reads."""
LICENCE_KEYS = ("license", "license_name", "license_link")
"""The fields of a card's front matter for a licence."""
GGUF_KEYS: Mapping[str, str] = {
    "license": "general.license",
    "license_name": "general.license.name",
    "license_link": "general.license.link",
}
"""The keys of a GGUF file's metadata for these fields."""
MOST_FRONT_MATTER = 2**20
"""Characters at the start of a card in which its front matter ends."""
LONGEST_FIELD, MOST_LICENCES = 500, 20
"""Characters of a field, and licences of one model: those of published cards have a tenth as many."""

LicenceFields = Mapping[str, str | tuple[str, ...]]


def _in_any_case(pattern: str) -> str:
    """Return a pattern for names in capital letters, small letters, or both."""
    return re.sub("[a-z]", lambda letter: f"[{letter[0].upper()}{letter[0]}]", pattern)


LICENCE_FILES = tuple(
    _in_any_case(pattern)
    for pattern in (
        "*license*",
        "*licence*",
        "*notice*",
        "*use_policy*",
        "*acceptable_use*",
        "*terms_of_use*",
        "copying*",
        "copyright*",
        "patents*",
    )
)
"""Names of files that state terms for weights, in the folder of a model. Their kinds are those of ``is_of_text``."""
_FRONT_MATTER = re.compile(r"\ufeff?---[ \t]*\n(.*?\n)---[ \t]*(?:\n|$)", re.DOTALL)
_FIELD = re.compile(rf"^({'|'.join(LICENCE_KEYS)})[ \t]*:.*(?:\n(?:[ \t]+|- ?).*)*", re.MULTILINE)


def is_of_text(name: str) -> bool:
    """Whether a file with terms is a document by its name, as ``LICENSE-2.0`` and ``LICENSE.md`` are; code and weights are none."""
    suffix = Path(name).suffix[1:].lower()
    return suffix in ("txt", "md", "rst", "html", "htm", "pdf", "license", "licence") or not suffix[:1].isalpha()


def read_card_licence(folder: Path) -> LicenceFields:
    """Return the fields for a licence in the card of a folder; none without a card, or in a card that cannot be read."""
    try:
        front = _FRONT_MATTER.match(read_text(within(folder, CARD), MOST_RECORD)[:MOST_FRONT_MATTER])
    except (OSError, ValueError):
        return {}
    return {} if front is None else _read_fields(front[1])


def _read_fields(front_matter: str) -> LicenceFields:
    """Return the first of each field for a licence. Only their lines are parsed, so that other keys may be wrong, or long."""
    fields: dict[str, str | tuple[str, ...] | None] = {}
    for entry in _FIELD.finditer(front_matter):
        try:
            if entry[1] not in fields and len(entry[0]) <= LONGEST_FIELD * MOST_LICENCES:
                root = yaml.compose(entry[0], Loader=yaml.SafeLoader)  # a value of another tag is not constructed
                fields[entry[1]] = check_fields({entry[1]: _texts(root.value[0][1])}).get(entry[1])
        except (yaml.YAMLError, ValueError, OverflowError, RecursionError):  # ValueError, OverflowError: an escape of no character
            fields[entry[1]] = None
    return {key: value for key, value in fields.items() if value is not None}


def _texts(node: yaml.Node) -> object:
    """Return a text, or a list of texts, with None for each value that is none."""
    if isinstance(node, yaml.SequenceNode):
        return [_texts(item) for item in node.value]
    return node.value if node.tag == "tag:yaml.org,2002:str" else None


def check_fields(document: Mapping[str, object]) -> LicenceFields:
    """Return the fields for a licence that are texts, or lists of texts."""
    fields: dict[str, str | tuple[str, ...]] = {}
    for key in LICENCE_KEYS:
        value = document.get(key)
        if isinstance(value, str) and _is_field(value):
            fields[key] = value
        elif isinstance(value, list) and 0 < len(value) <= MOST_LICENCES:
            texts = tuple(text for text in value if isinstance(text, str) and _is_field(text))
            fields |= {key: texts} if len(texts) == len(value) else {}
    return fields


def _is_field(value: str) -> bool:
    return 0 < len(value.strip()) <= LONGEST_FIELD and is_text(value) and value.isprintable()
