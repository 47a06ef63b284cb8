"""Unpacks quantised weights into a folder of the cache, from which everything else reads as from any other folder.

The name of the folder follows from the contents of the quantised files, the dtype, and the versions of transformers and of this
project, so each is unpacked once. The cache may be removed at any time: built models have all of their files.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from blocks.part import Closed
from composer.errors import BuildError, SourceError
from composer.files import failing_as, sha256
from composer.locks import exclusive_lock, inside
from composer.notices import inform
from composer.versions import versions_of
from composer.weights.finite import digest_and_counts, not_finite
from composer.weights.output import whole_or_nothing
from composer.weights.packed import Packed
from composer.weights.record import StoredFile, StoredUnpacked, stored_file, write_json
from composer.weights.side_files import documents_in
from converters.bounded import MOST_NAMES, read_bytes
from converters.gguf import is_gguf
from converters.hub import cached_sha256
from converters.source import Source, UnpackedFrom, open_source, weight_files
from converters.trunk import Dtype

DTYPE: Dtype = "bfloat16"
"""The dtype of unpacked weights where the user names none."""
CACHE, FOLDER = "COMPOSER_CACHE", "unpacked"
"""The environment variable for the folder of the cache, and the folder of unpacked models in it."""
MANIFEST = "unpacked.json"
KEY_LENGTH = 16
PACKAGES = ("attention-composer", "transformers")
"""The packages whose versions decide what is unpacked."""


class Manifest(Closed):
    """The contents of ``unpacked.json`` in a folder of the cache: the quantised weights, and the files that were written.

    documents: SHA-256 of each file without weights.
    """

    source: StoredUnpacked
    weights: dict[str, StoredFile]
    documents: dict[str, str]


def cache_folder() -> Path:
    """The folder of this project's cache: ``COMPOSER_CACHE``, or ``attention-composer`` where the system keeps caches."""
    if named := os.environ.get(CACHE):
        return Path(named).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "attention-composer"


def open_unpacked(packed: Packed, dtype: Dtype | None) -> Source:
    """Open the unpacked model, unpacking it first unless the cache has it. Raises SourceError, BuildError and ConverterError.

    dtype: of the weights; None: ``DTYPE``.
    """
    dtype = dtype or DTYPE
    with failing_as(SourceError, f"{packed.path} cannot be read"):
        files = {name: cached_sha256(path) or sha256(path) for name, path in packed.files().items()}
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
    return replace(open_source(folder), unpacked=UnpackedFrom(packed.path, packed.quantisation, files, weights))


def _name(packed: Packed, files: dict[str, str], dtype: Dtype) -> str:
    """The name of the folder: the model's, the dtype, and a hash of all that decides the contents."""
    key = json.dumps([sorted(files.items()), dtype, versions_of(PACKAGES)])
    label = packed.path.stem if is_gguf(packed.path.name) else packed.path.name
    return f"{label}-{dtype}-{hashlib.sha256(key.encode()).hexdigest()[:KEY_LENGTH]}"


def _manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder; None where it is missing, or a file has changed. Weights are compared by size and time stamp."""
    try:
        found = Manifest.model_validate_json(read_bytes(folder / MANIFEST, MOST_NAMES))
        for name, stored in found.weights.items():
            stat = (folder / name).stat()
            if (stat.st_size, stat.st_mtime_ns) != (stored.bytes, stored.modified_ns):
                return None
        documents = documents_in(folder, found.weights)
    except (OSError, ValidationError):
        return None
    return found if found.documents == {name: digest for name, digest in documents.items() if name != MANIFEST} else None


def _write(packed: Packed, files: dict[str, str], folder: Path, dtype: Dtype) -> Manifest:
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
            weights[name] = stored_file(shard.file, "written", origin=None, contents=digest)
        source = StoredUnpacked(path=str(packed.path), quantisation=packed.quantisation, files=files)
        manifest = Manifest(source=source, weights=weights, documents=documents_in(partial, weights))
        write_json(partial / MANIFEST, manifest.model_dump(mode="json"))
    return manifest
