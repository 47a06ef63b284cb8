"""ListOps: an encoder with latents and one with softmax attention, trained from scratch by transformers' ``Trainer``."""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import composer
from composer.ablation.plan import Variant, read_variants
from composer.tasks.base import Split, apart
from composer.tasks.listops import END, OPERATORS, ListOps
from evidence.experiments import SEEDS
from evidence.kept import RUNS, is_kept, keep_figures
from evidence.running import Listener

NAME, MAJORITY, ACCURACY = "listops", "majority", "accuracy"
COMMAND = f"python -m evidence --only {NAME}"
SPEC = "evidence/specs/listops.yaml"
SYMBOLS = {symbol: index for index, symbol in enumerate((*OPERATORS, END, *map(str, range(10))), start=1)}
"""The id of each symbol. Padding has id 0."""


@dataclass(frozen=True)
class Setting:
    """The trees and the training of encoders. All seeds have the same held-out trees.

    - above, below: exclusive bounds of a tree's number of symbols.
    - depth, arguments: the largest depth, and the most arguments of an operator.
    """

    above: int = 6
    below: int = 26
    depth: int = 3
    arguments: int = 4
    trees: int = 20_000
    held_out: int = 1_000
    steps: int = 2_000
    batch: int = 64
    rate: float = 3e-3
    warmup: int = 200
    decay: float = 0.01
    seeds: tuple[int, ...] = SEEDS

    @property
    def description(self) -> str:
        return (
            f"{self.trees:,} trees of {self.above + 1} to {self.below - 1} symbols, {self.steps:,} steps of {self.batch}, AdamW at "
            f"{self.rate:g}; {self.held_out:,} trees are held out."
        )


SETTING = Setting()


@dataclass(frozen=True)
class Row:
    """A tree: the ids of its symbols, and its value."""

    ids: tuple[int, ...]
    value: int


@cache
def read_encoders() -> dict[str, Variant]:
    """Return the specs of the encoders, by name."""
    return {variant.name.rpartition("-")[2]: variant for variant in read_variants((SPEC,))}


def compute_identity(setting: Setting, name: str, seed: int) -> str:
    """Return the identity of a run. It does not depend on the other seeds."""
    spec = (
        None
        if name == MAJORITY
        else read_encoders()[name].spec.model_dump(mode="json", exclude_unset=True, exclude={"name", "paper"})
    )
    inputs = {"spec": spec, "seed": seed, "setting": asdict(setting) | {"seeds": None}}
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]


def run_missing(work: Path, tell: Listener, device: str = "cpu", runs_folder: Path = RUNS, setting: Setting = SETTING) -> None:
    """Train every encoder that is not kept, seed by seed, and score the most frequent value. Raises ComposerError."""
    runs = [(name, seed) for seed in setting.seeds for name in (MAJORITY, *read_encoders())]
    missing = [
        (name, seed) for name, seed in runs if not is_kept((NAME, name, seed), compute_identity(setting, name, seed), runs_folder)
    ]
    tell(f"{NAME}: {len(missing)} runs to do")
    held_out = draw_rows(setting, "evaluation", setting.held_out, 0) if missing else []
    for name, seed in missing:
        start, training_rows = time.monotonic(), draw_rows(setting, "train", setting.trees, seed)
        if name == MAJORITY:
            ((guess, _),) = Counter(row.value for row in training_rows).most_common(1)
            accuracy = sum(row.value == guess for row in held_out) / len(held_out)
        else:
            accuracy = train_encoder(setting, read_encoders()[name], training_rows, held_out, seed, work / NAME, device)
        run_key, identity = (NAME, name, seed), compute_identity(setting, name, seed)
        keep_figures(run_key, identity, {ACCURACY: accuracy}, time.monotonic() - start, runs_folder)
        tell(f"{NAME}: {name}, seed {seed}: {accuracy:.3f}")


def draw_rows(setting: Setting, split: Split, count: int, seed: int) -> list[Row]:
    """Draw trees as the Long Range Arena does. Splits have no tree in common."""
    task, rng = (
        ListOps(above=setting.above, below=setting.below, depth=setting.depth, arguments=setting.arguments),
        random.Random(seed),
    )
    trees = (apart(rng, split, lambda draws: task.tree(draws, setting.below)) for _ in range(count))
    return [Row(tuple(SYMBOLS[symbol] for symbol in tree.symbols), tree.value) for tree in trees]


def pad_rows(batch: Sequence[Row]) -> dict[str, Any]:
    """Return rows as inputs of a classifier, padded at their ends."""
    import torch

    longest = max(len(row.ids) for row in batch)
    ids = torch.tensor([[*row.ids, *[0] * (longest - len(row.ids))] for row in batch])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([row.value for row in batch])}


def train_encoder(
    setting: Setting, variant: Variant, training_rows: Sequence[Row], held_out: Sequence[Row], seed: int, work: Path, device: str
) -> float:
    """Train a new encoder, and return the share of held-out trees whose value it predicts."""
    from transformers import Trainer, TrainingArguments

    options = TrainingArguments(
        str(work),
        max_steps=setting.steps,
        per_device_train_batch_size=setting.batch,
        per_device_eval_batch_size=setting.batch,
        learning_rate=setting.rate,
        lr_scheduler_type="cosine",
        warmup_steps=setting.warmup,
        weight_decay=setting.decay,
        seed=seed,
        use_cpu=device == "cpu",
        remove_unused_columns=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=composer.build(variant.spec, fresh=True, seed=seed),
        args=options,
        train_dataset=training_rows,  # pyright: ignore[reportArgumentType]
        data_collator=pad_rows,  # pyright: ignore[reportArgumentType]
    )
    trainer.train()
    predictions: Any = trainer.predict(held_out)  # pyright: ignore[reportArgumentType]
    return float((predictions.predictions.argmax(-1) == predictions.label_ids).mean())
