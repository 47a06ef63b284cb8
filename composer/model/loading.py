"""A built model from its folder, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from safetensors import SafetensorError

from composer.errors import SourceError
from composer.model.classification import ComposedForSequenceClassification
from composer.model.modeling import ComposedForCausalLM
from composer.trust import refuse_code
from converters.composed import ADAPTER_CONFIG
from converters.errors import ConverterError

Composed: TypeAlias = ComposedForCausalLM | ComposedForSequenceClassification


def class_of(labels: int | None) -> type[ComposedForCausalLM] | type[ComposedForSequenceClassification]:
    """A language model, or a classifier where its trunk has labels."""
    return ComposedForCausalLM if labels is None else ComposedForSequenceClassification


def load_model(folder: Path, dtype: str | None, device: str) -> Composed:
    """The model in evaluation mode. dtype: None keeps that of the weights. Raises SourceError."""
    config = folder / "config.json"
    if not config.is_file():
        raise SourceError(f"{folder} has no config.json: it is not a built model; `compose build` makes one")
    try:
        said = json.loads(config.read_text())
    except ValueError as error:
        raise SourceError(f"{config} is not JSON: {error}") from error
    if said.get("model_type") != "composed":
        raise SourceError(f"{folder} is not a composed model; build one from it: `compose build SPEC --from {folder}`")
    refuse_code(folder, SourceError)
    if (folder / ADAPTER_CONFIG).exists():
        raise SourceError(f"{folder} has adapters at its top ({ADAPTER_CONFIG}), which are no part of it: move them elsewhere")
    kind = "auto" if dtype is None else getattr(torch, dtype)
    try:
        answer: Any = class_of(said.get("labels")).from_pretrained(
            folder, dtype=kind, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, ConverterError, SafetensorError) as error:
        raise SourceError(f"{folder} cannot be loaded: {error}. `compose verify {folder}` says what is wrong with it") from error
    loaded, report = cast("tuple[Composed, dict[str, Any]]", answer)
    if report["missing_keys"] or report["mismatched_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise SourceError(f"{folder} lacks parameters of its spec, {missing} among them; `compose verify {folder}` says more")
    torch.nn.Module.to(loaded, device)
    return loaded.eval()
