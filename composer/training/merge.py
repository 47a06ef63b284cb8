"""Folds adapters into the weights that they adapt."""

from __future__ import annotations

from pathlib import Path

from composer.errors import TrainingError
from composer.model.modeling import ComposedForCausalLM
from composer.training.finetune import merged
from composer.training.journal import CURVE, LOG
from composer.weights.load import load_model
from composer.weights.record import TRAINING, Record
from composer.weights.rewrite import Trained, write_trained


def merge_adapters(model: Path, out: Path, *, force: bool = False) -> Record:
    """The model of a folder with its adapters folded in, at ``out``; its record. Raises TrainingError and BuildError."""
    loaded = load_model(model, "float32", "cpu")
    if not isinstance(loaded, ComposedForCausalLM) or loaded.config.adapter is None:
        raise TrainingError(f"{model} has no adapters: there is nothing to merge.")
    logs = {name: path for name in (LOG, CURVE) if (path := model / TRAINING / name).is_file()}
    return write_trained(model, out, Trained(merged(loaded), None, (), logs, loaded), force=force)
