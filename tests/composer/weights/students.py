"""Building small students for the tests of a build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from composer.building.folder import BuildReport, build_folder
from composer.spec.loading import load_spec
from composer.spec.resolve import Resolved, resolve
from composer.weights.config import dimensions
from composer.weights.plan import Plan, make_plan, weights_of
from composer.weights.sources import open_model

SOFTMAX = {"compose": 1, "name": "softmax", "head": {"memory": ["full"]}}
LOLCATS = {
    "compose": 1,
    "name": "lolcats",
    "head": {
        "feature_map": {"kind": "hedgehog", "dim": 4},
        "memory": [{"kind": "window", "size": 4, "weight": "learned"}, "state"],
    },
}
LAWCAT = {
    "compose": 1,
    "name": "lawcat",
    "head": {
        "position": "none",
        "conv": {"kernel": 4, "inputs": ["q", "k"]},
        "feature_map": {"kind": "hedgehog", "share": "qk"},
        "memory": [{"kind": "state", "gate": {"kind": "channel", "rank": 4}}],
    },
}


def resolved_for(folder: Path, spec: dict[str, Any]) -> Resolved:
    return resolve(load_spec(spec), dimensions(open_model(folder).trunk))


def plan_for(folder: Path, spec: dict[str, Any], **options: Any) -> Plan:
    source = open_model(folder)
    return make_plan(resolved_for(folder, spec), source.trunk, weights_of(source), **options)


def build(folder: Path, out: Path, spec: dict[str, Any] = SOFTMAX, **options: Any) -> BuildReport:
    return build_folder(resolved_for(folder, spec), open_model(folder), out, spec_document=spec, **options)


def loaded(folder: Path) -> PreTrainedModel:
    """Load the model by the Auto classes, with no missing or unused tensors."""
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    return model.eval()


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return all tensors of a built folder."""
    files = set(json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"].values())
    return {name: tensor for file in files for name, tensor in load_file(folder / file).items()}
