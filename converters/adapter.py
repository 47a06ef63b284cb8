"""The adapters beside a model's weights: a folder of settings and of matrices, as PEFT writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from converters.bounded import MOST_CONFIG, brief, read_json, within
from converters.errors import WeightsError
from converters.shard import read_shard

ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"


def check_adapter(folder: Path, name: str) -> None:
    """Whether they are what they say, which PEFT makes room for before it looks at them. Raises WeightsError.

    folder: the model's. name: of their own folder inside it.
    """
    path = folder / name / ADAPTER_CONFIG
    try:
        config = read_json(within(folder, f"{name}/{ADAPTER_CONFIG}"), MOST_CONFIG)
        shard = read_shard(within(folder, f"{name}/{ADAPTER_WEIGHTS}"))
    except OSError as error:
        raise WeightsError(f"{path.parent} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise WeightsError(f"{path} is not JSON: {error}.") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise WeightsError(f"{path} does not describe LoRA, the adapters that are read.")
    # Down-projections are [rank, in], up-projections [out, rank].
    there = {size for tensor in shard.tensors.values() for size in tensor.shape}
    patterns = config.get("rank_pattern") or {}
    for rank in (config.get("r"), *(patterns.values() if isinstance(patterns, Mapping) else [patterns])):
        if not isinstance(rank, int) or isinstance(rank, bool) or rank not in there:
            raise WeightsError(f"{path} has adapters of rank {brief(rank)}; {ADAPTER_WEIGHTS} has none of them.")
