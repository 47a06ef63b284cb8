"""Tiny models, rows and folders for the tests of training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

import composer
from composer.data.packing import Batch, Document, PackedRows, Packing, pack
from composer.model.modeling import ComposedForCausalLM
from composer.training.distill import distill
from composer.training.loop import Outcome
from composer.training.run import TrainingOptions, TrainingReport
from composer.training.student import Which, read_student
from composer.training.transfer import TransferCourse
from composer.weights.record import read_record
from tests.checkpoints import llama as checkpoint
from tests.composer.model.models import llama as random_llama

VOCABULARY = 64
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": VOCABULARY}
SPEC: dict[str, Any] = {
    "compose": 1,
    "name": "tiny",
    "head": {
        "position": "rope",
        "feature_map": {"kind": "hedgehog", "dim": 4},
        "memory": [{"kind": "window", "size": 4, "weight": "learned"}, "state"],
        "read": "shared",
    },
}
RECIPE: dict[str, Any] = {
    "sequence": 16,
    "transfer": {"lr": 1e-2, "steps": 6, "batch": 4, "accumulate": 2, "evaluate": 2, "schedule": "cosine", "warmup": 2},
    "finetune": {"lr": 1e-2, "steps": 5, "batch": 4, "evaluate": 2, "lora": {"rank": 2}, "fresh_lr": 3e-3},
}
LENGTHS = (5, 17, 2, 9, 12, 30, 7)


def small_llama(**changes: Any) -> Any:
    """Return a random Llama in float64."""
    return random_llama(**(SMALL | changes))


def teacher_of(source: Any) -> ComposedForCausalLM:
    """Return the frozen source with its own attention."""
    return composer.build("softmax", source).requires_grad_(False).eval()  # pyright: ignore


def student_of(source: Any, spec: str | dict[str, Any] = SPEC, *overrides: str) -> ComposedForCausalLM:
    """Return a student with fresh parameters away from their start, at which some gradients are 0."""
    model: Any = composer.build(spec, source, overrides=overrides)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".composed." in name:
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return model


def documents(lengths: Sequence[int] = LENGTHS, seed: int = 0) -> list[Document]:
    """Draw random texts with two of three tokens to learn."""
    random = np.random.default_rng(seed)
    texts = [random.integers(3, VOCABULARY, length).astype(np.int32) for length in lengths]
    return [Document(ids, np.arange(len(ids)) % 3 != 1) for ids in texts]


def rows_of(sequence: int = 16, how: Packing = "packed", seed: int = 0, lengths: Sequence[int] = LENGTHS) -> PackedRows:
    return pack(documents(lengths, seed), sequence, how=how)


def whole(rows: PackedRows) -> Batch:
    return rows.batch(range(len(rows)))


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def learned(course: TransferCourse, batch: Batch, parts: int = 1) -> dict[str, float]:
    """Return the losses of a batch in this many parts, and their summed gradients."""
    total, sums = course.count(batch), {}
    for part in batch.split(parts):
        for name, loss in course.compute_gradients(part, total).items():
            sums[name] = sums.get(name, 0.0) + float(loss)
    return sums


WORDS = ("<unk>", "once", "upon", "a", "time", "there", "was", "cat", "and", "it", "slept", "dog", "ran", "home")


def make_teacher(folder: Path, **config: Any) -> Path:
    """Write a random Llama of two layers with a tokenizer of a few words."""
    checkpoint(folder, **config)
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}))
    return folder


def make_student(folder: Path, teacher: Path, spec: dict[str, Any] | None = None, **options: Any) -> Path:
    composer.build_folder(spec or SPEC | {"recipe": RECIPE}, teacher, folder, **options)
    return folder


def write_texts(path: Path, count: int = 60, seed: int = 0) -> Path:
    """Write texts of known words, one per line."""
    random = np.random.default_rng(seed)
    lines = (" ".join(random.choice(WORDS[1:], int(random.integers(4, 24)))) for _ in range(count))
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return path


def solved_projections(model: Path) -> set[str]:
    """Return the names of the output projections that the last transfer of a Llama has solved."""
    record = read_record(model)
    assert record is not None
    starts = [stage.start for stage in record.training if stage.start is not None]
    return {
        f"model.layers.{layer.layer}.self_attn.o_proj.weight"
        for start in starts[-1:]
        for layer in start.solved
        if layer.after < layer.before
    }


def timeless(outcome: Outcome) -> Outcome:
    """Return what a stage reports without its times."""
    start = outcome.start and outcome.start.model_copy(update={"seconds": 0.0})
    return outcome.model_copy(update={"seconds": 0.0, "start": start})


def run(model: Path, out: Path, data: Path, *overrides: str, which: Which = "all", **options: Any) -> TrainingReport:
    """Run ``compose distill`` as a function and evaluate on all held-out rows."""
    usual = {"data": [str(data)], "share": 0.2, "held_out_rows": 10**6}
    return distill(read_student(model, overrides), out, TrainingOptions(**{**usual, **options}), which=which)
