"""ListOps from nothing: an encoder of latents beside one of softmax attention, trained by transformers' own ``Trainer``."""

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
from evidence.kept import KEPT, is_kept, keep_figures
from evidence.running import Listener

NAME, MAJORITY, ACCURACY = "listops", "majority", "accuracy"
COMMAND = f"python -m evidence --only {NAME}"
SPEC = "evidence/specs/listops.yaml"
SYMBOLS = {symbol: index for index, symbol in enumerate((*OPERATORS, END, *map(str, range(10))), start=1)}
"""0 is padding."""


@dataclass(frozen=True)
class Setting:
    """Trees, and how encoders learn them. above, below: bounds of their symbols. Held-out trees are the same for every seed."""

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
    def says(self) -> str:
        return (
            f"{self.trees:,} trees of {self.above + 1} to {self.below - 1} symbols, {self.steps:,} steps of {self.batch}, AdamW at "
            f"{self.rate:g}; {self.held_out:,} trees are held out."
        )


SETTING = Setting()


@dataclass(frozen=True)
class Row:
    """A tree: its symbols' ids, and its value."""

    ids: tuple[int, ...]
    value: int


@cache
def variants() -> dict[str, Variant]:
    """The encoders, by name."""
    return {variant.name.rpartition("-")[2]: variant for variant in read_variants((SPEC,))}


def identity(setting: Setting, name: str, seed: int) -> str:
    """The identity of a run, from its setting without the other seeds."""
    said = (
        None if name == MAJORITY else variants()[name].spec.model_dump(mode="json", exclude_unset=True, exclude={"name", "paper"})
    )
    asked = {"spec": said, "seed": seed, "setting": asdict(setting) | {"seeds": None}}
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def run_missing(work: Path, tell: Listener, device: str = "cpu", kept: Path = KEPT, setting: Setting = SETTING) -> None:
    """Trains every encoder that is not kept, seed by seed, and scores the most frequent answer. Raises ComposerError."""
    wanted = [(name, seed) for seed in setting.seeds for name in (MAJORITY, *variants())]
    missing = [(name, seed) for name, seed in wanted if not is_kept((NAME, name, seed), identity(setting, name, seed), kept)]
    tell(f"{NAME}: {len(missing)} runs to do")
    held_out = rows(setting, "evaluation", setting.held_out, 0) if missing else []
    for name, seed in missing:
        began, taught = time.monotonic(), rows(setting, "train", setting.trees, seed)
        if name == MAJORITY:
            ((guess, _),) = Counter(row.value for row in taught).most_common(1)
            right = sum(row.value == guess for row in held_out) / len(held_out)
        else:
            right = learn(setting, variants()[name], taught, held_out, seed, work / NAME, device)
        place, own = (NAME, name, seed), identity(setting, name, seed)
        keep_figures(place, own, {ACCURACY: right}, time.monotonic() - began, kept)
        tell(f"{NAME}: {name}, seed {seed}: {right:.3f}")


def rows(setting: Setting, split: Split, count: int, seed: int) -> list[Row]:
    """Trees that this split alone has, drawn as the Long Range Arena draws them."""
    task, rng = (
        ListOps(above=setting.above, below=setting.below, depth=setting.depth, arguments=setting.arguments),
        random.Random(seed),
    )
    trees = (apart(rng, split, lambda draws: task.tree(draws, setting.below)) for _ in range(count))
    return [Row(tuple(SYMBOLS[symbol] for symbol in tree.symbols), tree.value) for tree in trees]


def padded(batch: Sequence[Row]) -> dict[str, Any]:
    """Return rows as inputs of a classifier, padded at their ends."""
    import torch

    longest = max(len(row.ids) for row in batch)
    ids = torch.tensor([[*row.ids, *[0] * (longest - len(row.ids))] for row in batch])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([row.value for row in batch])}


def learn(
    setting: Setting, variant: Variant, taught: Sequence[Row], held_out: Sequence[Row], seed: int, work: Path, device: str
) -> float:
    """Train a new encoder. Returns the share of held-out trees whose value it predicts."""
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
        train_dataset=taught,  # pyright: ignore[reportArgumentType]
        data_collator=padded,  # pyright: ignore[reportArgumentType]
    )
    trainer.train()
    found: Any = trainer.predict(held_out)  # pyright: ignore[reportArgumentType]
    return float((found.predictions.argmax(-1) == found.label_ids).mean())
