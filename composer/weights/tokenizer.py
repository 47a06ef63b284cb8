"""A tokenizer to copy beside the weights of a model that is built from nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from composer.errors import BuildError
from composer.trust import load_tokenizer
from composer.weights.place import copy_files
from composer.weights.sources import tokenizer_folder
from converters.source import TOKENIZER, small_files


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer in a folder. size: embeddings that its tokens need. special: the tokens that generation settings name, by key."""

    folder: Path
    files: tuple[str, ...]
    size: int
    special: Mapping[str, int]

    def copy(self, folder: Path) -> None:
        """Copy the tokenizer's files into another folder."""
        copy_files(self.folder, self.files, folder)


def open_tokenizer(reference: str | os.PathLike[str]) -> Tokenizer:
    """A folder with a tokenizer, or a model of the Hub. Raises ``SourceError``, and ``BuildError`` where there is none to read."""
    folder = tokenizer_folder(reference)
    files = small_files(folder, TOKENIZER)
    if not files:
        raise BuildError(f"{folder} has no tokenizer: none of the files that one is made of, such as tokenizer.json.")
    loaded = load_tokenizer(folder, BuildError, f"{folder} has no tokenizer that transformers can read")
    said = {key: getattr(loaded, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return Tokenizer(
        folder=folder,
        files=files,
        size=max(loaded.get_vocab().values(), default=-1) + 1,
        special={key: number for key, number in said.items() if number is not None},
    )
