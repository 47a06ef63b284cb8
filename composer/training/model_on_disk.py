"""A model on disk, read a layer at a time, so that memory holds no more than a run needs."""

from __future__ import annotations

import copy
import inspect
import math
import os
from collections.abc import Collection, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from composer.data.packing import Batch
from composer.errors import SourceError, TrainingError
from composer.graph.lowering import AUTO
from composer.model.attention import ComposedAttention
from composer.model.classes import class_of, configuration_for
from composer.model.hosts import attentions, layers_of
from composer.reporting.progress import silent_transformers
from composer.spec.loading import resolve_spec
from composer.spec.resolve import Resolved
from composer.weights.config import config_dict, dimensions
from composer.weights.record import record_of
from composer.weights.sources import check_merged
from composer.weights.stream import as_tensor, count_not_finite, not_finite
from converters import shard
from converters.bounded import open_regular
from converters.config import decode_floats
from converters.source import Source


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
        part_model, report = part_class.from_pretrained(
            None, config=config, state_dict=dict(tensors), dtype=torch.float32, output_loading_info=True
        )
    return part_model.get_submodule(part_model.place).state_dict(), sorted(report["missing_keys"])


def _empty(model: nn.Module, module_name: str) -> None:
    """Leave nothing of a model but one module."""
    for name in [name for name, _ in model.named_modules() if name]:
        apart = not f"{module_name}.".startswith(f"{name}.") and not name.startswith(f"{module_name}.")
        parent, _, child = name.rpartition(".")
        if apart and f"{module_name}.".startswith(f"{parent}." if parent else ""):
            model.get_submodule(parent).register_module(child, nn.Identity())


def _nothing(*_: Any, **__: Any) -> None:
    """There are no embeddings."""


PAIRED_LAYERS = frozenset({"BambaDecoderLayer", "FalconH1DecoderLayer"})
"""Hosts' layers that return a tuple, with the hidden states first."""


class LayerInputs(NamedTuple):
    """The arguments of the layers on one batch: the hidden states B T C of the first layer, and for each layer its options."""

    hidden: Tensor
    options: tuple[Mapping[str, Any], ...]


class StoredModel:
    """A model in a folder, whose tensors are read in float32 as they are needed. fresh: numbers in the heads' own parameters."""

    def __init__(self, source: Source, backend: str = AUTO) -> None:
        check_merged(source)
        self.trunk = source.trunk
        self.fresh = sum(math.prod(source.tensors[name].shape) for name in source.covered.composed.values())
        self._tensors: Mapping[str, shard.StoredTensor] = {
            name: source.tensors[stored_name] for name, stored_name in {**source.covered.trunk, **source.covered.composed}.items()
        }
        document = config_dict(source.trunk, _resolve(source), "float32")
        self._config = config = configuration_for(document["model_type"]).from_dict(decode_floats(document))
        with torch.device("meta"):
            model = class_of(config)(config).requires_grad_(False).eval()
        model.run_on(backend)
        self._base = model.base
        self._prefix = next(f"{name}." for name, module in model.named_modules() if module is self._base)
        self._path, self._layers = layers_of(self._base)
        self._names = {attention.layer: name for name, attention in attentions(model)}
        self._calls: dict[int, Mapping[str, Any]] = {}
        for index, layer in enumerate(self._layers):
            layer.forward = partial(self._record_call, index)
        embedding: Any = model.get_input_embeddings()
        embedding.padding_idx = None  # a row of the whole table, for gradients alone; here it has a batch's rows
        self._embedding = _name_of(model, embedding)
        missing = sorted(self._prefix + name for name in self._base.state_dict() if self._prefix + name not in self._tensors)
        outside = [name for name in missing if not name.startswith(f"{self._prefix}{self._path}.")]
        if outside:
            raise TrainingError(
                f"{source.folder} has {outside[0]} under another name. Outside the layers, --stream needs the names of the "
                "model's parameters: leave --stream out."
            )
        self._joined = {
            index for index in range(len(self._layers)) if any(name.startswith(self._within(index)) for name in missing)
        }
        """The layers with tensors that transformers joins as it loads them."""
        for name, module in self._base.named_modules():
            if not f"{name}.".startswith(f"{self._path}."):
                self._fill(name, module, self._base.config)

    @property
    def with_attention(self) -> Collection[int]:
        """The layers that have attention."""
        return self._names.keys()

    def name_of(self, index: int) -> str:
        """Return the full name of a layer's attention."""
        return self._names[index]

    def attention(self, index: int) -> tuple[str, ComposedAttention]:
        """Return the attention of a layer with its weights, and its full name. The rest of the layer has none."""
        layer_name = self._names[index]
        return layer_name, next(attention for _, attention in attentions(self.layer(index, within=f"{layer_name}.")))

    def layer(self, index: int, *, within: str = "") -> nn.Module:
        """Return one layer with its weights. within: the prefix of the full names of tensors that are read; all others have
        none."""
        layer = copy.deepcopy(self._layers[index], {id(self): self})  # without a copy of this model, which the forward refers to
        del layer.forward
        prefix = self._within(index)
        wanted = [name for name in layer.state_dict() if f"{prefix}{name}".startswith(within)]
        if index in self._joined and any(prefix + name not in self._tensors for name in wanted):
            joined = self._join(index)
            tensors = {name: joined[name] for name in wanted}
        else:
            tensors = {name: self._read(prefix + name) for name in wanted}
        layer.load_state_dict(tensors, strict=not within, assign=True)
        return layer.requires_grad_(False).eval()

    def _join(self, index: int) -> Mapping[str, Tensor]:
        """Return the tensors of a layer for which transformers joins some, such as those of experts."""
        prefix = self._within(index)
        tensors, missing = join_tensors(
            self._config, index, {name: self._read(name) for name in self._tensors if name.startswith(prefix)}
        )
        if missing:
            raise TrainingError(f"No tensor under {prefix} has {missing[0]}, so this model cannot be streamed: leave --stream out.")
        return tensors

    def _within(self, index: int) -> str:
        """Return the prefix of the names of a layer's tensors."""
        return f"{self._prefix}{self._path}.{index}."

    @torch.no_grad()
    def layer_inputs(self, batch: Batch) -> LayerInputs:
        """Return the arguments of the layers. Of the embeddings, only the rows of this batch's tokens are read."""
        stored = self._tensors[self._embedding]
        kinds, inverse = np.unique(batch.ids.numpy(), return_inverse=True)
        table = np.empty((len(kinds), stored.bytes // stored.shape[0]), np.uint8)
        rows = as_tensor(read_rows(stored.file, stored.start, table, kinds).reshape(-1).data, stored.dtype).view(len(kinds), -1)
        self._put(self._base, self._embedding.removeprefix(self._prefix), _finite(stored, self._embedding, rows).float())
        ids = torch.from_numpy(inverse).view(batch.ids.shape)
        self._base(**{**batch.inputs(mask=True), "input_ids": ids}, use_cache=False)
        calls, self._calls = self._calls, {}
        return LayerInputs(calls[0]["hidden"], tuple(calls[index]["options"] for index in range(len(calls))))

    def _record_call(self, index: int, hidden: Tensor, *positional: Any, **options: Any) -> Any:
        """The forward of a layer without weights: it records its arguments, by their names, and returns its input."""
        names = islice(inspect.signature(type(self._layers[index]).forward).parameters, 2, None)  # without itself and its input
        self._calls[index] = {"hidden": hidden, "options": {**dict(zip(names, positional, strict=False)), **options}}
        return (hidden, None) if type(self._layers[index]).__name__ in PAIRED_LAYERS else hidden

    def _fill(self, path: str, module: nn.Module, config: Any) -> None:
        """Fill a module outside of the layers: its own parameters, and buffers, which are in no file. The embedding is left out, as
        its rows are read batch by batch."""
        if any(buffer.is_meta for buffer in module.buffers(recurse=False)):
            self._fill_buffers(module, config)
        for name, _ in module.named_parameters(recurse=False):
            full = f"{path}.{name}".removeprefix(".")
            if self._prefix + full != self._embedding:
                self._put(self._base, full, self._read(self._prefix + full))

    def _fill_buffers(self, module: nn.Module, config: Any) -> None:
        """Fill a module's own buffers, whose numbers follow from the config, or from what the module itself was made with."""
        kind: Any = type(module)
        if "config" in inspect.signature(kind).parameters:
            for name, buffer in kind(config=config).named_buffers(recurse=False):
                module.register_buffer(name, buffer, persistent=False)
            return
        for name, buffer in list(module.named_buffers(recurse=False)):
            module.register_buffer(name, torch.empty_like(buffer, device="cpu"), persistent=False)
        self._base._init_weights(module)  # as a loader does; the module's parameters have no memory yet

    def _put(self, module: nn.Module, name: str, tensor: Tensor) -> None:
        """Replaces a parameter without numbers by a tensor."""
        path, _, child = name.rpartition(".")
        module.get_submodule(path).register_parameter(child, nn.Parameter(tensor, requires_grad=False))

    def _read(self, name: str) -> Tensor:
        stored = self._tensors[name]
        buffer = np.empty((1, stored.bytes), np.uint8)
        read_rows(stored.file, stored.start, buffer, np.zeros(1, int))
        return _finite(stored, name, as_tensor(buffer.reshape(-1).data, stored.dtype)).view(stored.shape).float()


def _finite(stored: shard.StoredTensor, name: str, tensor: Tensor) -> Tensor:
    """Return the values of a stored tensor, or of some of its rows. Raises SourceError if one is NaN or infinite."""
    if count := count_not_finite(tensor):
        raise SourceError(not_finite(stored.file, {name: count}))
    return tensor


def _name_of(model: nn.Module, wanted: nn.Module) -> str:
    """Return the full name of a module's weight."""
    return next(f"{name}.weight" for name, module in model.named_modules() if module is wanted)


def read_rows(path: Path, start: int, into: np.ndarray, places: np.ndarray) -> np.ndarray:
    """``into``, n rows of some width, filled with those at ``places`` of a table that begins ``start`` bytes into a file.

    Read, not mapped: a map makes large pieces around each row resident, and ends the process where the file has become shorter.
    Raises OSError if it has.
    """
    with open_regular(path) as buffered:
        stream = buffered.raw  # rows lie apart from each other: what a buffer reads ahead is of no use
        for row, place in zip(into, places.tolist(), strict=True):
            stream.seek(start + row.nbytes * place, os.SEEK_SET)
            if stream.readinto(row) != row.nbytes:
                raise OSError(f"it ends before row {place:,}")
    return into


def _resolve(source: Source) -> Resolved:
    """Return the heads of a built model, or softmax attention for a source without a record."""
    record = record_of(source)
    return record.resolved if record is not None else resolve_spec("softmax", dimensions(source.trunk))
