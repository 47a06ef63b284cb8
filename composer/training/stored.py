"""A model on disk, a layer at a time: what a run needs of it is read, and no more is in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from composer.api import resolve_spec
from composer.errors import TrainingError
from composer.model.configuration import ComposedConfig
from composer.model.modeling import ComposedDecoderLayer
from composer.spec.resolve import Resolved
from composer.weights.config import config_dict
from composer.weights.dimensions import dimensions
from composer.weights.record import record_of
from composer.weights.sources import check_merged
from composer.weights.stream import as_tensor
from converters import shard
from converters.canonical import EMBEDDING
from converters.source import Source


class StoredModel:
    """A folder's tensors by their canonical names; those that are asked for come in float32. fresh: numbers in its heads' own."""

    def __init__(self, source: Source) -> None:
        check_merged(source)
        if source.trunk.position_embedding != "none":
            raise TrainingError(
                f"{source.folder} adds positions to its embeddings, and such a model is not streamed: leave --stream out."
            )
        self.trunk = source.trunk
        self.resolved = _resolved(source)
        self.config = ComposedConfig(**config_dict(source.trunk, self.resolved, "float32"))
        self.fresh = sum(math.prod(source.tensors[name].shape) for name in source.covered.composed.values())
        self._tensors: Mapping[str, shard.Tensor] = {
            name: source.tensors[own] for name, own in {**source.covered.trunk, **source.covered.composed}.items()
        }

    def layer(self, index: int, *, attention_alone: bool = False) -> ComposedDecoderLayer:
        """One layer with its weights; of a layer whose attention alone is wanted, the rest has none."""
        with torch.device("meta"):
            layer = ComposedDecoderLayer(self.config, self.resolved, index)
        prefix = f"model.layers.{index}."
        wanted = [name for name in layer.state_dict() if not attention_alone or name.startswith("self_attn.")]
        layer.load_state_dict({name: self._read(prefix + name) for name in wanted}, strict=not attention_alone, assign=True)
        return layer.requires_grad_(False).eval()

    def embedded(self, ids: Tensor) -> Tensor:
        """The embeddings of ids, B T C: their rows alone are read."""
        stored = self._tensors[EMBEDDING]
        kinds, where = np.unique(ids.numpy(), return_inverse=True)
        table = np.empty((len(kinds), stored.bytes // stored.shape[0]), np.uint8)
        rows = as_tensor(read_rows(stored.file, stored.start, table, kinds).reshape(-1).data, stored.dtype).view(len(kinds), -1)
        return rows.float()[torch.from_numpy(where).view(ids.shape)]

    def _read(self, name: str) -> Tensor:
        stored = self._tensors[name]
        held = np.fromfile(stored.file, np.uint8, stored.bytes, offset=stored.start)
        return as_tensor(held.data, stored.dtype).view(stored.shape).float()


def read_rows(path: Path, start: int, into: np.ndarray, places: np.ndarray) -> np.ndarray:
    """``into``, n rows of some width, filled with those at ``places`` of a table that begins ``start`` bytes into a file.

    Read, not mapped: a map makes large pieces around each row resident, and ends the process where the file has become shorter.
    Raises OSError where it has.
    """
    with path.open("rb", buffering=0) as stream:
        for row, place in zip(into, places.tolist(), strict=True):
            stream.seek(start + row.nbytes * place)
            if stream.readinto(row) != row.nbytes:
                raise OSError(f"it ends before row {place:,}")
    return into


def _resolved(source: Source) -> Resolved:
    """Its own heads, or softmax attention for a source that has no record."""
    record = record_of(source)
    return record.resolved if record is not None else resolve_spec("softmax", dimensions(source.trunk))
