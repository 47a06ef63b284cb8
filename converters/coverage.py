"""Coverage both ways: every tensor of a source has a place in the model, and every place of the trunk a tensor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from converters.bounded import brief, shorten
from converters.errors import CoverageError, WeightsError
from converters.family import Family
from converters.trunk import EMBEDDING, OUTPUT, Sizes, Trunk, is_composed, list_expected_tensors

WRAPPERS = {
    "_orig_mod.": ("torch.compile", "model._orig_mod"),
    "module.": ("DataParallel or DeepSpeed", "model.module"),
    "_fsdp_wrapped_module.": ("FSDP", "accelerator.unwrap_model(model), with its whole state"),
    "base_model.model.": ("PEFT", "model.merge_and_unload()"),
}
"""What adds a prefix to the names of all tensors, and the model without it, by the prefix."""
_SHOWN, _LONGEST = 6, 400


class Shaped(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


AnyTensor = TypeVar("AnyTensor", bound=Shaped)


@dataclass(frozen=True)
class Covered:
    """A source's tensors by their use. Together they are all of the source's tensors.

    trunk, composed: canonical name to the source's name. passed_over: the source's name to the reason.
    output_copy: the source's name of an output matrix in a model that ties it to the embedding, if there is one. Its contents have
    to be compared with the embedding's.
    """

    trunk: Mapping[str, str]
    composed: Mapping[str, str]
    passed_over: Mapping[str, str]
    output_copy: str | None


def cover(family: Family, trunk: Sizes, tensors: Mapping[str, AnyTensor]) -> Covered:
    """Sorts the source's tensors, or raises a ``CoverageError`` that names every tensor that does not fit and why."""
    if not isinstance(trunk, Trunk):
        # All but old names stay. Whether names and shapes fit is checked against the host's class, as the model is built.
        composed = {name: name for name in tensors if is_composed(name)}
        masks = {name: reason for name in tensors if (reason := family.reason_to_pass_over(name)) is not None}
        inherited = {family.table.canonical(name) or name: name for name in tensors if name not in composed | masks}
        return Covered(inherited, composed, masks, None)
    expected = list_expected_tensors(trunk)
    inherited: dict[str, str] = {}
    composed: dict[str, str] = {}
    passed_over: dict[str, str] = {}
    output_copy = None
    unknown: list[str] = []
    for name, tensor in tensors.items():
        canonical = family.table.canonical(name)
        if (reason := family.reason_to_pass_over(name)) is not None:
            passed_over[name] = reason
        elif canonical in expected:
            inherited[canonical] = name
        elif canonical is not None and is_composed(canonical):
            composed[canonical] = name
        elif canonical == OUTPUT and trunk.tied_embeddings and tensor.shape == expected[EMBEDDING]:
            output_copy = name
        else:
            unknown.append(f"{name} {list(tensor.shape)}: {_cause_of_unknown(name, canonical, trunk)}")

    missing = [
        f"{family.table.original(name) or name} {list(shape)}: {_cause_of_missing(name, trunk, output_copy)}"
        for name, shape in expected.items()
        if name not in inherited
    ]
    misshapen = [
        f"{name}: expected {list(expected[canonical])} from config.json, the file has {list(tensors[name].shape)}"
        for canonical, name in inherited.items()
        if tensors[name].shape != expected[canonical]
    ]
    problems = [
        *problems_listed("tensors that the model has no place for", unknown),
        *problems_listed("tensors that the source lacks", missing),
        *problems_listed("tensors of another shape", misshapen),
    ]
    if problems:
        raise CoverageError("\n".join([f"The weights do not fit config.json ({family.title}):", *problems]))
    return Covered(inherited, composed, passed_over, output_copy)


def _cause_of_unknown(name: str, canonical: str | None, trunk: Trunk) -> str:
    layer = re.search(r"\.layers\.([0-9]{1,9})\.", f".{name}")
    if layer and int(layer[1]) >= trunk.layers:
        return f"config.json has {trunk.layers} layers, 0 to {trunk.layers - 1}"
    if canonical is None and not name.startswith(("model.", "lm_head.")):
        return "it lacks the prefix 'model.': the checkpoint may be of a bare model, without its language-model head"
    if canonical is not None and name.endswith(".bias"):
        return "a bias, and config.json has none (attention_bias, mlp_bias)"
    if canonical == OUTPUT:
        return "config.json ties the output to the embedding (tie_word_embeddings), and the two have different shapes"
    return "the family's table does not have this name"


def _cause_of_missing(canonical: str, trunk: Trunk, output_copy: str | None) -> str:
    if canonical == OUTPUT:
        return "config.json has tie_word_embeddings false; if the model is tied, it should be true"
    if canonical == EMBEDDING and output_copy is not None:
        return f"the model is tied and has {output_copy} instead; save it again with transformers"
    if canonical.endswith(".bias"):
        return "config.json has biases (attention_bias, mlp_bias)"
    return f"config.json describes {trunk.layers} layers; a shard may be missing from the index"


def problems_listed(title: str, lines: list[str]) -> list[str]:
    """Return the number of lines, and the first of them; empty where there are none."""
    if not lines:
        return []
    more = [f"  and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return [f"{len(lines)} {title}:", *(f"  {shorten(line, _LONGEST)}" for line in lines[:_SHOWN]), *more]


def check_names(folder: Path, tensors: Iterable[str]) -> None:
    """Raise WeightsError for a model that was saved with what it was wrapped in."""
    names = list(tensors)
    for prefix, (wrapper, inner) in WRAPPERS.items():
        if all(name.startswith(prefix) for name in names):
            raise WeightsError(
                f"The names of all tensors in {folder} begin with {prefix!r}, which {wrapper} adds. Save the model inside: {inner}."
            )


def cover_folder(folder: Path, config: Mapping[str, Any], family: Family, trunk: Sizes, tensors: Mapping[str, Shaped]) -> Covered:
    """Return the tensors of a folder by their use, as ``cover`` does. Raises CoverageError, and WeightsError for the
    weights of a model that is no language model."""
    try:
        return cover(family, trunk, tensors)
    except CoverageError as error:
        named = config.get("architectures")
        kind = str(named[0]) if isinstance(named, list) and named else ""
        if not kind.endswith("Model") or kind.endswith("LMHeadModel"):
            raise
        remedy = (
            "Save it as one: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)."
            if config.get("tie_word_embeddings")
            else "Its output matrix is missing: use the checkpoint of the language model."
        )
        raise WeightsError(f"{folder} has the weights of {brief(kind)}, which is no language model. {remedy}") from error
