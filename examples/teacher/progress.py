"""Where a training stands, in one file: whoever trains again with the same settings goes on from there."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch


@dataclass
class Progress:
    """stage: the number of the one that is trained, from 1. step: of it, those that are done. taken: the steps of those before.
    next_sample: the first that is not drawn yet. seen: hashes of all texts so far. recent: losses since the last report, and mean
    of those before it. seconds: of training so far."""

    stage: int = 1
    step: int = 0
    taken: list[int] = field(default_factory=list)
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
    """As a whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    said = vars(progress) | {"seen": torch.tensor(sorted(progress.seen), dtype=torch.int64)}
    torch.save({"settings": settings, "progress": said, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, partial)
    os.replace(partial, path)


def resume(path: Path, settings: dict[str, Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """What was saved, into the model and the optimizer; a beginning where nothing was. Raises ValueError if it was of other
    settings."""
    if not path.is_file():
        return Progress()
    found = torch.load(path, weights_only=True)
    if found["settings"] != settings:
        raise ValueError(f"{path} is of a training with other settings. Say the same ones, choose another -o, or remove it.")
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    return Progress(**found["progress"] | {"seen": set(found["progress"]["seen"].tolist())})
