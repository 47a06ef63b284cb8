"""Whether latents collapse: how many latents of a trained Macchiato a text uses, by the findings of ``compose inspect``."""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import composer
from composer.ablation.runner import StartWorkers
from composer.inspection.findings import Findings, PlainArray
from composer.inspection.measures import entropy
from evidence.experiments import LATTE, MACCHIATO, Experiment
from evidence.kept import KEPT, is_kept, keep_figures
from evidence.kept import identity as identity_of
from evidence.running import Listener, taught_model, variants_of

NAME = "collapse"
USED, LEAST, LARGEST = "latents in use", "least of any head", "largest share of one"
ASKED = "asked by a token"
WINDOW, WINDOW_LEAST, WINDOW_MOST = "window", "window, least of any head", "window, most of any head"
TITLES = (USED, LEAST, LARGEST, ASKED, WINDOW, WINDOW_LEAST, WINDOW_MOST)
"""The first two: exp of the entropy of a head's mean p(l|t) over its latents, over their number; the third: the largest share in
that mean. Then the same for p(l|t) itself, as a mean over tokens. The last three: p(0|t), the share of the window."""
LATENTS = "latents"


@dataclass(frozen=True)
class Looked:
    """The models of an experiment to inspect, and the texts: so many of each task, of so many tokens."""

    experiment: Experiment
    variant: str
    tasks: tuple[str, ...]
    texts: int = 4
    length: int = 256

    @property
    def command(self) -> str:
        return (
            f"compose inspect MODEL --tasks {'|'.join(self.tasks)} --length {self.length} --queries {self.length} --alone "
            f"--seed {'|'.join(map(str, range(self.texts)))}"
        )


MODELS = {
    "macchiato": Looked(MACCHIATO, "macchiato", ("stories", "passkey", "recall")),
    "from-nothing": Looked(LATTE, "latte-rglru-swa-pp", ("stories",)),
}


def identity(looked: Looked, seed: int) -> str:
    """The identity of an inspection, which includes that of the model's run."""
    model = identity_of(looked.experiment, variants_of(looked.experiment)[looked.variant], seed, {})
    asked = {"model": model, "tasks": looked.tasks, "texts": looked.texts, "length": looked.length}
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def run_missing(
    work: Path, workers: StartWorkers, tell: Listener, device: str = "cpu", kept: Path = KEPT, models: Mapping[str, Looked] = MODELS
) -> None:
    """Does every inspection that is not kept. A missing model is trained first. Raises ComposerError."""
    wanted = [(name, one, seed) for name, one in models.items() for seed in one.experiment.request.seeds]
    missing = [(name, one, seed) for name, one, seed in wanted if not is_kept((NAME, name, seed), identity(one, seed), kept)]
    tell(f"{NAME}: {len(missing)} looks to do")
    for name, one, seed in missing:
        tell(f"{NAME}: {name}, seed {seed}")
        model = taught_model(one.experiment, one.variant, seed, work, workers, tell, device)
        began = time.monotonic()
        figures, values = looked_at(model, one)
        keep_figures((NAME, name, seed), identity(one, seed), figures, time.monotonic() - began, kept, values)


def looked_at(model: Path, looked: Looked) -> tuple[dict[str, float], dict[str, list[float]]]:
    """The figures of a model, and those of each head, by LAYER.HEAD. Raises ComposerError."""
    pieces: dict[str, list[PlainArray]] = {}
    for task in looked.tasks:
        for seed in range(looked.texts):
            found = composer.inspect(model, tasks=task, length=looked.length, queries=looked.length, seed=seed, alone=True)
            for head, shares in shares_of(found).items():
                pieces.setdefault(head, []).append(shares)
    heads = {head: usage(np.concatenate(each)) for head, each in pieces.items()}
    used, largest, asked, window = (list(column) for column in zip(*heads.values(), strict=True))
    figures = {USED: statistics.fmean(used), LEAST: min(used), LARGEST: max(largest), ASKED: statistics.fmean(asked)}
    figures |= {WINDOW: statistics.fmean(window), WINDOW_LEAST: min(window), WINDOW_MOST: max(window)}
    return figures, {head: [round(number, 4) for number in each] for head, each in heads.items()}


def shares_of(found: Findings) -> dict[str, PlainArray]:
    """For each head p(l|t) of its latents, tokens × latents; the window has the rest up to 1."""
    shares: dict[str, PlainArray] = {}
    for group in found.heads:
        among = group.shown[f"{LATENTS}: p(l|t)"].numbers[list(found.queries)]
        for head in range(group.heads):
            shares[f"{group.layer}.{group.first + head}"] = among[:, head] * group.shares[LATENTS][head][:, None]
    return shares


def usage(shares: PlainArray) -> tuple[float, float, float, float]:
    """The figures of one head, from p(l|t), tokens × latents: latents in use, the largest share of one, latents that a token uses,
    and the window's share."""
    latents = torch.as_tensor(shares, dtype=torch.float64)
    total = latents.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    mean, count = latents.mean(0) / latents.mean(0).sum(), latents.shape[-1]
    used, asked = entropy(mean).exp() / count, (entropy(latents / total).exp() / count).mean()
    return float(used), float(mean.max()), float(asked), 1 - float(latents.sum(-1).mean())
