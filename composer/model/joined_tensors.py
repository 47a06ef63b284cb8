"""Tensors of one layer that transformers joins or renames as it loads a model, as those of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from composer.model.classes import class_of
from composer.model.hosts import layers_of
from composer.reporting.progress import silent_transformers


def join_tensors(config: Any, index: int, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Return a layer's tensors by their names in it, in float32, and the names of missing ones. tensors: by their names in
    files."""
    model = class_of(config)

    def __init__(self: Any, config: Any) -> None:
        model.__init__(self, config)
        base = next(name for name, module in self.named_modules() if module is self.base)
        self.place = f"{base}.{layers_of(self.base)[0]}.{index}"
        self.all_tied_weights_keys = {}
        _empty(self, self.place)

    # transformers treats this as a whole model, whose other modules are removed here.
    part_class = type(model.__name__, (model,), {"__init__": __init__, "__module__": __name__, "tie_weights": _nothing})
    part_class.get_input_embeddings = part_class.get_output_embeddings = _nothing
    with silent_transformers("critical"):
        made, report = part_class.from_pretrained(
            None, config=config, state_dict=dict(tensors), dtype=torch.float32, output_loading_info=True
        )
    return made.get_submodule(made.place).state_dict(), sorted(report["missing_keys"])


def _empty(model: nn.Module, kept: str) -> None:
    """Leave nothing of a model but one module."""
    for name in [name for name, _ in model.named_modules() if name]:
        apart = not f"{kept}.".startswith(f"{name}.") and not name.startswith(f"{kept}.")
        parent, _, child = name.rpartition(".")
        if apart and f"{kept}.".startswith(f"{parent}." if parent else ""):
            model.get_submodule(parent).register_module(child, nn.Identity())


def _nothing(*_: Any, **__: Any) -> None:
    """There are no embeddings."""
