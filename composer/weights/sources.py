"""Models and tokenizers that users name: a folder, a repository on the Hub, or a GGUF file.

``hub:OWNER/NAME`` is always a repository, ``OWNER/NAME@REVISION`` names one of its states, and a GGUF file is a path or
``hub:OWNER/NAME/FILE.gguf``. Quantised weights are unpacked into a folder of the cache, which is opened in their place. The name of
that folder follows from the contents of the quantised files, the dtype, and the versions of transformers and of this project, so
each is unpacked once. The cache may be removed at any time: built models have all of their files.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from blocks.part import Closed
from composer.errors import BuildError, SourceError, name_of
from composer.spec.loading import names_a_spec
from composer.system.files import failing_as, sha256
from composer.system.json_files import Digest, FileName
from composer.system.locks import exclusive_lock, inside
from composer.system.notices import inform
from composer.system.versions import versions_of
from composer.weights.adapted import Adapted, find_adapted
from composer.weights.output import whole_or_nothing, write_json
from composer.weights.packed import Packed, find_packed
from composer.weights.record import StoredFile, StoredUnpacked, describe_file, documents_in
from composer.weights.stream import digest_and_counts, not_finite
from composer.weights.text_decoder import TextDecoder, find_text_decoder
from converters.bounded import MOST_NAMES, lost_link_message, read_json_bytes
from converters.composed import ADAPTER_CONFIG, ADAPTER_KEY
from converters.errors import ConverterError
from converters.gguf import GGUF, is_gguf
from converters.hub import HUB, fetch, fetch_recorded
from converters.source import Described, Source, UnpackedFrom, describe, open_source, weight_files
from converters.trunk import Dtype

TAGGED = re.compile(rf"((?:{HUB})?[\w.-]+(?:/[\w.-]+)?|{HUB}[\w.-]+(?:/[\w.-]+)+{re.escape(GGUF)})@(.+)", re.IGNORECASE)
"""A model of the Hub, or a GGUF file in one, with its revision; no path, which begins with a slash, a tilde or ``./``."""
FILE_ON_HUB = re.compile(rf"([\w.-]+/[\w.-]+)/(.+{re.escape(GGUF)})", re.IGNORECASE)
"""A GGUF file in a model of the Hub."""
NEAR = 0.75
"""The least likeness, as difflib counts it, at which a message suggests another name."""
DTYPE: Dtype = "bfloat16"
"""The dtype of unpacked weights where the user names none."""
CACHE, FOLDER = "COMPOSER_CACHE", "unpacked"
"""The environment variable for the folder of the cache, and the folder of unpacked models in it."""
MANIFEST = "unpacked.json"
KEY_LENGTH = 16
PACKAGES = ("attention-composer", "transformers")
"""The packages whose versions decide what is unpacked."""


def open_model(
    reference: str | os.PathLike[str], revision: str | None = None, dtype: Dtype | None = None, *, text_only: bool = False
) -> Source:
    """Open a model to build from, fetching it if need be; a folder that exists here has precedence over the Hub.

    Headers are read and checked, weights are not, unless they are quantised: then they are unpacked first. dtype: of unpacked
    weights; None: bfloat16. Weights that are not quantised keep their dtype. text_only: open the text decoder of a model that reads
    images or sound, too. Raises ``SourceError`` and ``BuildError``.
    """
    with _as_source_errors():
        place = _place(reference, revision)
        if isinstance(place, Path):
            return _open(place, dtype, text_only)
        path, commit = _fetch(place)
        return replace(_open(path, dtype, text_only), repo_id=place.repo_id, revision=place.revision, commit=commit)


def _open(path: Path, dtype: Dtype | None, text_only: bool) -> Source:
    """Open a folder, the unpacked model of a GGUF file or of a quantised folder, the text decoder in a folder, or a model with the
    adapters in a folder."""
    packed = _text_decoder(path) if text_only else _find_written_anew(path)
    if packed is None:
        return open_source(path)
    return _open_unpacked(packed, dtype or packed.dtype)


def _find_written_anew(path: Path) -> Packed | Adapted | None:
    """Return the weights that must be written anew before they are opened: quantised ones, and those with adapters beside them."""
    return find_adapted(path, _open_base) or find_packed(path)


def _open_base(reference: str | os.PathLike[str], revision: str | None = None) -> Source:
    """Open the model that adapters belong to. Raises SourceError if it has adapters, too: such chains could have no end."""
    place = _place(reference, revision)
    path = place if isinstance(place, Path) else _fetch(place, weights=False)[0]
    if find_adapted(path, _open_base) is not None:
        raise SourceError(f"{name_of(reference)} has adapters, too. Merge those first.")
    return open_model(reference, revision)


def _text_decoder(path: Path) -> TextDecoder:
    if not path.is_dir():
        raise SourceError(f"--text-only: {path} is a GGUF file, which has a text decoder alone: leave --text-only out.")
    if find_adapted(path, _open_base) is not None:
        raise SourceError(f"--text-only: {path} has adapters ({ADAPTER_CONFIG}) of the whole model: merge those with PEFT first.")
    return find_text_decoder(path)


def check_merged(source: Source) -> None:
    """Raise ``SourceError`` if adapters are beside a model's weights: a reader of the weights alone would miss them."""
    if source.config.get(ADAPTER_KEY) is not None:
        raise SourceError(
            f"{source.folder} has adapters beside its weights. Merge them first: compose merge {shlex.quote(str(source.folder))}"
        )


def describe_model(
    reference: str | os.PathLike[str], revision: str | None = None, dtype: Dtype | None = None, *, text_only: bool = False
) -> Described:
    """Read a model's ``config.json``, or the metadata of a GGUF file, alone: enough to resolve a spec and to explain it. Raises
    ``SourceError``.

    dtype, text_only: as ``open_model`` has them.
    """
    with _as_source_errors():
        place = _place(reference, revision)
        path = place if isinstance(place, Path) else _fetch(place, weights=False)[0]
        if text_only:
            return _text_decoder(path).describe(dtype)
        packed = _find_written_anew(path)
        return describe(path) if packed is None else packed.describe(dtype or packed.dtype or DTYPE)


def tokenizer_folder(reference: str | os.PathLike[str]) -> Path:
    """Return the folder of a tokenizer, or of a model with one, fetching its files if need be. Raises ``SourceError``."""
    with _as_source_errors():
        place = _place(reference, None)
        if isinstance(place, Path) and place.is_dir():
            return place
        if isinstance(place, Path) or place.file is not None:
            raise SourceError(
                f"{name_of(reference)} is a GGUF file; expected a folder with a tokenizer, or a model of the Hub. Make such a "
                f"folder first: `compose build softmax --from {shlex.quote(name_of(reference))} -o FOLDER`"
            )
        return fetch(place.repo_id, place.revision, weights=False, tokenizer=True)[0]


def local_folder(reference: str | os.PathLike[str], *, all_files: bool = False) -> Path:
    """Return the folder of a built model. ``hub:OWNER/NAME[@REVISION]`` is fetched first. Raises ``SourceError``.

    all_files: fetch all files that its record names. Left out, what loads and trains it.
    """
    with _as_source_errors():
        place = _place(reference, None)
        if isinstance(place, Path) and place.is_dir():
            packed = _find_written_anew(place)
            is_model = packed is not None and packed.is_composed
            return _open(place, None, text_only=False).folder if is_model else Path(name_of(reference)).expanduser()
        if not name_of(reference).startswith(HUB):
            on_hub = f" A model of the Hub of that name is {HUB}{reference}." if is_hub_id(name_of(reference)) else ""
            raise SourceError(f'there is no folder "{reference}"; expected one that `compose build` has written.{on_hub}')
        if not isinstance(place, _OnHub) or place.file is not None:
            raise SourceError(f"{name_of(reference)} is no built model; expected a folder, or {HUB}OWNER/NAME[@REVISION].")
        return fetch_recorded(place.repo_id, place.revision) if all_files else fetch(place.repo_id, place.revision)[0]


def plain_name(reference: str | os.PathLike[str]) -> str:
    """Return the last part of a model's name: of its folder, or of its name on the Hub, without the revision."""
    if name_of(reference).startswith(HUB):
        return name_of(reference).partition("@")[0].rpartition("/")[2].removeprefix(HUB)
    return Path(name_of(reference)).expanduser().resolve().name


def default_output(spec_name: str, source: Source | None) -> Path:
    """Return the folder of a build without ``--out``: ``<spec>-<source>``, or ``<spec>-fresh`` without a source."""
    if source is None:
        return Path(f"{spec_name}-fresh")
    return Path(f"{spec_name}-{source.named.name}")


class _OnHub(NamedTuple):
    """A model of the Hub. file: a GGUF file in it."""

    repo_id: str
    revision: str | None
    file: str | None = None


def _fetch(place: _OnHub, **options: Any) -> tuple[Path, str | None]:
    """Return the local folder of a model of the Hub, or the local path of its GGUF file, and the commit.

    options: of ``fetch``, for a folder.
    """
    if place.file is None:
        return fetch(place.repo_id, place.revision, **options)
    folder, commit = fetch(place.repo_id, place.revision, file=place.file)
    return folder / place.file, commit


def _place(reference: str | os.PathLike[str], revision: str | None) -> Path | _OnHub:
    """Return the folder, or the model of the Hub, without ``@REVISION`` in its name.

    Raises SourceError for the path of a folder that does not exist, for a spec, and for two revisions.
    """
    reference = name_of(reference)
    folder = Path(reference).expanduser()
    if not folder.is_dir():
        if names_a_spec(reference):
            raise SourceError(
                f"{reference} is a spec, and this is for models. "
                f"Build it first: `compose build {shlex.quote(reference)} --from SOURCE`"
            )
        if tagged := TAGGED.fullmatch(reference):
            if revision is not None:
                raise SourceError(f"{reference!r} has a revision, and {revision!r} is another: leave one of them out.")
            return _place(*tagged.groups())
        if reference.startswith(HUB):
            named = reference.removeprefix(HUB)
            file = FILE_ON_HUB.fullmatch(named)
            return _OnHub(named, revision) if file is None else _OnHub(file[1], revision, file[2])
        if lost := lost_link_message(folder):
            raise SourceError(f"{lost}; expected the folder of a model.")
        if is_gguf(reference):
            return _gguf_file(folder, reference, revision)
        if folder.is_file():
            raise SourceError(
                f"{reference} is a file; expected the folder of a model, or a file *{GGUF}. Name the folder that it is in: "
                f"{folder.parent}"
            )
        meant = _find_similar(folder)
        inside = len(folder.parts) > 1 and folder.parent.is_dir()
        if meant is not None or inside:
            problem = f'there is no folder "{reference}"' + (f'; did you mean "{meant}"?' if meant else f" in {folder.parent}.")
            raise SourceError(
                f"{problem} A model of the Hub of that name is {HUB}{reference}." if is_hub_id(reference) else problem
            )
        return _OnHub(reference, revision)
    if revision is not None:
        raise SourceError(f"A revision ({revision!r}) is for models from the Hub, and {reference!r} is a folder here.")
    return folder.resolve()


def is_hub_id(reference: str) -> bool:
    """Return whether this is ``OWNER/NAME``, as models of the Hub are called."""
    return reference.count("/") == 1 and not reference.startswith(("/", "~", "."))


def _gguf_file(file: Path, reference: str, revision: str | None) -> Path:
    """Return the path of a GGUF file. Raises SourceError if there is none, and for a revision."""
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


def _find_similar(folder: Path) -> Path | None:
    """Return the folder of a model whose path is nearly the same, name by name; None where there is none."""
    path = Path()
    for part in folder.parts:
        if not (path / part).is_dir():
            beside = [entry.name for entry in path.iterdir() if entry.is_dir()] if os.access(path, os.R_OK) else []
            near = difflib.get_close_matches(part, beside, n=1, cutoff=NEAR)
            path /= near[0] if near else part
        else:
            path /= part
        if not path.is_dir():
            return None
    return path if (path / "config.json").is_file() else None


@contextmanager
def _as_source_errors() -> Iterator[None]:
    try:
        yield
    except ConverterError as error:
        raise SourceError(str(error)) from error


class Manifest(Closed):
    """The contents of ``unpacked.json`` in a folder of the cache: the quantised weights, and the files that were written.

    documents: SHA-256 of each file without weights.
    """

    source: StoredUnpacked
    weights: dict[FileName, StoredFile]
    documents: dict[FileName, Digest]


def cache_folder() -> Path:
    """Return the folder of this project's cache: ``COMPOSER_CACHE``, or ``attention-composer`` where the system keeps caches."""
    if named := os.environ.get(CACHE):
        return Path(named).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "attention-composer"


def _open_unpacked(packed: Packed | TextDecoder | Adapted, dtype: Dtype | None) -> Source:
    """Open the unpacked model, unpacking it first unless the cache has it. Raises SourceError, BuildError and ConverterError.

    dtype: of the weights; None: ``DTYPE``.
    """
    dtype = dtype or DTYPE
    with failing_as(SourceError, f"{packed.path} cannot be read"):
        files = {name: sha256(path) for name, path in packed.files().items()}
    root = cache_folder() / FOLDER
    folder = root / _name(packed, files, dtype)
    manifest = _manifest(folder)
    if manifest is None:
        with failing_as(BuildError, f"The cache {root} cannot be written to", f"Name another folder: {CACHE}=FOLDER"):
            root.mkdir(parents=True, exist_ok=True)
            # One process at a time: each needs memory for a whole model, and two may want the same one.
            with exclusive_lock(inside(root), None):
                manifest = _manifest(folder) or _write(packed, files, folder, dtype)
    weights = {name: str(file.sha256) for name, file in manifest.weights.items()}
    return replace(
        open_source(folder),
        unpacked=UnpackedFrom(packed.path, packed.quantisation, files, weights, packed.licence, isinstance(packed, TextDecoder)),
    )


def _name(packed: Packed | TextDecoder | Adapted, files: dict[str, str], dtype: Dtype) -> str:
    """Return the name of the folder: the model's, the dtype, and a hash of all that decides the contents."""
    key = json.dumps([sorted(files.items()), dtype, versions_of(PACKAGES)])
    label = packed.path.stem if is_gguf(packed.path.name) else packed.path.name
    return f"{label}-{dtype}-{hashlib.sha256(key.encode()).hexdigest()[:KEY_LENGTH]}"


def _manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a folder; None if it is missing or a file has changed. Weights are compared by size and time stamp."""
    try:
        manifest = Manifest.model_validate_json(read_json_bytes(folder / MANIFEST, MOST_NAMES))
        for name, stored in manifest.weights.items():
            stat = (folder / name).stat()
            if (stat.st_size, stat.st_mtime_ns) != (stored.bytes, stored.modified_ns):
                return None
        documents = documents_in(folder, manifest.weights)
    except (OSError, ValidationError):
        return None
    return manifest if manifest.documents == {name: digest for name, digest in documents.items() if name != MANIFEST} else None


def _write(packed: Packed | TextDecoder | Adapted, files: dict[str, str], folder: Path, dtype: Dtype) -> Manifest:
    shutil.rmtree(folder, ignore_errors=True)
    inform(f"Unpacking {packed.path} ({packed.quantisation}) to {dtype}, into {folder}")
    with whole_or_nothing(folder) as partial:
        packed.write(partial, dtype)
        weights = {}
        for name, shard in weight_files(partial).items():
            digest, counts = digest_and_counts(shard)
            if counts:
                larger = "" if dtype in ("float32", "float64") else " Values that are too large for a type become infinite in it."
                raise SourceError(f"{not_finite(packed.path, counts)}{larger} They were unpacked to {dtype}.")
            weights[name] = describe_file(shard.file, "written", origin=None, contents=digest)
        source = StoredUnpacked(
            path=str(packed.path), quantisation=packed.quantisation, files=files, text_only=isinstance(packed, TextDecoder)
        )
        manifest = Manifest(source=source, weights=weights, documents=documents_in(partial, weights))
        write_json(partial / MANIFEST, manifest.model_dump(mode="json"))
    return manifest
