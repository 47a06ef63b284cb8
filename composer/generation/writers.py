"""Models that generate text: their weights, tokenizers, states, and the arguments for drawing tokens."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.building.build import load
from composer.errors import ComposerError
from composer.reporting.words import size
from composer.runs.store import check_output_file, output_file
from composer.spec.explain import explain_resolved
from composer.spec.inherit import short_path
from composer.system.files import failing_as, sha256
from composer.system.notices import warn_user
from composer.system.trust import load_tokenizer
from composer.weights.opened import check_backends, open_models
from composer.weights.sources import local_folder
from converters.bounded import check_file
from converters.source import TOKENIZER, small_files
from converters.trunk import Dtype, dtype_name

if TYPE_CHECKING:
    from composer.model.cache import ComposedCache
    from composer.model.state_file import StateOwner

LAST = "the last one is written, and not read"
"""Why a model writes one token more than it has positions."""


def drawing_options(temperature: float, top_p: float) -> dict[str, Any]:
    """Return the arguments of ``generate`` for sampling. At a temperature of 0 the most likely token is chosen."""
    if not temperature:
        return {"do_sample": False}
    return {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}  # where transformers has 50


def load_writer(model: str, device: str, backend: str, *, built: bool, dtype: Dtype | None = None) -> tuple[Any, Path]:
    """Return the model, and its folder. dtype: None keeps that of the weights. Raises ComposerError if it writes no text."""
    if built and Path(model).expanduser().is_dir():
        folder = local_folder(model)
        loaded: Any = load(folder, dtype=dtype, device=device, backend=backend)
        if loaded.config.labels is not None:
            raise ComposerError(f"{model} is a classifier: it has answers for whole texts, and writes none")
        if loaded.base.both_ways:
            raise ComposerError(f"{model} is bidirectional: each token sees those after it, too, so it reads texts and writes none")
        return loaded, folder
    (opened,) = open_models([model], ComposerError, dtype)
    check_backends(backend, [opened])
    return opened.load(dtype, device, backend), opened.source.folder


def tokenizer_of_writer(folder: Path) -> Any:
    if not small_files(folder, TOKENIZER):
        raise ComposerError(
            f"{folder} has no tokenizer, so it can read no prompt: copy one there, or build the model with --tokenizer MODEL"
        )
    problem = f"{folder} has no tokenizer that transformers can read; copy the source's there"
    return load_tokenizer(folder, ComposerError, problem)


@contextmanager
def settings_refused(settings: Path) -> Iterator[None]:
    """For the block, raises ComposerError for generation settings that transformers, or a composed model, does not support."""
    try:
        yield
    except ValueError as error:
        raise ComposerError(
            f"{settings} has generation settings that this model does not support: {error}. Change them there."
        ) from error


def check_logits(ids: Any, logits: Any) -> Any:
    """Return the logits of the next token, as a logits processor does. Raises ComposerError if they are no finite numbers."""
    if bool((logits.isnan() | (logits == float("inf"))).any()):
        raise ComposerError(
            f"the logits after {ids.shape[1]:,} tokens are not finite, so no token can be chosen: the state, or the weights, have "
            "values that are too large. Read the text of a state again, and check weights with `compose verify`."
        )
    return logits


def no_room(model: Any, tokens: int) -> ComposerError:
    """Return the error where memory has run out, with the bytes of the state and a remedy."""
    if not hasattr(model.config, "read_spec"):
        return ComposerError(f"out of memory at {tokens:,} tokens: use a shorter prompt, or generate fewer tokens")
    spec, kind = model.config.read_spec(), dtype_name(model.dtype)
    cost = explain_resolved(spec, sequence=tokens, dtype=kind)
    sizes = {(memory.name or memory.kind, memory.declared_size) for head in spec.heads.values() for memory in head.memory}
    name, largest = max(sizes, key=lambda item: item[1])
    remedies = [f"build it with a smaller `size` of `{name}`, which is {largest:,}"] if largest else []
    if any(group.state_grows for group in cost.groups) or not remedies:
        remedies.append("use a shorter prompt, or generate fewer tokens")
    return ComposerError(
        f"out of memory: at {tokens:,} tokens the state alone needs {size(cost.state_bytes)}; {', or '.join(remedies)}"
    )


def check_tokens(subject: str, ids: Sequence[int], model: Any, tokenizer: Any) -> None:
    """Raise ComposerError for a token without an embedding. Warn where the tokenizer can hardly write the text. subject: the text
    in words."""
    from composer.tasks.writer import hardly_written, unknown_token, without_embedding

    if problem := without_embedding(subject, ids, model.get_input_embeddings().weight.shape[0], tokenizer):
        raise ComposerError(f"{problem}.")
    if warning := hardly_written(subject, ids, unknown_token(tokenizer)):
        warn_user(warning)


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
