"""Models that a class of transformers computes: the same formulas, so the same logits up to rounding.

``composer.exporting.targets`` has the classes. A model is written only where every formula and every size is the class's own;
otherwise all differences from the class that comes closest are listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from composer.errors import ExportError
from composer.exporting.targets import TARGETS, target_named
from composer.exporting.targets.fit import ClosestFit, fit
from composer.exporting.targets.target import NativeTarget, StudentModel, WeightTable
from composer.model.hosts import attentions
from composer.reporting.words import plural
from composer.spec.dimensions import Dimensions
from composer.system.files import system_errors
from composer.weights.record import CONFIG
from converters.composed import ADAPTER_KEY, SPEC_KEYS, TRUNK_KEYS
from converters.model_types import host_of
from converters.source import GENERATION_CONFIG

MOST_DIFFERENCES = 12
"""The most differences that one message lists."""


@dataclass(frozen=True)
class Native:
    """target: the class as data. architecture: its name in transformers. config: its ``config.json``. weights: None if they are the
    model's own files; otherwise all tensors by the class's names, in float32."""

    target: NativeTarget
    architecture: str
    config: Mapping[str, Any]
    weights: Mapping[str, Tensor] | None = None

    @property
    def model_type(self) -> str:
        return self.config["model_type"]


def native_of(model: Any, target: str | None = None) -> Native:
    """Return the class, the config and the weights that transformers computes a model by.

    target: the class, by its name; left out, the first one that fits. Raises ExportError with every difference between the model
    and the class that comes closest.
    """
    student = student_of(model)
    comparisons = [fit(native_target, student) for native_target in ([target_named(target)] if target else TARGETS.values())]
    closest = min(comparisons, key=lambda comparison: (bool(comparison.differences), comparison.distance))
    kind = closest.target.model_type or student.host
    if closest.differences:
        raise _refusal(closest, kind)
    config = _config_of(model, student, closest, kind)
    weights = _weights_of(model, student, closest) if closest.target.ends else None
    if weights is not None:
        config["dtype"] = "float32"
    return Native(closest.target, _class_of(kind).__name__, config, weights)


def student_of(model: Any) -> StudentModel:
    """Return what classes are compared with, of a loaded model."""
    resolved = model.config.read_spec()
    # This project's own blocks rotate in all layers.
    hosts = () if resolved.dimensions.rope_theta is not None else attentions(model)
    unrotated = frozenset(attention.layer for _, attention in hosts if not attention.facts.rotates)
    return StudentModel(resolved, host_of(model.config.model_type), model.config.to_dict(), unrotated)


def write_weights(native: Native, folder: Path) -> None:
    """Write converted weights, as transformers saves those of the class: in shards if there are many."""
    assert native.weights is not None, "the model's own files are linked otherwise"
    with torch.device("meta"):
        model = model_of(native)
    missing, unknown = model.load_state_dict(native.weights, strict=False, assign=True)
    model.tie_weights()
    tied = set(getattr(model, "all_tied_weights_keys", {}))
    assert not unknown, "every tensor has a name of the class"
    assert set(missing) <= tied, "every parameter of the class has its tensor"
    with system_errors(folder):
        model.save_pretrained(folder)
    for name in (CONFIG, GENERATION_CONFIG):  # the folder's documents are written by themselves
        (folder / name).unlink(missing_ok=True)


def model_of(native: Native) -> Any:
    """Build the class of transformers, with weights at their start."""
    fields = {name: value for name, value in native.config.items() if name != "model_type"}
    return _class_of(native.model_type)(CONFIG_MAPPING[native.model_type](**fields))


def _class_of(kind: str) -> Any:
    """Return the class of causal language models of a model type."""
    return MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[kind]]


def _config_of(model: Any, student: StudentModel, closest: ClosestFit, kind: str) -> dict[str, Any]:
    """Return the fields of the model's config that the class has, with those of the target."""
    left_out = {
        *SPEC_KEYS,
        *TRUNK_KEYS,
        ADAPTER_KEY,
        "auto_map",
        "_name_or_path",
        "transformers_version",
        "architectures",
        "model_type",
    }
    fields = {name: value for name, value in model.config.to_dict().items() if name not in left_out}
    if kind != student.host:
        defaults = CONFIG_MAPPING[kind]().to_dict()
        fields = {name: value for name, value in fields.items() if name in defaults}
    return {
        "architectures": [_class_of(kind).__name__],
        "model_type": kind,
        **fields,
        **closest.target.config(student, list(closest.types)),
    }


def _weights_of(model: Any, student: StudentModel, closest: ClosestFit) -> dict[str, Tensor]:
    """Return all weights by the class's names, in float32, in which the class's norms round them at most once.

    Every tensor of the student has a place in the tables; every tensor of the class has its own, as ``write_weights`` checks.
    """
    remaining = {name: parameter.detach().float() for name, parameter in model.named_parameters()}
    weights = dict(_converted(remaining, "", "", closest.target.ends, student.size, ()))
    for name, attention in attentions(model):
        kind, block = closest.types[attention.layer], name.removesuffix("self_attn")
        (group,) = student.resolved.layers[attention.layer]
        memory = student.heads[group.head].memory[0].called
        for parameter_name in [full_name for full_name in remaining if full_name.startswith(f"{name}.composed.")]:
            short = parameter_name.removeprefix(f"{name}.composed.{group.head}.")
            if short.startswith((f"{memory}.", f"{memory}_")):
                short = f"memory{short.removeprefix(memory)}"
            remaining[f"{name}.{short}"] = remaining.pop(parameter_name)
        weights |= _converted(remaining, block, block, closest.target.blocks, student.size, ())
        weights |= _converted(remaining, f"{name}.", f"{block}{kind.module}.", kind.weights, student.size, tuple(kind.identities))
    assert not remaining, f"every parameter of the model has its place in the class: {', '.join(remaining)}"
    return weights


def _converted(
    remaining: dict[str, Tensor], prefix: str, class_prefix: str, table: WeightTable, size: Dimensions, optional: tuple[str, ...]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a table by the class's names, and remove the student's tensors that they are made of."""
    used = {name for _, *names in table.values() for name in names}
    tied = {"lm_head.weight"} - remaining.keys()
    tensors = {name: remaining.pop(f"{prefix}{name}", None) for name in used}
    absent = [name for name, tensor in tensors.items() if tensor is None and name not in (*optional, *tied)]
    assert not absent, f"the model has every tensor of the table, but {', '.join(absent)}"
    for name, (function, *names) in table.items():
        if (tensor := None if name in tied else function(size, *(tensors[item] for item in names))) is not None:
            yield f"{class_prefix}{name}", tensor.contiguous()


def _refusal(closest: ClosestFit, kind: str) -> ExportError:
    differences = closest.differences
    more = len(differences) - MOST_DIFFERENCES
    lines = [*map(str, differences[:MOST_DIFFERENCES]), *([f"{more} more"] if more > 0 else [])]
    return ExportError(
        f"transformers has no class with these heads. {_class_of(kind).__name__} comes closest, and differs in "
        f"{plural(len(differences), 'point')}:\n"
        + "".join(f"- {line}\n" for line in lines)
        + "Train a student with these changes, or export without this option: the folder then has a Python file of its own."
    )
