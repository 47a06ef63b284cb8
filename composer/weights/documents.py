"""Verification of the files beside the weights. Those that decide the model's output have to be those of the build."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from pathlib import Path

from composer.errors import BuildError
from composer.files import sha256
from composer.weights.findings import Check
from composer.weights.record import RECORD, Record
from composer.weights.side_files import CARD, CONFIG, is_read, is_tokenizer
from converters.bounded import reason, within
from converters.source import INDEX

_LISTED = 5
_NEVER_READ = "it decides nothing of what the model says"


def unnamed(record: Record) -> Iterator[Check]:
    """Weight files that the plan writes to, and that the record does not have."""
    for name in dict.fromkeys(entry.output for entry in record.plan.parameters.values()):
        if name not in record.files:
            yield Check(
                what="contents", subject=name, outcome="failed", detail="the record does not name it, as every build's does"
            )


def documents(folder: Path, record: Record, present: Mapping[str, Path]) -> Iterator[Check]:
    """Checks the hashes of the build's files in a folder. Config and index are left out: other checks read their contents.

    present: the files of the folder. Raises BuildError for one that cannot be read.
    """
    if record.documents is None:
        for name in present:
            if name not in record.files and is_read(name):
                detail = "an earlier version wrote the record, which names weights alone"
                yield Check(what="contents", subject=name, outcome="unknown", detail=detail)
        return
    for name, wanted in record.documents.items():
        if name in (CONFIG, INDEX):
            continue
        if name not in present:
            problem = "it is missing"
        else:
            try:
                found = sha256(within(folder, name))
            except OSError as error:
                problem = why_not_of_a_build(present[name], error)
            else:
                if found == wanted:
                    yield Check(what="contents", subject=name, outcome="passed", detail=f"SHA-256 {found}")
                    continue
                problem = f"SHA-256 is {found}, at the build it was {wanted}"
        if is_read(name):
            yield Check(what="contents", subject=name, outcome="failed", detail=problem)
        else:
            yield Check(what="contents", subject=name, outcome="unknown", detail=f"{problem}; {_NEVER_READ}")


def why_not_of_a_build(path: Path, error: OSError) -> str:
    """The problem with a path that is no file of a build, such as a pipe or a link out of the folder.

    Raises BuildError where the system did not let the file be read: whether it matches is then not known.
    """
    if error.errno in (errno.EACCES, errno.EPERM, errno.EIO):
        raise BuildError(f"{path} cannot be read: {reason(error)}, so it cannot be checked.") from error
    return reason(error)


def strangers(record: Record, present: Mapping[str, Path]) -> Iterator[Check]:
    """Files that no build wrote: a check for each that transformers would read, and one for all the others."""
    if record.documents is None:
        return
    tokenized = any(map(is_tokenizer, record.documents))
    others = []
    for name in present:
        if name in (RECORD, CONFIG, INDEX, CARD) or name in record.files or name in record.documents:
            continue
        if not is_read(name):
            others.append(name)
        elif is_tokenizer(name) and not tokenized:
            detail = "no build put it there: the record knows of no tokenizer"
            yield Check(what="contents", subject=name, outcome="unknown", detail=detail)
        else:
            detail = "no build put it there, and what loads the model reads it"
            yield Check(what="contents", subject=name, outcome="failed", detail=detail)
    if others:
        listed = ", ".join(others[:_LISTED]) + (f" and {len(others) - _LISTED} more" if len(others) > _LISTED else "")
        detail = f"no build put there {listed}: what loads the model reads none of it"
        yield Check(what="contents", subject="the rest", outcome="unknown", detail=detail)
