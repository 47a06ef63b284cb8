"""The folder that vLLM serves: its configuration, whether it can be served, and its model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, cast

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers.models.auto.configuration_auto import AutoConfig

from composer.errors import SourceError
from composer.exporting.folder import read_export
from composer.model.classes import class_of, configuration_for
from composer.model.head import anatomy
from composer.model.heads import groups_of
from composer.model.hosts import attentions
from composer.model.modeling import ComposedForCausalLM
from composer.spec.resolve import graphs_of
from composer.weights.load import load_model
from converters.config import decode_floats
from converters.hosts import WHOLE
from converters.hybrid_layers import HYBRIDS
from converters.model_types import PREFIX
from converters.trunk import dtype_name


def configuration_of_folder(folder: Path) -> Any:
    """Return the configuration of a composed model, or of the model that an export was made of. Raises ExportError and OSError."""
    export = read_export(folder)
    if export is None:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    return configuration_for(export.config["model_type"]).from_dict(decode_floats(export.config))


def keeps_states(config: Any) -> bool:
    """Whether any head of the model has its own state, which softmax attention over all tokens has not."""
    return any(graph.softmax is None for graph in graphs_of(config.read_spec()))


def check_servable(config: Any) -> None:
    """Raise ValueError for a model that writes no text."""
    if config.read_spec().direction != "causal":
        raise ValueError("a bidirectional model writes no text, so there is nothing to serve; expected `direction: causal`")
    if getattr(config, "labels", None) is not None:
        raise ValueError("a classifier writes no text, so there is nothing to serve; expected a language model")
    family = str(config.model_type).removeprefix(PREFIX)
    if family in HYBRIDS:
        raise ValueError(
            f"vLLM does not serve composed models of the family {family}: layers of the source keep states of another kind beside "
            "heads. Serve it with `compose serve`"
        )
    if family in WHOLE:
        raise ValueError(
            f"vLLM does not serve composed models of the family {family}, as they read images. Build from the source with "
            "--text-only, and serve that"
        )
    sizes = config.read_spec().dimensions
    if sizes.value_dim is not None and any(graph.softmax is not None for graph in graphs_of(config.read_spec())):
        raise ValueError(
            f"the model has heads that are softmax over all tokens, with keys of {sizes.head_dim} numbers and values of "
            f"{sizes.value_dim}, and vLLM caches keys and values of one size. Serve it with `compose serve`"
        )


def load_for_serving(folder: Path, dtype: torch.dtype) -> ComposedForCausalLM:
    """Return the model in evaluation mode, its adapters folded into the weights; of an export, the model that it was made of.

    Raises SourceError, and ValueError for rotations that depend on the other texts of a step.
    """
    if read_export(folder) is None:
        model = cast("ComposedForCausalLM", load_model(folder, dtype_name(dtype), "cpu"))
    else:
        model = _load_export(folder, dtype)
    _check_rotations(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, BaseTunerLayer):
            module.merge(safe_merge=True)
            model.set_submodule(name, module.get_base_layer())
    return model


def _load_export(folder: Path, dtype: torch.dtype) -> ComposedForCausalLM:
    """Return the composed model that an export was made of, with the export's weights."""
    config = configuration_of_folder(folder)
    model, report = class_of(config).from_pretrained(
        folder, config=config, dtype=dtype, local_files_only=True, output_loading_info=True
    )
    if missing := sorted({*report["missing_keys"], *report["mismatched_keys"]}):
        raise SourceError(
            f"{folder} lacks parameters of its spec, {missing[0]} among them. "
            f"Run `compose verify {shlex.quote(str(folder))}` for details"
        )
    return model.eval()


def _check_rotations(model: ComposedForCausalLM) -> None:
    for name, attention in attentions(model):
        for _, head in groups_of(attention.composed):
            if any(memory.rotation.by_call for _, memory in anatomy(head).graph.memories):
                raise ValueError(
                    f"{name} rotates queries and keys by the longest text of a call (rope_type dynamic or longrope), and a step of "
                    "vLLM holds several texts. Serve it with `compose serve`, one text at a time"
                )
