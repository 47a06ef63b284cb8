"""A model named by its user: a folder here, or a repository on the Hub (``hub:OWNER/NAME`` says that it is one, and
``OWNER/NAME@REVISION`` which of its states), or a GGUF file (a path, or ``hub:OWNER/NAME/FILE.gguf``).

Quantised weights are unpacked into a folder of the cache, which is opened in their place.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from composer.errors import SourceError, name_of
from composer.spec.loading import names_a_spec
from composer.weights.packed import find_packed
from composer.weights.unpacking import DTYPE, open_unpacked
from converters.bounded import lost_link
from converters.composed import ADAPTER_KEY
from converters.errors import ConverterError
from converters.gguf import GGUF, is_gguf
from converters.hub import HUB, fetch, fetch_recorded
from converters.source import Described, Source, describe, open_source
from converters.trunk import Dtype

TAGGED = re.compile(rf"((?:{HUB})?[\w.-]+(?:/[\w.-]+)?|{HUB}[\w.-]+(?:/[\w.-]+)+{re.escape(GGUF)})@(.+)", re.IGNORECASE)
"""A model of the Hub, or a GGUF file in one, with its revision; no path, which begins with a slash, a tilde or ``./``."""
FILE_ON_HUB = re.compile(rf"([\w.-]+/[\w.-]+)/(.+{re.escape(GGUF)})", re.IGNORECASE)
"""A GGUF file in a model of the Hub."""
NEAR = 0.75
"""The least likeness, as difflib counts it, at which a message suggests another name."""


def open_model(reference: str | os.PathLike[str], revision: str | None = None, dtype: Dtype | None = None) -> Source:
    """Opens a model to build from, fetching it if need be; a folder that exists here wins over the Hub.

    Headers are read and checked, weights are not, unless they are quantised: then they are unpacked first. dtype: of unpacked
    weights; None: bfloat16. Weights that are not quantised stay as they are stored. Raises ``SourceError`` and ``BuildError``.
    """
    with _as_source_errors():
        place = _place(reference, revision)
        if isinstance(place, Path):
            return _open(place, dtype)
        path, commit = _fetch(place)
        return replace(_open(path, dtype), repo_id=place.repo_id, revision=place.revision, commit=commit)


def _open(path: Path, dtype: Dtype | None) -> Source:
    """Open a folder, or the unpacked model of a GGUF file or of a quantised folder."""
    packed = find_packed(path)
    return open_source(path) if packed is None else open_unpacked(packed, dtype)


def check_merged(source: Source) -> None:
    """Raises ``SourceError`` where adapters stand beside a model's weights: a reader of the weights alone would miss them."""
    if source.config.get(ADAPTER_KEY) is not None:
        raise SourceError(f"{source.folder} has adapters beside its weights. Merge them first: compose merge {source.folder}")


def describe_model(reference: str | os.PathLike[str], revision: str | None = None, dtype: Dtype | None = None) -> Described:
    """Reads a model's ``config.json``, or the metadata of a GGUF file, alone: enough to resolve a spec and to explain it. Raises
    ``SourceError``.

    dtype: of weights that are quantised, as ``open_model`` has it.
    """
    with _as_source_errors():
        place = _place(reference, revision)
        path = place if isinstance(place, Path) else _fetch(place, weights=False)[0]
        packed = find_packed(path)
        return describe(path) if packed is None else packed.describe(dtype or DTYPE)


def tokenizer_folder(reference: str | os.PathLike[str]) -> Path:
    """The folder of a tokenizer, or of a model with one, fetching its files if need be. Raises ``SourceError``."""
    with _as_source_errors():
        place = _place(reference, None)
        if isinstance(place, Path) and place.is_dir():
            return place
        if isinstance(place, Path) or place.file is not None:
            raise SourceError(
                f"{name_of(reference)} is a GGUF file; expected a folder with a tokenizer, or a model of the Hub. Make such a "
                f"folder first: `compose build softmax --from {name_of(reference)} -o FOLDER`"
            )
        return fetch(place.repo_id, place.revision, weights=False, tokenizer=True)[0]


def local_folder(reference: str | os.PathLike[str], *, whole: bool = False) -> Path:
    """The folder of a built model. ``hub:OWNER/NAME[@REVISION]`` is fetched first. Raises ``SourceError``.

    whole: fetch all files that its record names. Left out, what loads and trains it.
    """
    with _as_source_errors():
        if not name_of(reference).startswith(HUB):
            return Path(name_of(reference)).expanduser()
        place = _place(reference, None)
        if not isinstance(place, _OnHub) or place.file is not None:
            raise SourceError(f"{name_of(reference)} is no built model; expected a folder, or {HUB}OWNER/NAME[@REVISION].")
        return fetch_recorded(place.repo_id, place.revision) if whole else fetch(place.repo_id, place.revision)[0]


def plain_name(reference: str | os.PathLike[str]) -> str:
    """The last part of a model's name: of its folder, or of its name on the Hub, without the revision."""
    if name_of(reference).startswith(HUB):
        return name_of(reference).partition("@")[0].rpartition("/")[2].removeprefix(HUB)
    return Path(name_of(reference)).expanduser().resolve().name


class _OnHub(NamedTuple):
    """A model of the Hub. file: a GGUF file in it."""

    repo_id: str
    revision: str | None
    file: str | None = None


def _fetch(place: _OnHub, **options: Any) -> tuple[Path, str | None]:
    """The local folder of a model of the Hub, or the local path of its GGUF file, and the commit. options: of ``fetch``, for a
    folder."""
    if place.file is None:
        return fetch(place.repo_id, place.revision, **options)
    folder, commit = fetch(place.repo_id, place.revision, file=place.file)
    return folder / place.file, commit


def _place(reference: str | os.PathLike[str], revision: str | None) -> Path | _OnHub:
    """The folder, or the model of the Hub, with ``@REVISION`` taken off its name. Raises SourceError for the path of a folder that
    does not exist, for a spec, and for two revisions."""
    reference = name_of(reference)
    folder = Path(reference).expanduser()
    if not folder.is_dir():
        if names_a_spec(reference):
            raise SourceError(
                f"{reference} is a spec, and this is for models. Build it first: `compose build {reference} --from SOURCE`"
            )
        if tagged := TAGGED.fullmatch(reference):
            if revision is not None:
                raise SourceError(f"{reference!r} says a revision, and {revision!r} is another: leave one of them out.")
            return _place(*tagged.groups())
        if reference.startswith(HUB):
            named = reference.removeprefix(HUB)
            file = FILE_ON_HUB.fullmatch(named)
            return _OnHub(named, revision) if file is None else _OnHub(file[1], revision, file[2])
        if lost := lost_link(folder):
            raise SourceError(f"{lost}; expected the folder of a model.")
        if is_gguf(reference):
            return _gguf_file(folder, reference, revision)
        if folder.is_file():
            raise SourceError(
                f"{reference} is a file; expected the folder of a model, or a file *{GGUF}. Name the folder that it is in: "
                f"{folder.parent}"
            )
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


def _gguf_file(file: Path, reference: str, revision: str | None) -> Path:
    """The path of a GGUF file. Raises SourceError where there is none, and for a revision."""
    if not os.path.lexists(file):
        near = difflib.get_close_matches(file.name, _names_beside(file), n=1, cutoff=NEAR)
        suggestion = f'; did you mean "{file.with_name(near[0])}"?' if near else "."
        raise SourceError(f'there is no file "{reference}"{suggestion} A file in a model of the Hub is {HUB}OWNER/NAME/FILE{GGUF}.')
    if revision is not None:
        raise SourceError(f"A revision ({revision!r}) is for models from the Hub, and {reference!r} is a file here.")
    return file.absolute()


def _names_beside(file: Path) -> list[str]:
    try:
        return os.listdir(file.parent)
    except OSError:
        return []


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
