"""Latent collapse: how many latents of a trained Macchiato a text uses, measured by ``compose inspect``."""

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
from evidence.kept import RUNS, is_kept, keep_figures
from evidence.kept import compute_identity as compute_run_identity
from evidence.running import Listener, train_model, variants_of

NAME = "collapse"
USED, LEAST, LARGEST = "latents in use", "least of any head", "largest share of one"
USED_BY_TOKEN = "asked by a token"
WINDOW, WINDOW_LEAST, WINDOW_MOST = "window", "window, least of any head", "window, most of any head"
TITLES = (USED, LEAST, LARGEST, USED_BY_TOKEN, WINDOW, WINDOW_LEAST, WINDOW_MOST)
"""Columns. p(l|t) is the share of latent l at token t, and p(0|t) that of the window.

- USED, LEAST: exp of the entropy of a head's mean p(l|t), divided by the number of its latents; mean and minimum over heads.
- LARGEST: the largest share in the mean p(l|t).
- USED_BY_TOKEN: as USED, of p(l|t) at each token, averaged over tokens.
- WINDOW, WINDOW_LEAST, WINDOW_MOST: p(0|t); mean, minimum and maximum over heads.
"""
LATENTS = "latents"


@dataclass(frozen=True)
class Inspection:
    """An inspection of an experiment's model. texts: the number of texts of each task. length: tokens in each."""

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
    "macchiato": Inspection(MACCHIATO, "macchiato", ("stories", "passkey", "recall")),
    "from-nothing": Inspection(LATTE, "latte-rglru-swa-pp", ("stories",)),
}


def compute_identity(inspection: Inspection, seed: int) -> str:
    """Return the identity of an inspection, which includes that of the model's run."""
    model = compute_run_identity(inspection.experiment, variants_of(inspection.experiment)[inspection.variant], seed, {})
    inputs = {"model": model, "tasks": inspection.tasks, "texts": inspection.texts, "length": inspection.length}
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:16]


def run_missing(
    work: Path,
    workers: StartWorkers,
    tell: Listener,
    device: str = "cpu",
    runs_folder: Path = RUNS,
    models: Mapping[str, Inspection] = MODELS,
) -> None:
    """Do all inspections that are not kept. A missing model is trained first. Raises ComposerError."""
    inspections = [(name, inspection, seed) for name, inspection in models.items() for seed in inspection.experiment.request.seeds]
    missing = [
        (name, inspection, seed)
        for name, inspection, seed in inspections
        if not is_kept((NAME, name, seed), compute_identity(inspection, seed), runs_folder)
    ]
    tell(f"{NAME}: {len(missing)} inspections to do")
    for name, inspection, seed in missing:
        tell(f"{NAME}: {name}, seed {seed}")
        model = train_model(inspection.experiment, inspection.variant, seed, work, workers, tell, device)
        start = time.monotonic()
        figures, values = inspect_model(model, inspection)
        keep_figures((NAME, name, seed), compute_identity(inspection, seed), figures, time.monotonic() - start, runs_folder, values)


def inspect_model(model: Path, inspection: Inspection) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return the figures of a model, and those of each head by LAYER.HEAD. Raises ComposerError."""
    shares_by_head: dict[str, list[PlainArray]] = {}
    for task in inspection.tasks:
        for seed in range(inspection.texts):
            findings = composer.inspect(
                model, tasks=task, length=inspection.length, queries=inspection.length, seed=seed, alone=True
            )
            for head, shares in shares_of(findings).items():
                shares_by_head.setdefault(head, []).append(shares)
    heads = {head: measure_usage(np.concatenate(values)) for head, values in shares_by_head.items()}
    used, largest, used_by_token, window = (list(column) for column in zip(*heads.values(), strict=True))
    figures = {
        USED: statistics.fmean(used),
        LEAST: min(used),
        LARGEST: max(largest),
        USED_BY_TOKEN: statistics.fmean(used_by_token),
    }
    figures |= {WINDOW: statistics.fmean(window), WINDOW_LEAST: min(window), WINDOW_MOST: max(window)}
    return figures, {head: [round(number, 4) for number in values] for head, values in heads.items()}


def shares_of(findings: Findings) -> dict[str, PlainArray]:
    """Return p(l|t) of each head's latents, tokens × latents, by LAYER.HEAD. One minus a row's sum is the window's share."""
    shares: dict[str, PlainArray] = {}
    for group in findings.heads:
        latent_shares = group.shown[f"{LATENTS}: p(l|t)"].numbers[list(findings.queries)]
        for head in range(group.heads):
            shares[f"{group.layer}.{group.numbers[head]}"] = latent_shares[:, head] * group.shares[LATENTS][head][:, None]
    return shares


def measure_usage(shares: PlainArray) -> tuple[float, float, float, float]:
    """Return the figures USED, LARGEST, USED_BY_TOKEN and WINDOW of one head. shares: p(l|t), tokens × latents."""
    latents = torch.as_tensor(shares, dtype=torch.float64)
    total = latents.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    mean, count = latents.mean(0) / latents.mean(0).sum(), latents.shape[-1]
    used, used_by_token = entropy(mean).exp() / count, (entropy(latents / total).exp() / count).mean()
    return float(used), float(mean.max()), float(used_by_token), 1 - float(latents.sum(-1).mean())
