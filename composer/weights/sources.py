"""A model named by its user: a folder here, or a repository on the Hub."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from composer.errors import SourceError
from converters.bounded import lost_link
from converters.composed import ADAPTER_KEY
from converters.errors import ConverterError
from converters.hub import fetch
from converters.source import Described, Source, describe, open_source


def open_model(reference: str | os.PathLike[str], revision: str | None = None) -> Source:
    """Opens a model to build from, fetching it if need be; a folder that exists here wins over the Hub.

    Headers are read and checked, weights are not. Raises ``SourceError``.
    """
    with _told_to_the_user():
        folder = _folder(reference, revision)
        if folder is not None:
            return open_source(folder)
        fetched, commit = fetch(str(reference), revision)
        return replace(open_source(fetched), repo_id=str(reference), revision=revision, commit=commit)


def check_merged(source: Source) -> None:
    """Whether its weights are all of it. Raises ``SourceError`` where adapters stand beside them, which a reader would miss."""
    if source.config.get(ADAPTER_KEY) is not None:
        raise SourceError(f"{source.folder} has adapters beside its weights. Merge them first: compose merge {source.folder}")


def describe_model(reference: str | os.PathLike[str], revision: str | None = None) -> Described:
    """Reads a model's ``config.json`` alone: enough to resolve a spec and to explain it. Raises ``SourceError``."""
    with _told_to_the_user():
        folder = _folder(reference, revision)
        return describe(folder if folder is not None else fetch(str(reference), revision, weights=False)[0])


def tokenizer_folder(reference: str | os.PathLike[str]) -> Path:
    """The folder of a tokenizer, or of a model with one, fetching its files if need be. Raises ``SourceError``."""
    with _told_to_the_user():
        folder = _folder(reference, None)
        return folder if folder is not None else fetch(str(reference), weights=False, tokenizer=True)[0]


def _folder(reference: str | os.PathLike[str], revision: str | None) -> Path | None:
    folder = Path(reference).expanduser()
    if not folder.is_dir():
        if lost := lost_link(folder):
            raise SourceError(f"{lost}; expected the folder of a model.")
        return None
    if revision is not None:
        raise SourceError(f"A revision ({revision!r}) is for models from the Hub, and {str(reference)!r} is a folder here.")
    return folder.resolve()


@contextmanager
def _told_to_the_user() -> Iterator[None]:
    try:
        yield
    except ConverterError as error:
        raise SourceError(str(error)) from error
