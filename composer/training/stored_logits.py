"""A teacher's logits in a folder: written once, and learned from by any number of students without the teacher in memory.

For each token that is predicted, the folder has the ``top_k`` largest log-probabilities at a temperature, their tokens, the
log-probability of all other tokens together, and that of the text's own token at temperature 1. Files are ``logits.json`` and
``logits-00000.safetensors`` and so on, each with as many whole rows of data as fit into about 64 MiB.
"""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from composer.data.packing import IGNORED, Batch, PackedRows
from composer.errors import TrainingError
from composer.runs.identity import Fingerprint
from composer.runs.store import Settings
from composer.spec.inherit import short_path
from composer.spec.recipe import Average
from composer.system.json_files import Count, Measured, read_state
from composer.training.folder import DataReferences
from converters.bounded import check_file, reason

LOGITS, SHARD, SHARDS = "logits.json", "logits-{:05d}.safetensors", "logits-*.safetensors"
REMEDY = "Write the logits again: `compose logits … --force`"


class LogitsRecord(Settings):
    """The contents of ``logits.json``: all that decides the logits. data, held_out: hashes of the rows."""

    format: Literal[1] = 1
    teacher: str
    """As the user named it."""
    model: Fingerprint
    vocabulary: str
    """SHA-256 of the tokens and their numbers."""
    columns: Count
    """The number of the teacher's logits."""
    data: str
    held_out: str | None
    rows: Count
    sequence: Count
    packing: str
    seed: int
    references: DataReferences
    top_k: Count
    temperature: Measured
    rows_per_shard: Count
    complete: bool = False
    """Whether all shards have been written."""

    def identity(self) -> dict[str, Any]:
        """Return what decides the logits. The references only name the data."""
        return self.model_dump(mode="json", exclude={"complete", "references"}) | {"model": self.model.short()}


@dataclass(frozen=True, eq=False)
class TaughtBatch(Batch):
    """Rows with a teacher's stored logits for each position that may be predicted: ``B T-1 K``, and ``B T-1``."""

    tokens: Tensor
    log_probabilities: Tensor
    log_rest: Tensor
    """Of all other tokens together."""
    log_target: Tensor
    """Of the text's own token, at temperature 1."""
    columns: Tensor
    """The number of the teacher's logits, ``B``."""

    def _tensors(self) -> tuple[Tensor, ...]:
        return (*super()._tensors(), self.tokens, self.log_probabilities, self.log_rest, self.log_target, self.columns)


@dataclass(frozen=True, eq=False)
class TaughtRows(PackedRows):
    """Rows whose batches have a teacher's stored logits. places: of each row in the store."""

    stored: StoredLogits | None = None
    places: np.ndarray | None = None

    def batch(self, indices: Any) -> TaughtBatch:
        assert self.stored is not None, "``StoredLogits.taught`` sets it"
        assert self.places is not None, "``StoredLogits.taught`` sets them"
        batch = super().batch(indices)
        tokens, log_probabilities, log_rest, log_target = self.stored.tensors(self.places[np.asarray(indices)], batch.labels)
        return TaughtBatch(
            ids=batch.ids,
            labels=batch.labels,
            position=batch.position,
            valid=batch.valid,
            tokens=tokens,
            log_probabilities=log_probabilities,
            log_rest=log_rest,
            log_target=log_target,
            columns=torch.full((len(batch),), self.stored.record.columns),
        )


class StoredLogits:
    """The logits of a folder, of which a batch is read at a time. Raises TrainingError if they are damaged or not complete."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.record = read_state(folder / LOGITS, LogitsRecord, TrainingError, REMEDY)
        except FileNotFoundError as error:
            raise TrainingError(
                f"{folder} has no {LOGITS}. Write one: `compose logits TEACHER --data … -o {shlex.quote(str(folder))}`"
            ) from error
        if not self.record.complete:
            raise TrainingError(f"The logits in {folder} are not complete. Run the same `compose logits` again to continue.")
        count = -(-self.record.rows // self.record.rows_per_shard)
        self._shards = [_open(folder / SHARD.format(index)) for index in range(count)]
        hashes = [_tensor(self.folder, shard, "rows").numpy() for shard in self._shards]
        self._offsets = [_tensor(self.folder, shard, "offsets").tolist() for shard in self._shards]
        self._hashes = np.concatenate(hashes) if hashes else np.empty(0, np.int64)
        if len(self._hashes) != self.record.rows:
            raise TrainingError(f"{folder} has the logits of {len(self._hashes):,} rows, expected {self.record.rows:,}. {REMEDY}")
        self._order = np.argsort(self._hashes, kind="stable")

    @property
    def hash(self) -> str:
        """SHA-256 of all that decides the logits."""
        return hashlib.sha256(self.record.model_dump_json().encode()).hexdigest()

    def check_student(self, tokens: dict[int, str], temperature: float) -> None:
        """Raise TrainingError if a student cannot learn from these logits."""
        if hash_of_tokens(tokens) != self.record.vocabulary:
            raise TrainingError(
                f"The logits in {self.folder} are of a teacher with another vocabulary ({self.record.teacher}). "
                "Name logits of a teacher with the student's tokenizer."
            )
        if temperature != self.record.temperature:
            raise TrainingError(
                f"recipe.finetune.temperature is {temperature:g}, and the logits in {self.folder} were written with "
                f"{self.record.temperature:g}. Write them again with --temperature {temperature:g}, or --set "
                f"recipe.finetune.temperature={self.record.temperature:g}"
            )

    def add_logits(self, rows: PackedRows, subject: str, references: DataReferences, seed: int) -> TaughtRows:
        """Return the rows with the logits. Raises TrainingError if the store lacks one of them. subject: the rows in words."""
        record = self.record
        wanted = hashes_of(rows)
        positions = (
            np.searchsorted(self._hashes, wanted, sorter=self._order) if len(self._order) else np.zeros(len(wanted), np.int64)
        )
        places = self._order[np.minimum(positions, len(self._order) - 1)] if len(self._order) else positions
        missing = int((self._hashes[places] != wanted).sum()) if len(self._order) else len(wanted)
        if missing:
            pairs = [
                ("recipe.sequence", record.sequence, rows.sequence),
                ("--data", list(record.references.data), list(references.data)),
                ("--held-out", list(record.references.held_out), list(references.held_out)),
                ("--share", record.references.share, references.share),
                ("--seed", record.seed, seed),
            ]
            differ = [f"\n  {name}: was {was}, now {now}" for name, was, now in pairs if was != now]
            raise TrainingError(
                f"{short_path(self.folder)} lacks the logits of {missing:,} of the {len(rows):,} rows {subject}."
                f"{''.join(differ) or ' The texts, or recipe.rows, are others than then.'}\n"
                "Train on the rows that the logits were written for, or write them again: compose logits"
            )
        return TaughtRows(rows.ids, rows.labels, rows.position, rows.valid, rows.dropped, rows.report, self, places)

    def tensors(self, places: np.ndarray, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the stored logits of some rows, at the positions that are predicted. labels: of the rows, ``B T``."""
        is_predicted, k = labels[:, 1:] != IGNORED, self.record.top_k
        tokens = torch.zeros(*is_predicted.shape, k, dtype=torch.int64)
        log_probabilities = torch.zeros(*is_predicted.shape, k)
        log_rest, log_target = torch.zeros(is_predicted.shape), torch.zeros(is_predicted.shape)
        for row, place in enumerate(places.tolist()):
            number, inside = divmod(place, self.record.rows_per_shard)
            shard, (start, end) = self._shards[number], self._offsets[number][inside : inside + 2]
            if end - start != int(is_predicted[row].sum()):
                raise TrainingError(
                    f"{self.folder / SHARD.format(number)} is damaged: row {inside} has {end - start} tokens. {REMEDY}"
                )
            for name, target in (
                ("tokens", tokens),
                ("log_probabilities", log_probabilities),
                ("log_rest", log_rest),
                ("log_target", log_target),
            ):
                target[row][is_predicted[row]] = _slice(self.folder, shard, name, start, end).to(target.dtype)
        if int(tokens.max()) >= self.record.columns or int(tokens.min()) < 0:
            raise TrainingError(
                f"{self.folder} is damaged: it has tokens beyond the {self.record.columns:,} of its teacher. {REMEDY}"
            )
        return tokens, log_probabilities, log_rest, log_target


def stored_divergence(logits: Tensor, batch: TaughtBatch, is_predicted: Tensor, temperature: float) -> Tensor:
    """Return KL(teacher ‖ student) over the stored tokens and a bucket of all others, times the squared temperature: N. This is at
    most the divergence over all tokens, and equal to it if all are stored. is_predicted: ``B T-1``, the N tokens.
    """
    columns = int(batch.columns[0])
    log_predicted = (logits[:, :columns].float() / temperature).log_softmax(-1)
    tokens, wanted = batch.tokens[is_predicted], batch.log_probabilities[is_predicted]
    largest = int(tokens.max()) if tokens.numel() else 0
    if largest >= log_predicted.shape[1]:
        raise TrainingError(
            f"The teacher's logits include token {largest:,}, and the student has {log_predicted.shape[1]:,} embeddings. The "
            "teacher's embeddings are padded. Write its logits again with a smaller --top-k, which leaves tokens of padding out."
        )
    losses = (wanted.exp() * (wanted - log_predicted.gather(1, tokens))).sum(-1)
    if tokens.shape[1] < log_predicted.shape[1]:
        log_others = log_predicted.scatter(1, tokens, -torch.inf).logsumexp(-1)
        losses = losses + batch.log_rest[is_predicted].exp() * (batch.log_rest[is_predicted] - log_others)
    return losses * temperature**2


def stored_loss(rows: PackedRows, average: Average) -> float:
    """Return the teacher's mean loss on rows, in nats: over the tokens that are predicted, or over rows."""
    total, count = 0.0, 0
    for batch in rows.in_order(1):
        assert isinstance(batch, TaughtBatch), "the rows are taught"
        losses = -batch.log_target[batch.labels[:, 1:] != IGNORED].double()
        total, count = (
            (total + float(losses.mean()), count + 1) if average == "rows" else (total + float(losses.sum()), count + len(losses))
        )
    return total / max(1, count)


def hashes_of(rows: PackedRows) -> np.ndarray:
    """64 bits of a hash of each row's contents, int64."""
    digests = (
        hashlib.blake2b(b"".join(np.ascontiguousarray(array[index]).tobytes() for array in rows._arrays()), digest_size=8).digest()
        for index in range(len(rows))
    )
    return np.frombuffer(b"".join(digests), np.int64)


def hash_of_tokens(tokens: dict[int, str]) -> str:
    """SHA-256 of a vocabulary's tokens and their numbers."""
    return hashlib.sha256(repr(sorted(tokens.items())).encode(errors="surrogatepass")).hexdigest()


def _open(path: Path) -> Any:
    try:
        check_file(path)
        return safe_open(path, "pt")
    except OSError as error:
        raise TrainingError(f"{path} cannot be read: {reason(error)}. {REMEDY}") from error
    except SafetensorError as error:
        raise TrainingError(f"{path} is damaged: {error}. {REMEDY}") from error


def _tensor(folder: Path, shard: Any, name: str) -> Tensor:
    try:
        return shard.get_tensor(name)
    except SafetensorError as error:
        raise TrainingError(f"A file of {folder} is damaged: {error}. {REMEDY}") from error


def _slice(folder: Path, shard: Any, name: str, start: int, end: int) -> Tensor:
    try:
        return shard.get_slice(name)[start:end]
    except (SafetensorError, ValueError, IndexError) as error:
        raise TrainingError(f"A file of {folder} is damaged: {error}. {REMEDY}") from error
