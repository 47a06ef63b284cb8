"""transformers' ``Trainer`` trains a softmax student with the losses of its source for all tested arguments."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

from tests.composer.model.models import pair, tokens

LENGTH = 12
ROWS = [tokens(1, length, seed=length)[0].clamp(max=90).tolist() for length in (5, 9, 7, 12, 6, 8, 11, 4)]
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "smoothed labels": {"label_smoothing_factor": 0.1},
    "checkpointed": {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
    "checkpointed, reentrant": {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    "grouped by length": {"train_sampling_strategy": "group_by_length"},
    "in parts": {"gradient_accumulation_steps": 2},
    "packed": {"packed": True},
    "packed, smoothed": {"packed": True, "label_smoothing_factor": 0.1},
}


def padded(row: list[int], value: int) -> list[int]:
    return row + [value] * (LENGTH - len(row))


def losses(model: Any, out: Path, *, packed: bool = False, **options: Any) -> list[float]:
    """Return the losses of three steps and of an evaluation."""
    if packed:
        data = Dataset.from_dict({"input_ids": ROWS, "labels": ROWS})
        collator: Any = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    else:
        columns = {"input_ids": 0, "labels": -100}
        data, collator = Dataset.from_dict({name: [padded(row, value) for row in ROWS] for name, value in columns.items()}), None
        data = data.add_column("attention_mask", [padded([1] * len(row), 0) for row in ROWS])  # pyright: ignore[reportCallIssue]
        data = data.add_column("another", ["which no model takes"] * len(ROWS))  # pyright: ignore[reportCallIssue]
    settings: dict[str, Any] = {"max_steps": 3, "per_device_train_batch_size": 2, "logging_steps": 1, "learning_rate": 1e-3}
    settings |= {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "save_strategy": "no"}
    trainer = Trainer(
        model=copy.deepcopy(model),
        args=TrainingArguments(str(out), **settings | options),
        train_dataset=data,
        eval_dataset=data,
        data_collator=collator,
    )
    torch.manual_seed(0)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry] + [trainer.evaluate()["eval_loss"]]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("host", ["llama", "qwen3"])
def test_losses_equal_those_of_the_source(host: str, run: str, tmp_path: Path) -> None:
    wanted, actual = (losses(model, tmp_path, **RUNS[run]) for model in pair(host))
    assert len(actual) == 4
    assert actual == pytest.approx(wanted, rel=1e-4)
