"""A locked spec, ``spec.lock.yaml``: everything that determines the bytes of a build, and the hashes of its files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator

from blocks.part import Closed
from composer.errors import BuildError, SpecError
from composer.spec.built_models import WHOLE
from composer.spec.external_parts import StoredPart, find_changed_parts, first_missing, needed_part_message
from composer.spec.inherit import find_spec, short_path
from composer.spec.places import plain
from composer.spec.reading import MOST_BYTES, read_text
from composer.spec.resolve import Resolved
from composer.spec.writing import to_yaml
from composer.system.files import read_text_file, sha256
from composer.system.json_files import Digest, FileName, first_problem
from composer.weights.record import CARD, Record, versions
from converters.bounded import list_first
from converters.hub import HUB
from converters.source import Source
from converters.trunk import Dtype

SUFFIX = ".lock.yaml"
"""The end of a lock's name where none is named."""
LOCK_KEY = re.compile(r"^lock:", re.MULTILINE)


class LockedSource(Closed):
    """The source of a build. files: SHA-256 of each file that the build reads, by name."""

    reference: str
    """The folder or the name on the Hub, with the commit."""
    files: dict[FileName, Digest]
    text_only: bool = Field(default=False, exclude_if=lambda is_text_only: not is_text_only)
    """Whether the build takes the text decoder alone of a model that reads images or sound, too. ``files`` are the decoder's."""


class Lock(Closed):
    """A locked spec. files: SHA-256 of the files that the build wrote, without the record and the card, which name folders."""

    lock: Literal[1] = 1
    spec: dict[str, Any]
    """The resolved spec, which leaves nothing to its source."""
    spec_hash: str
    source: LockedSource | None
    """None: the weights are built from nothing."""
    tokenizer: str | None = None
    """Of a model without a source, or of one whose source has none."""
    dtype: Dtype | None = None
    """As ``--dtype``; None keeps the source's."""
    seed: int
    files: dict[FileName, Digest]
    parts: dict[str, StoredPart] = Field(default_factory=dict, exclude_if=lambda parts: not parts)
    """The origins of parts from outside, by kind."""
    versions: dict[str, str]

    @field_validator("spec")
    @classmethod
    def _check_whole(cls, spec: dict[str, Any]) -> dict[str, Any]:
        if "extends" in spec:
            raise ValueError(WHOLE)
        return spec

    @property
    def text_only(self) -> bool:
        """Whether the build takes the text decoder alone of its source."""
        return self.source is not None and self.source.text_only

    @property
    def yaml(self) -> str:
        heading = f"# {self.spec.get('name')}, locked. `compose build` makes the same bytes from it, or lists the differences.\n"
        return heading + to_yaml(self.model_dump(mode="json", exclude={"spec"}) | {"spec": self.spec})

    def check_parts(self, named: object) -> None:
        """Raise BuildError if a part from outside is missing, or of another version or file. named: the lock, in words."""
        stored = {kind: origin.model_dump(mode="json") for kind, origin in self.parts.items()}
        if (kind := first_missing(stored)) is not None:
            raise BuildError(f"{needed_part_message(named, kind, stored)}.")
        if changed := list(find_changed_parts(self.parts)):
            raise BuildError(f"{named} is locked with other parts: {'; '.join(changed)}. Lock the spec again, or install those.")

    def check_spec(self, resolved: Resolved, named: object) -> None:
        """Raise BuildError if the spec resolves to something else than at the time of the lock. named: the lock, in words."""
        if not resolved.has_hash(self.spec_hash):
            raise BuildError(
                f"The hash of the spec of {named} is {resolved.hash}, and the lock has {self.spec_hash}: the file was changed. "
                "Lock the spec again."
            )

    def check_source(self, source: Source) -> None:
        """Raise BuildError for a source with other files."""
        assert self.source is not None, "there is a source to compare with"
        if differences := list(_differences(self.source.files, files_of_source(source))):
            raise BuildError(
                f"The source {source.folder} differs from the locked one: {'; '.join(differences)}. It was "
                f"{self.source.reference}. A copy of it is named with --from."
            )

    def check_built(self, record: Record) -> None:
        """Raise BuildError if a build has other bytes."""
        if differences := list(_differences(self.files, files_of_build(record))):
            here = versions()
            other = [
                f"{name} {here.get(name)} here, {locked} locked"
                for name, locked in self.versions.items()
                if here.get(name) != locked
            ]
            cause = f"Versions that differ: {'; '.join(other)}." if other else "All versions are the locked ones."
            raise BuildError(f"The build differs from the locked one, and nothing was written: {'; '.join(differences)}. {cause}")


def read_lock(named: object) -> Lock | None:
    """Return the lock in the file of a spec, whatever its name; None for any other spec. Raises SpecError for a damaged lock."""
    if not isinstance(named, str | os.PathLike):
        return None
    path = find_spec(os.fspath(named), Path())
    if path is None or not path.is_file():
        return None  # the error is raised where the spec is read
    text = read_text_file(path, SpecError, MOST_BYTES, short_path(path))
    if not LOCK_KEY.search(text):
        return None
    document = plain(read_text(text, short_path(path)))
    try:
        return Lock.model_validate(document)
    except ValidationError as error:
        raise SpecError(f"{short_path(path)} is a damaged lock, at {first_problem(error)}. Write it again: compose lock") from None


def lock_source(named: str, source: Source, *, text_only: bool) -> LockedSource:
    """Return a source by its name, with its commit where it is on the Hub. Raises BuildError if a file in the Hub's cache has other
    bytes than the Hub has stated: its name there is their SHA-256."""
    files = files_of_source(source)
    if source.repo_id is None or source.commit is None:
        return LockedSource(reference=named, files=files, text_only=text_only)
    for name, digest in files.items():
        path = (source.folder / name).resolve()
        if re.fullmatch("[0-9a-f]{64}", path.name) and path.name != digest:
            raise BuildError(
                f"{name} of {source.repo_id} has the SHA-256 {digest}, and the Hub stated {path.name}: the cache or the mirror is "
                f"damaged. Remove {path}, and fetch the model again."
            )
    name = named.partition("@")[0]
    reference = f"{name if name.startswith(HUB) else HUB + name}@{source.commit}"
    return LockedSource(reference=reference, files=files, text_only=text_only)


def files_of_source(source: Source) -> dict[str, str]:
    """SHA-256 of the files of a source that a build reads. Every file is hashed; recorded hashes are not used."""
    return {name: sha256(source.folder / name) for name in sorted({"config.json", *source.small_files, *source.shards})}


def files_of_build(record: Record) -> dict[str, str]:
    """SHA-256 of the files of a build whose bytes do not name folders."""
    weights = {name: stored.sha256 or "" for name, stored in record.files.items()}
    return {name: digest for name, digest in sorted({**weights, **record.documents}.items()) if name != CARD}


def _differences(locked: Mapping[str, str], present: Mapping[str, str]) -> Iterator[str]:
    missing, added = locked.keys() - present.keys(), present.keys() - locked.keys()
    if missing:
        yield f"{list_first(sorted(missing))} missing"
    if added:
        yield f"{list_first(sorted(added))} added"
    for name in sorted(locked.keys() & present.keys()):
        if locked[name] != present[name]:
            yield f"{name} has the SHA-256 {present[name]}, and {locked[name]} is locked"
