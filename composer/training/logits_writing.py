"""Writes a teacher's logits for the rows that its students will learn from, shard by shard. A stopped call continues."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from blocks.part import Closed
from composer.data.packing import PackedRows
from composer.errors import TrainingError
from composer.model.modeling import ComposedForCausalLM
from composer.reporting.tables import Readable, View
from composer.reporting.words import size
from composer.runs.identity import fingerprint
from composer.runs.store import RunStore
from composer.spec.inherit import short_path
from composer.spec.recipe import Recipe
from composer.system.files import whole_file
from composer.system.json_files import write_state
from composer.training.finetune import logits_at_targets
from composer.training.folder import DataReferences
from composer.training.rows import both_sides, tokenizer_of
from composer.training.run import TrainingOptions
from composer.training.stored_logits import LOGITS, SHARD, SHARDS, LogitsRecord, hash_of_tokens, hashes_of
from composer.training.teacher import Teacher, tokens_of
from composer.weights.config import check_positions

STORE = RunStore("call of compose logits", TrainingError, mark=LOGITS, written=(SHARDS,))
SHARD_BYTES = 64 * 2**20
BYTES = 8
"""Of a stored token: an index and a float32."""


@dataclass(frozen=True, kw_only=True)
class LogitsOptions:
    """recipe: of which ``sequence`` and ``rows`` are used. batch: rows at a time. watch: called with the rows that are done."""

    recipe: Recipe
    top_k: int
    temperature: float
    batch: int
    watch: Callable[[int, int], None] | None = None


class WrittenLogits(Readable, Closed):
    """The result: the folder, its record, the tokens with logits, and the bytes of the shards."""

    out: Path
    record: LogitsRecord
    tokens: int
    bytes: int

    def view(self) -> View:
        record = self.record
        return View(
            f"Logits of {record.teacher} in {short_path(self.out)}",
            notes=(
                f"The {record.top_k:,} largest of {record.columns:,} for each of {self.tokens:,} tokens in {record.rows:,} rows of "
                f"{record.sequence:,}, at temperature {record.temperature:g}: {size(self.bytes)}.",
                f"Learn from them: compose distill STUDENT --stage finetune "
                f"--teacher-logits {shlex.quote(short_path(self.out))} --data …",
            ),
        )


def write_logits(teacher: Teacher, out: Path, training: TrainingOptions, options: LogitsOptions) -> WrittenLogits:
    """Write the logits for the rows to learn from and those held out. training: of the data, the device and ``force``.

    Raises TrainingError, also if the folder has logits of other settings, and DataError.
    """
    trunk, folder = teacher.source.trunk, teacher.source.folder
    if options.top_k > trunk.vocabulary_size:
        raise TrainingError(f"--top-k {options.top_k:,}: the teacher has {trunk.vocabulary_size:,} tokens. Set at most as many.")
    rows, held_out = both_sides(tokenizer_of(folder), trunk.vocabulary_size, trunk.max_positions, options.recipe, training)
    check_positions(trunk, teacher.reference, rows.sequence, "the largest possible --sequence is", TrainingError)
    record = LogitsRecord(
        teacher=teacher.reference,
        model=fingerprint(teacher.source),
        vocabulary=hash_of_tokens(tokens_of(folder)),
        columns=trunk.vocabulary_size,
        data=rows.hash,
        held_out=None if held_out is None else held_out.hash,
        rows=len(rows) + (0 if held_out is None else len(held_out)),
        sequence=rows.sequence,
        packing=options.recipe.rows,
        seed=training.seed,
        references=DataReferences(
            data=tuple(training.data), held_out=tuple(training.held_out), share=training.share, held_out_rows=None
        ),
        top_k=options.top_k,
        temperature=options.temperature,
        rows_per_shard=max(1, SHARD_BYTES // (options.top_k * BYTES * rows.sequence)),
    )
    every = rows if held_out is None else _join(rows, held_out)
    with STORE.hold(out, resume=True, force=training.force), STORE.writing(out):
        record = STORE.begin(out, record, force=training.force)
        _write_shards(teacher, out, record, every, training, options)
        record = record.model_copy(update={"complete": True})
        write_state(out / LOGITS, record)
    written = sum(path.stat().st_size for path in out.glob(SHARDS))
    return WrittenLogits(out=out, record=record, tokens=every.targets, bytes=written)


def _write_shards(
    teacher: Teacher, out: Path, record: LogitsRecord, rows: PackedRows, training: TrainingOptions, options: LogitsOptions
) -> None:
    model: ComposedForCausalLM | None = None
    for number, start in enumerate(range(0, len(rows), record.rows_per_shard)):
        shard_rows = rows.take(np.arange(start, min(start + record.rows_per_shard, len(rows))))
        path = out / SHARD.format(number)
        if not path.is_file():
            model = model or teacher.load(training.device, training.backend)
            tensors = _logits_of(model, shard_rows, record, options.batch)
            with whole_file(path) as partial:
                save_file(tensors, partial)
        if options.watch is not None:
            options.watch(start + len(shard_rows), len(rows))


@torch.no_grad()
def _logits_of(model: ComposedForCausalLM, rows: PackedRows, record: LogitsRecord, batch: int) -> dict[str, torch.Tensor]:
    """Return the tensors of a shard."""
    parts: dict[str, list[torch.Tensor]] = {"tokens": [], "log_probabilities": [], "log_rest": [], "log_target": []}
    counts = [0]
    for part in rows.in_order(batch):
        logits, targets = logits_at_targets(model, part.to(model.device))
        logits = logits.float()
        if not bool(logits.isfinite().all()):
            raise TrainingError(f"The logits of {record.teacher} are not finite. Check its weights: compose verify")
        log_probabilities = (logits / record.temperature).log_softmax(-1)
        largest, tokens = log_probabilities.topk(record.top_k)
        parts["tokens"].append(tokens.int().cpu())
        parts["log_probabilities"].append(largest.cpu())
        parts["log_rest"].append(_log_rest(log_probabilities, tokens).cpu())
        parts["log_target"].append(logits.log_softmax(-1).gather(1, targets[:, None])[:, 0].cpu())
        counts += part.targets.tolist()
    tensors = {name: torch.cat(tensors_of_name).contiguous() for name, tensors_of_name in parts.items()}
    return tensors | {"offsets": torch.tensor(counts).cumsum(0), "rows": torch.from_numpy(hashes_of(rows).copy())}


def _log_rest(log_probabilities: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of all tokens that are not stored, together; 0 where there is none, which no loss reads."""
    if tokens.shape[1] == log_probabilities.shape[1]:
        return torch.zeros(len(tokens), device=tokens.device)
    return log_probabilities.scatter(1, tokens, -torch.inf).logsumexp(-1)


def _join(rows: PackedRows, more: PackedRows) -> PackedRows:
    return PackedRows(
        ids=np.concatenate((rows.ids, more.ids)),
        labels=np.concatenate((rows.labels, more.labels)),
        position=np.concatenate((rows.position, more.position)),
        valid=np.concatenate((rows.valid, more.valid)),
    )
