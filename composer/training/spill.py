"""Hidden states on disk: the inputs of the teacher's next layer, for all rows of a stage."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from composer.data.packing import Batch, PackedRows
from composer.errors import TrainingError
from composer.system.files import failing_as, partial_of, whole_file
from composer.training.model_on_disk import StoredModel, read_rows
from composer.weights.stream import blocks
from converters.bounded import reason

TOKENS = 1024
"""Tokens of a batch that runs through a layer of the teacher to make the next layer's inputs; one row at least."""
DIGEST = hashlib.sha256().digest_size
"""Bytes after the numbers of a file: their SHA-256."""


@dataclass(frozen=True, eq=False)
class HiddenBatch(Batch):
    """Rows, and the hidden states that are the layer's input for them: B T C float32."""

    hidden: Tensor

    def _tensors(self) -> tuple[Tensor, ...]:
        return (*super()._tensors(), self.hidden)


@dataclass(frozen=True, eq=False)
class HiddenRows(PackedRows):
    """Rows whose hidden states are read batch by batch: ``hidden`` returns n T C for the indices of n rows."""

    hidden: Callable[[np.ndarray], Tensor] = None  # pyright: ignore[reportAssignmentType] - fields before it have defaults

    def batch(self, indices: list[int]) -> HiddenBatch:  # pyright: ignore[reportIncompatibleMethodOverride]
        plain = super().batch(indices)
        return HiddenBatch(plain.ids, plain.labels, plain.position, plain.valid, self.hidden(np.asarray(indices)))


class Spill:
    """One file for each layer: rows · T · C float32, and their SHA-256. used: indices of the rows that it holds. width: C."""

    def __init__(self, folder: Path, name: str, rows: PackedRows, used: np.ndarray, width: int) -> None:
        self._folder, self._name, self._rows, self._used = folder, name, rows, used
        self._shape = (len(used), rows.sequence, width)
        self._place = np.full(len(rows), -1)
        self._place[used] = np.arange(len(used))

    @property
    def bytes(self) -> int:
        """Bytes of one file. Between two layers there are two files."""
        return 4 * math.prod(self._shape) + DIGEST

    @property
    def at(self) -> int:
        """The index of the layer whose inputs the newest file holds; -1 where there is no file."""
        return max(self._files(), default=-1)

    def tidy(self) -> str | None:
        """After a stopped run: keep only the newest file, if it is undamaged; else the message about its damage."""
        for partial in self._folder.glob(partial_of(self._path("*")).name):
            _remove(partial)
        files = self._files()
        for index, path in files.items():
            if index < self.at:
                _remove(path)
        if not files or _is_undamaged(self._path(self.at), self.bytes):
            return None
        path = self._path(self.at)
        self.clear()
        return f"{path} is damaged"

    def clear(self) -> None:
        """Remove all files; ``begin`` starts again from the embeddings."""
        for path in self._files().values():
            _remove(path)

    def begin(self, teacher: StoredModel) -> None:
        """Write the embeddings, where there is no file yet. Raises TrainingError."""
        if self.at < 0:
            self._fill(0, lambda batch, _: teacher.layer_inputs(batch).hidden)

    def rows(self) -> HiddenRows:
        """Return the rows, with the hidden states that are the next layer's input."""
        arrays, at = {field.name: getattr(self._rows, field.name) for field in fields(PackedRows)}, self.at
        return HiddenRows(**arrays, hidden=lambda indices: self._read(at, self._place[indices]))

    @torch.no_grad()
    def advance(self, index: int, teacher: StoredModel, layer: nn.Module, autocast: AbstractContextManager[object]) -> None:
        """Run all rows through one layer of the teacher, write its outputs, and remove its inputs. Raises TrainingError."""
        if self.at > index:
            return

        def run_layer(batch: Batch, places: np.ndarray) -> Tensor:
            hidden = self._read(index, places)
            with autocast:
                output = layer(hidden, **teacher.layer_inputs(batch).options[index])
                return output[0] if isinstance(output, tuple) else output

        self._fill(index + 1, run_layer)
        self._path(index).unlink(missing_ok=True)

    def _fill(self, index: int, make: Callable[[Batch, np.ndarray], Tensor]) -> None:
        """Write a file; it appears whole or not at all."""
        digest = hashlib.sha256()
        failed = f"The hidden states for layer {index} could not be written to {self._folder}"
        mend = f"They need {self.bytes:,} bytes. Finished layers are kept. Free some space, and continue with --resume."
        # Written, not mapped: on a full disk a map kills the process, and a write raises an error.
        with failing_as(TrainingError, failed, mend), whole_file(self._path(index)) as partial, partial.open("wb") as stream:
            for places in np.array_split(np.arange(len(self._used)), self._parts()):
                numbers = make(self._rows.batch(self._used[places].tolist()), places).float().numpy().tobytes()
                stream.write(numbers)
                digest.update(numbers)
            stream.write(digest.digest())

    def _read(self, index: int, places: np.ndarray) -> Tensor:
        """Return the hidden states n T C of n rows."""
        path, (_, *row) = self._path(index), self._shape
        try:
            return torch.from_numpy(
                read_rows(path, 0, np.empty((len(places), math.prod(row)), np.float32), places).reshape(-1, *row)
            )
        except OSError as error:
            raise TrainingError(
                f"{path} cannot be read ({reason(error)}). Continue with --resume, which computes it again."
            ) from error

    def _parts(self) -> int:
        return math.ceil(len(self._used) / max(1, TOKENS // self._rows.sequence))

    def _files(self) -> dict[int, Path]:
        """Return the files by the index of the layer whose inputs they hold."""
        numbers = {path: path.stem.removeprefix(f"{self._name}-") for path in self._folder.glob(f"{self._name}-*.hidden")}
        return {int(number): path for path, number in numbers.items() if number.isdecimal() and number.isascii()}

    def _path(self, index: int | Literal["*"]) -> Path:
        return self._folder / f"{self._name}-{index}.hidden"


def _is_undamaged(path: Path, size: int) -> bool:
    """Whether a file has the expected size, and its contents match their checksum. False for one that cannot be read."""
    digest = hashlib.sha256()
    try:
        if path.stat().st_size != size:
            return False
        for block in blocks(path, end=size - DIGEST):
            digest.update(block)
        return b"".join(blocks(path, size - DIGEST)) == digest.digest()
    except OSError:
        return False


def _remove(path: Path) -> None:
    """Remove a file of a stopped run. Raises TrainingError."""
    with failing_as(TrainingError, f"{path}, of a stopped run, cannot be removed", "Remove it, and continue with --resume."):
        path.unlink()
