"""Whether a model's tensors are all of what its host's class wants, and nothing else: transformers is asked, with empty tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from composer.model.classes import class_of
from composer.model.configuration import configuration_of
from composer.model.joined import unspoken
from converters.model_types import PREFIX


def uncovered_by_host(config: Mapping[str, Any], tensors: Mapping[str, tuple[tuple[int, ...], str]]) -> list[str]:
    """What is wrong, one line each; empty where nothing is. config: as it is to stand in ``config.json``. tensors: shape and type
    by the names that they have in files.

    transformers loads them as it would load numbers, with all that it joins, splits and renames on the way: what it then misses
    would start at random.
    """
    made = configuration_of(str(config["model_type"]).removeprefix(PREFIX)).from_dict(dict(config))
    empty = {name: torch.empty(shape, dtype=getattr(torch, dtype), device="meta") for name, (shape, dtype) in tensors.items()}
    try:
        with unspoken():
            _, report = class_of(made).from_pretrained(
                None, config=made, state_dict=empty, device_map={"": "meta"}, ignore_mismatched_sizes=True, output_loading_info=True
            )
    except RuntimeError:
        return ["tensors that transformers joins as it loads them, such as those of experts, are missing or of several shapes"]
    problems = [f"the model wants {name}, and nothing brings it" for name in sorted(report["missing_keys"])]
    problems += [f"the model has no place for {name}" for name in sorted(report["unexpected_keys"])]
    problems += [f"{name} has another shape than the model's: {shapes}" for name, *shapes in sorted(report["mismatched_keys"])]
    return problems + [str(one) for one in report["error_msgs"]]
