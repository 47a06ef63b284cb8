"""The adapters beside a model's weights: a folder of settings and of matrices, as PEFT writes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from converters.bounded import MOST_CONFIG, brief, problem_with, read_json, within
from converters.composed import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from converters.config import LARGEST_NUMBER
from converters.errors import WeightsError
from converters.hosts import ATTENTIONS, WHOLE
from converters.shard import Shard, read_shard

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")
"""The projections that may have adapters, by their usual names."""
_JOINT = ("qkv_proj", "query_key_value", "c_attn", "Wqkv")
OTHERS: Mapping[str, tuple[str, ...]] = {
    "q": ("q_b_proj", *_JOINT),
    "k": ("kv_b_proj", *_JOINT),
    "v": ("kv_b_proj", *_JOINT),
    "o": ("out_proj", "dense", "c_proj", "Wo"),
}
"""Other names that hosts give the projections: those behind compressed vectors, and joint ones of queries, keys and values."""
_WITHIN = frozenset(f"{attention}.{name}" for attention in ATTENTIONS for names in (TARGETS, *OTHERS.values()) for name in names)
"""Names of projections with the module of their attention, as adapters write them. Outside of attention, other modules may have
these names."""
_INSIDE = re.compile(rf"model\.(?:{'|'.join(sorted(set(WHOLE.values())))})\.layers\.[0-9]{{1,9}}\.(\w+\.\w+)")
"""The full name of a projection of a text decoder inside another model."""

_CHECKED = frozenset(
    {"peft_type", "peft_version", "base_model_name_or_path", "revision", "r", "lora_alpha", "target_modules", "fan_in_fan_out"}
)
"""Keys that are checked one by one, keys that only name the adapters' origin, and a key from which PEFT selects the modules."""
_NEUTRAL: Mapping[str, object] = {
    "task_type": "CAUSAL_LM",
    "inference_mode": True,
    "init_lora_weights": True,
    "bias": "none",
    "lora_dropout": 0.0,
    "megatron_core": "megatron.core",
    "qalora_group_size": 16,
    "runtime_config": {"ephemeral_gpu_offload": False},
}
"""PEFT's other keys, with the values at which they do nothing."""


_FOREIGN = (
    "target_modules",
    "exclude_modules",
    "modules_to_save",
    "target_parameters",
    "rank_pattern",
    "alpha_pattern",
    "bias",
    "use_rslora",
    "use_dora",
    "lora_bias",
)
"""Further keys that adapters of another program may have at other values."""
_OF_TRAINING = ("task_type", "auto_mapping", "inference_mode", "init_lora_weights", "lora_dropout")
"""Keys that have no effect on adapters that are merged."""
_MODULE = re.compile(r"[\w.]{1,200}", re.ASCII)
"""Names of modules. PEFT reads other texts as regular expressions."""


def check_adapter(folder: Path, name: str) -> None:
    """Raise WeightsError if adapters differ from their config, by which PEFT allocates memory before it reads them.

    folder: the model's. name: of the adapters' folder inside it.
    """
    config, _ = _read(folder / name, lambda file: within(folder, f"{name}/{file}"))
    path, targets = folder / name / ADAPTER_CONFIG, config.get("target_modules")
    if not (isinstance(targets, list) and targets and all(map(_is_projection, targets))):
        raise WeightsError(
            f"{path} has target_modules: {brief(targets)}; expected some of {', '.join(TARGETS)}, or of the names that hosts have "
            "for these, with their attention, such as self_attn.qkv_proj or attention.dense."
        )
    _check_keys(path, {key: value for key, value in config.items() if key not in _CHECKED})


def read_foreign_adapter(folder: Path) -> dict[str, Any]:
    """Return the fields of PEFT's ``LoraConfig`` of adapters that another program saved in a folder.

    Raises WeightsError for adapters that PEFT would need code, other files, or more memory than they have for.
    """
    config, shard = _read(folder, lambda file: within(folder, file))
    path = folder / ADAPTER_CONFIG
    _check_keys(path, {key: value for key, value in config.items() if key not in (*_CHECKED, *_FOREIGN, *_OF_TRAINING)})
    for key in ("target_modules", "exclude_modules", "modules_to_save", "target_parameters"):
        names = config.get(key) or []
        if not (isinstance(names, list) and all(isinstance(name, str) and _MODULE.fullmatch(name) for name in names)):
            raise WeightsError(f"{path} has {key}: {brief(names)}; expected a list of names of modules.")
    for key in ("rank_pattern", "alpha_pattern"):
        pattern = config.get(key) or {}
        if not (isinstance(pattern, dict) and all(_MODULE.fullmatch(name) for name in pattern)):
            raise WeightsError(f"{path} has {key}: {brief(pattern)}; expected names of modules with numbers.")
        for value in pattern.values():
            _check_rank(path, value, shard) if key == "rank_pattern" else _check_alpha(path, value)
    return {key: config[key] for key in ("r", "lora_alpha", "fan_in_fan_out", *_FOREIGN) if config.get(key) is not None}


def _read(place: Path, find: Callable[[str], Path]) -> tuple[dict[str, Any], Shard]:
    """Return the config and the weights' header of LoRA. place: their folder. find: returns the path of a file in it."""
    path = place / ADAPTER_CONFIG
    try:
        config = read_json(find(ADAPTER_CONFIG), MOST_CONFIG)
        shard = read_shard(find(ADAPTER_WEIGHTS))
    except OSError as error:
        raise WeightsError(f"{place} cannot be read: {problem_with(error)}.") from error
    except ValueError as error:
        raise WeightsError(f"{path} is not JSON: {error}.") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise WeightsError(f"{path} does not describe LoRA, the adapters that are read.")
    _check_rank(path, config.get("r"), shard)
    _check_alpha(path, config.get("lora_alpha"))
    return config, shard


def _check_rank(path: Path, rank: object, shard: Shard) -> None:
    # Down-projections are [rank, in], up-projections [out, rank].
    sizes = {size for tensor in shard.tensors.values() for size in tensor.shape}
    if not isinstance(rank, int) or isinstance(rank, bool) or rank not in sizes:
        raise WeightsError(f"{path} has adapters of rank {brief(rank)}; {ADAPTER_WEIGHTS} has none of them.")


def _check_alpha(path: Path, alpha: object) -> None:
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not 0 < alpha <= LARGEST_NUMBER:
        raise WeightsError(f"{path} has lora_alpha: {brief(alpha)}; expected a number greater than 0.")


def _check_keys(path: Path, config: Mapping[str, object]) -> None:
    """Raise WeightsError for a key with a value at which it does something."""
    for key, value in config.items():
        if value not in (None, False, [], {}, _NEUTRAL.get(key)):
            raise WeightsError(
                f"{path} has {brief(key)}: {brief(value)}, which these adapters do not support. Remove it, or use "
                "adapters without it."
            )


def _is_projection(target: object) -> bool:
    """Whether adapters on a module of this name are on a projection of attention; that of a text decoder has its full name."""
    if not isinstance(target, str):
        return False
    inside = _INSIDE.fullmatch(target)
    return target in TARGETS or (target if inside is None else inside[1]) in _WITHIN
