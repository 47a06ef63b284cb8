"""The record and the adapters of a model, which follow it from folder to folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from transformers.utils.hub import cached_file

from composer.system.trust import code_in_adapter
from converters.bounded import MOST_CONFIG, check_file, read_json
from converters.composed import ADAPTER_CONFIG, ADAPTER_WEIGHTS


class Keeper(Protocol):
    """Keeps the record of a model while it is in memory, and writes it into every folder that the model is saved to."""

    def after_load(self, model: Any, reference: Any, load_options: Mapping[str, Any]) -> None:
        """The model has been loaded from a folder or the Hub. load_options: the options of ``from_pretrained``."""
        ...

    def after_save(self, model: Any, folder: Path) -> None:
        """The config and the weights of the model have been written to a folder."""
        ...


KEEPERS: list[Keeper] = []
"""All that are called. Packages on floors above add theirs as they are imported."""


WHERE = ("revision", "token", "cache_dir", "local_files_only")
"""Options of ``from_pretrained`` that determine where a model is, and so its adapters."""


def where_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of ``from_pretrained`` that ``WHERE`` lists."""
    return {name: options[name] for name in (*WHERE, "subfolder") if options.get(name) is not None}


def adapters_of(reference: Any, load_options: Mapping[str, Any]) -> str:
    """Return the folder on this machine with a model's adapters, which are safetensors.

    Raises OSError if there are none, and ValueError for a kind of adapter whose code would have to be imported.
    """
    path = cached_file(reference, ADAPTER_CONFIG, **load_options)
    weights = cached_file(reference, ADAPTER_WEIGHTS, **load_options)  # else a pickle would be looked for
    assert path is not None, "it raises where there is none"
    assert weights is not None, "it raises where there is none"
    check_file(Path(weights))
    problem = code_in_adapter(read_json(Path(path), MOST_CONFIG))
    if problem is not None:
        raise ValueError(f"{path} {problem}; code beside weights is never run here")
    return os.path.dirname(path)
