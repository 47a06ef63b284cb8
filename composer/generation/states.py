"""Files with the state of a model after a text: their owner, and checks before a command begins."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.errors import ComposerError
from composer.runs.output import check_output_file, output_file
from composer.spec.inherit import short_path
from composer.system.files import failing_as, sha256
from composer.weights.opened import open_models
from converters.bounded import check_file
from converters.source import TOKENIZER, small_files

if TYPE_CHECKING:
    from composer.model.cache import ComposedCache
    from composer.model.state_file import StateOwner

EXAMPLE = "book.state"
"""A name for such a file, for messages."""


def check_composed(model: str, *, is_composed: bool) -> None:
    """Raise ComposerError for a model without states."""
    if not is_composed:
        raise ComposerError(
            f"{model} is not a composed model, so it has no state to keep. "
            f"Build one from it: `compose build SPEC --from {shlex.quote(str(model))}`"
        )


def check_state_files(state: Path | None, state_out: Path | None, *, force: bool) -> None:
    """Raise ComposerError for a state that cannot be read, and for an output file that exists already."""
    if state is not None:
        with failing_as(ComposerError, f"{short_path(state)} cannot be read", "Name a file that `compose read` wrote."):
            check_file(state)
    if state_out is not None:
        check_output_file(state_out, ComposerError, force=force, example=EXAMPLE)


def owner_of(model: str, folder: Path, loaded: Any) -> StateOwner:
    """Return the hashes that a state is bound to. Reads all weights whose hash is unknown. loaded: the model in memory."""
    from composer.model.state_file import StateOwner

    (opened,) = open_models([model], ComposerError)
    facts = opened.facts(None)
    files = [name for name in small_files(folder, TOKENIZER) if "chat_template" not in name]
    return StateOwner(
        spec_hash=loaded.config.read_spec().hash,
        config_sha256=facts.config_sha256,
        weights=facts.weights,
        tokenizer={name: sha256(folder / name) for name in files},
        dtype=str(loaded.dtype).removeprefix("torch."),
    )


def save_continued(out: Path, cache: ComposedCache, model: Any, owner: StateOwner, unread: Any, *, force: bool) -> None:
    """Read the tokens that were generated and not read yet, and write the state after them. unread: 1 T, perhaps empty."""
    from composer.model.generation import read_in_pieces
    from composer.model.state_file import save_cache

    read_in_pieces(model, unread, cache)
    with output_file(out, ComposerError, force=force) as partial:
        save_cache(partial, cache, model, owner)
