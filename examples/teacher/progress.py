"""The progress of a training in one file, from which another run with the same settings continues."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch


@dataclass
class Progress:
    """stage: the number of the current stage, from 1. step: its steps so far. stage_steps: the steps of each earlier stage.
    next_sample: the index of the next sample. seen: hashes of all texts so far. recent: losses since the last report; mean: of
    those before it. seconds: of training so far."""

    stage: int = 1
    step: int = 0
    stage_steps: list[int] = field(default_factory=list)
    next_sample: int = 0
    seen: set[int] = field(default_factory=set)
    recent: list[float] = field(default_factory=list)
    mean: float = float("nan")
    seconds: float = 0.0


def text_hash(text: str) -> int:
    """Return a hash of the text that is the same in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def save(
    path: Path, progress: Progress, settings: dict[str, Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Write the progress, the model and the optimizer, as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    fields = vars(progress) | {"seen": torch.tensor(sorted(progress.seen), dtype=torch.int64)}
    torch.save(
        {"settings": settings, "progress": fields, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, partial
    )
    os.replace(partial, path)


def resume(path: Path, settings: dict[str, Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Load what was saved into the model and the optimizer, and return the progress; a new one if there is no file. Raises
    ValueError if the file is of other settings."""
    if not path.is_file():
        return Progress()
    saved = torch.load(path, weights_only=True)
    if saved["settings"] != settings:
        raise ValueError(f"{path} is of a training with other settings. Pass the same ones, choose another -o, or remove it.")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return Progress(**saved["progress"] | {"seen": set(saved["progress"]["seen"].tolist())})
