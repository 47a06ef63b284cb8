"""Checks that a model's tensors are just those of its host's class: transformers loads them, as tensors without numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from composer.errors import BuildError
from composer.model.classes import class_of
from composer.model.configuration import configuration_of
from composer.reporting.progress import silent_transformers
from composer.system.trust import translate_transformers_errors
from converters.bounded import shorten
from converters.config import decode_floats
from converters.model_types import PREFIX


def find_uncovered_by_host(config: Mapping[str, Any], tensors: Mapping[str, tuple[tuple[int, ...], str]]) -> list[str]:
    """Return the problems, one line each; empty where there are none. config: the contents of ``config.json``. tensors: shape and
    type by the names that they have in files.

    transformers joins, splits and renames tensors as it loads them. A parameter that is then missing would have random values.
    """
    empty = {name: torch.empty(shape, dtype=getattr(torch, dtype), device="meta") for name, (shape, dtype) in tensors.items()}
    kind = configuration_of(str(config["model_type"]).removeprefix(PREFIX))
    problem = "transformers cannot make a model of this config.json"
    options: dict[str, Any] = {"device_map": {"": "meta"}, "ignore_mismatched_sizes": True, "output_loading_info": True}
    with silent_transformers("critical"), translate_transformers_errors(problem, BuildError):
        made = kind.from_dict(decode_floats(config))
        try:
            try:
                _, report = class_of(made).from_pretrained(None, config=made, state_dict=empty, **options)
            except NotImplementedError:  # before 5.14 it compares the values of tied tensors that are both in files
                made.tie_word_embeddings = False
                _, report = class_of(made).from_pretrained(None, config=made, state_dict=empty, **options)
        except RuntimeError as error:
            joined = "tensors that transformers joins as it loads them, such as those of experts, are missing or of several shapes"
            return [f"{joined}, or a size of config.json cannot be: {shorten(str(error))}"]
    problems = [f"the model needs {name}, and no file has it" for name in sorted(report["missing_keys"])]
    problems += [f"the model has no place for {name}" for name in sorted(report["unexpected_keys"])]
    problems += [f"{name} has another shape than the model's: {shapes}" for name, *shapes in sorted(report["mismatched_keys"])]
    return problems + [str(message) for message in report["error_msgs"]]
