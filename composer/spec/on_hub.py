"""A spec on the Hub: ``hub:OWNER/NAME[@REVISION]``, or ``hub:OWNER/NAME/FILE.yaml[@REVISION]``."""

from __future__ import annotations

import re
from pathlib import Path

from composer.errors import SpecError
from composer.spec.built_models import CONFIG, is_built
from converters.composed import RECORD, SPEC_FILE
from converters.errors import ConverterError
from converters.hub import HUB, fetch_files

FORM = f"{HUB}OWNER/NAME[@REVISION] or {HUB}OWNER/NAME/FILE.yaml[@REVISION]"
NAMED = re.compile(rf"{HUB}(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<file>[^@:]+\.ya?ml))?(?:@(?P<revision>[^:]+))?")


def spec_on_hub(reference: str) -> Path | None:
    """Fetch a spec, or the spec of a built model, from the Hub. Return its file, or the folder of the model; None for a
    name of another form, such as a path.

    A repository with spec.yaml and with a model, such as an export, is read as its spec.yaml. Raises SpecError.
    """
    match = NAMED.fullmatch(reference)
    if match is None:
        return None
    file = match["file"]
    try:
        folder = fetch_files(match["repo"], match["revision"], (SPEC_FILE, RECORD, CONFIG) if file is None else (file,))
    except ConverterError as error:
        raise SpecError(str(error)) from error
    path = folder / (file or SPEC_FILE)
    if path.is_file():
        return path
    if file is None and is_built(folder):
        return folder
    missing = file or f"{SPEC_FILE}, and no built model"
    raise SpecError(f"{reference} has no {missing}; expected a spec that `compose push` wrote, or the name of a file: {FORM}")


def is_spec_on_hub(reference: str) -> bool:
    """Whether a name on the Hub is that of a spec and not of a model. Raises SpecError if it cannot be read."""
    match = NAMED.fullmatch(reference)
    if match is None or match["file"] is not None:
        return match is not None
    try:
        folder = fetch_files(match["repo"], match["revision"], (SPEC_FILE, CONFIG))
    except ConverterError as error:
        raise SpecError(str(error)) from error
    return (folder / SPEC_FILE).is_file() and not (folder / CONFIG).is_file()
