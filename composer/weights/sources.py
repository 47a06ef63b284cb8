"""A model named by its user: a folder here, or a repository on the Hub (``hub:OWNER/NAME`` says that it is one, and
``OWNER/NAME@REVISION`` which of its states)."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from composer.errors import SourceError, name_of
from composer.spec.loading import names_a_spec
from converters.bounded import lost_link
from converters.composed import ADAPTER_KEY
from converters.errors import ConverterError
from converters.hub import fetch
from converters.source import Described, Source, describe, open_source

HUB = "hub:"
"""Before a model's name on the Hub, where a folder might be meant."""
TAGGED = re.compile(rf"((?:{HUB})?[\w.-]+(?:/[\w.-]+)?)@(.+)")
"""A model of the Hub with its revision; no path, which begins with a slash, a tilde or ``./``."""
NEAR = 0.75
"""The least likeness, as difflib counts it, at which a message suggests another name."""


def open_model(reference: str | os.PathLike[str], revision: str | None = None) -> Source:
    """Opens a model to build from, fetching it if need be; a folder that exists here wins over the Hub.

    Headers are read and checked, weights are not. Raises ``SourceError``.
    """
    with _as_source_errors():
        place = _place(reference, revision)
        if isinstance(place, Path):
            return open_source(place)
        fetched, commit = fetch(*place)
        return replace(open_source(fetched), repo_id=place.repo_id, revision=place.revision, commit=commit)


def check_merged(source: Source) -> None:
    """Raises ``SourceError`` where adapters stand beside a model's weights: a reader of the weights alone would miss them."""
    if source.config.get(ADAPTER_KEY) is not None:
        raise SourceError(f"{source.folder} has adapters beside its weights. Merge them first: compose merge {source.folder}")


def describe_model(reference: str | os.PathLike[str], revision: str | None = None) -> Described:
    """Reads a model's ``config.json`` alone: enough to resolve a spec and to explain it. Raises ``SourceError``."""
    with _as_source_errors():
        place = _place(reference, revision)
        return describe(place if isinstance(place, Path) else fetch(*place, weights=False)[0])


def tokenizer_folder(reference: str | os.PathLike[str]) -> Path:
    """The folder of a tokenizer, or of a model with one, fetching its files if need be. Raises ``SourceError``."""
    with _as_source_errors():
        place = _place(reference, None)
        return place if isinstance(place, Path) else fetch(*place, weights=False, tokenizer=True)[0]


class _OnHub(NamedTuple):
    repo_id: str
    revision: str | None


def _place(reference: str | os.PathLike[str], revision: str | None) -> Path | _OnHub:
    """The folder, or the model of the Hub, with ``@REVISION`` taken off its name. Raises SourceError for the path of a folder that
    does not exist, for a spec, and for two revisions."""
    reference = name_of(reference)
    folder = Path(reference).expanduser()
    if not folder.is_dir():
        if names_a_spec(reference):
            raise SourceError(
                f"{reference} is a spec, and this is for models. Build it first: compose build {reference} --from SOURCE"
            )
        if tagged := TAGGED.fullmatch(reference):
            if revision is not None:
                raise SourceError(f"{reference!r} says a revision, and {revision!r} is another: leave one of them out.")
            return _place(*tagged.groups())
        if reference.startswith(HUB):
            return _OnHub(reference.removeprefix(HUB), revision)
        if lost := lost_link(folder):
            raise SourceError(f"{lost}; expected the folder of a model.")
        if folder.is_file():
            raise SourceError(f"{reference} is a file; expected the folder of a model. Name the one that it is in: {folder.parent}")
        meant = _meant(folder)
        inside = len(folder.parts) > 1 and folder.parent.is_dir()
        if meant is not None or inside:
            problem = f'there is no folder "{reference}"' + (f'; did you mean "{meant}"?' if meant else f" in {folder.parent}.")
            is_id = len(folder.parts) <= 2 and not (folder.is_absolute() or reference.startswith(("~", ".")))
            raise SourceError(f"{problem} A model of the Hub of that name is {HUB}{reference}." if is_id else problem)
        return _OnHub(reference, revision)
    if revision is not None:
        raise SourceError(f"A revision ({revision!r}) is for models from the Hub, and {reference!r} is a folder here.")
    return folder.resolve()


def _meant(folder: Path) -> Path | None:
    """The folder of a model whose path is nearly the same, name by name; None where there is none."""
    found = Path()
    for part in folder.parts:
        if not (found / part).is_dir():
            beside = [one.name for one in found.iterdir() if one.is_dir()] if os.access(found, os.R_OK) else []
            near = difflib.get_close_matches(part, beside, n=1, cutoff=NEAR)
            found /= near[0] if near else part
        else:
            found /= part
        if not found.is_dir():
            return None
    return found if (found / "config.json").is_file() else None


@contextmanager
def _as_source_errors() -> Iterator[None]:
    try:
        yield
    except ConverterError as error:
        raise SourceError(str(error)) from error
