"""The tokenizer of a model without a source, or whose source has none, and notes on that of a source."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from composer.errors import BuildError
from composer.reporting.words import plural
from composer.system.trust import load_tokenizer
from composer.weights.sources import tokenizer_folder
from converters.bounded import brief
from converters.source import TOKENIZER, Source, small_files


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer in a folder. size: embeddings that its tokens need. special: the tokens that generation settings name, by key."""

    folder: Path
    files: tuple[str, ...]
    size: int
    special: Mapping[str, int]


def open_tokenizer(reference: str | os.PathLike[str]) -> Tokenizer:
    """Open the tokenizer of a folder or of a model of the Hub. Raises ``SourceError``, and ``BuildError`` if there is none."""
    folder = tokenizer_folder(reference)
    files = small_files(folder, TOKENIZER)
    if not files:
        raise BuildError(f"{folder} has no tokenizer: none of the files that one is made of, such as tokenizer.json.")
    loaded = load_tokenizer(folder, BuildError, f"{folder} has no tokenizer that transformers can read")
    special = {key: getattr(loaded, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return Tokenizer(
        folder=folder,
        files=files,
        size=max(loaded.get_vocab().values(), default=-1) + 1,
        special={key: number for key, number in special.items() if number is not None},
    )


def check_tokenizer_of_source(size: int, source: Source) -> None:
    """Raise BuildError if a tokenizer is named for a source that has its own, or too few embeddings. size: embeddings that the
    tokenizer needs."""
    if small_files(source.folder, TOKENIZER):
        raise BuildError(f"--tokenizer: the source {source.folder} has its own tokenizer. Leave --tokenizer out.")
    if size > source.trunk.vocabulary_size:
        raise BuildError(
            f"--tokenizer has {size:,} tokens, and the source {source.folder} has embeddings for {source.trunk.vocabulary_size:,}. "
            "Name the tokenizer that the source was trained with."
        )


def tokenizer_notes(folder: Path, vocabulary: int) -> tuple[str, ...]:
    """Return a note where the tokenizer in a folder has tokens that a model of this vocabulary has no embedding for.

    Only ``tokenizer.json`` is read, without transformers. A file that cannot be read is left to those who tokenise.
    """
    import tokenizers

    file = folder / "tokenizer.json"
    if not file.is_file():
        return ()
    try:
        tokens = tokenizers.Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True)
    except Exception:  # tokenizers raises it for every malformed file
        return ()
    beyond = sorted((number, token) for token, number in tokens.items() if number >= vocabulary)
    if not beyond:
        return ()
    return (
        f"The tokenizer has {plural(len(beyond), 'token')} that the model has no embedding for, such as {brief(beyond[0][1])} "
        f"({beyond[0][0]:,} of {vocabulary:,}): a text with one of them is refused.",
    )
