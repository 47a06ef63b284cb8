"""LoLCATs' published students (github.com/HazyResearch/lolcats): learned feature maps, window factors and low-rank adapters, in
separate files for a published Llama.

A file has the trained parameters as its trainer saves them: a mapping of names to tensors, bare, or under ``model_state_dict`` or
``model`` beside a few numbers. Names are those of its modules, with PEFT's prefix once adapters are on:

    model.layers.{i}.self_attn.feature_map_{q,k}.mlp.layer       [heads, head_dim, feature_dim]
    model.layers.{i}.self_attn.window_factors                    [1, heads, 1, 1], before the sigmoid
    base_model.model.model.layers.{i}.self_attn.{q,k,v,o}_proj.lora_{A,B}.default.weight    [rank, in] and [out, rank]

It is a pickle. torch's restricted unpickler builds tensors and containers and calls nothing else; storages are slices of the file
as it is mapped, so for any sizes in the pickle, no memory beyond the file is read, and none is allocated.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from converters.bounded import MOST_NAMES, brief, list_first, open_regular, reason, shorten
from converters.errors import WeightsError
from converters.trunk import Dtype, dtype_name

if TYPE_CHECKING:
    import torch

MOST = 2**30
"""Bytes of a file. That of a Llama of 405 billion parameters has 631 million."""
_HELD_IN = ("model_state_dict", "model")
_LAYER = re.compile(r"(?:base_model\.model\.)?model\.layers\.(0|[1-9][0-9]{0,8})\.self_attn\.(.+)")
_FACTOR = re.compile(r"([qkvo]_proj)\.lora_([AB])\.default\.weight")
_PARAMETERS = {
    "feature_map_q.mlp.layer": "feature_map.query_weight",
    "feature_map_k.mlp.layer": "feature_map.key_weight",
    "window_factors": "window.weight",
}
_PARAMETER = "parameter"
WINDOW, MAP = "window.weight", "feature_map.query_weight"


@dataclass(frozen=True, eq=False)
class Stored:
    """One tensor of a file, mapped and not yet read."""

    file: Path
    name: str
    tensor: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> Dtype:
        return dtype_name(self.tensor.dtype)


@dataclass(frozen=True)
class Lolcats:
    """The contents of some files together.

    parameters: by layer and name in a head, such as (0, "feature_map.query_weight"). down, up: the adapters' A and B, by layer and
    projection, such as (0, "q_proj").
    """

    parameters: Mapping[tuple[int, str], Stored]
    down: Mapping[tuple[int, str], Stored]
    up: Mapping[tuple[int, str], Stored]


def as_published(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape in which such a file has a head's parameter of this name and shape."""
    return (1, *shape, 1, 1) if name == WINDOW else tuple(shape)


def read_lolcats(paths: Sequence[Path]) -> Lolcats:
    """Reads all tensors of some files. Raises WeightsError with the names that are none of LoLCATs'."""
    stored_by_side: dict[str, dict[tuple[int, str], Stored]] = {_PARAMETER: {}, "A": {}, "B": {}}
    for path in paths:
        strange: list[str] = []
        for name, tensor in _state(path).items():
            place = _place(name) if isinstance(name, str) and _is_plain(tensor) else None
            if place is None:
                strange.append(_describe(name, tensor))
                continue
            (side, key), stored = place, Stored(path, str(name), tensor)
            if (before := stored_by_side[side].get(key)) is not None:
                places = f"twice in {path}" if before.file == path else f"in {before.file} and in {path}"
                raise WeightsError(f"{shorten(stored.name)} is {places}: which one counts? Name the one file that is meant.")
            stored_by_side[side][key] = stored
        if strange:
            raise WeightsError(
                f"{path} holds {len(strange)} that LoLCATs' students do not have: {list_first(strange)}. Expected feature maps of "
                "queries and keys, window factors, and adapters of q_proj, k_proj, v_proj and o_proj, in layers' self_attn."
            )
    return Lolcats(stored_by_side[_PARAMETER], stored_by_side["A"], stored_by_side["B"])


def _place(name: str) -> tuple[str, tuple[int, str]] | None:
    """Return the kind of a tensor, parameter, A or B; its layer; and its name in a head, or its projection. None for any other
    name."""
    layer = _LAYER.fullmatch(name)
    if layer is None:
        return None
    if (parameter := _PARAMETERS.get(layer[2])) is not None:
        return _PARAMETER, (int(layer[1]), parameter)
    factor = _FACTOR.fullmatch(layer[2])
    return (factor[2], (int(layer[1]), factor[1])) if factor else None


def _state(path: Path) -> Mapping[object, Any]:
    """Return the names and tensors of a file."""
    contents = _unpickle(path)
    if not isinstance(contents, Mapping):
        raise WeightsError(f"{path} holds a {type(contents).__name__}; expected a mapping of names to tensors.")
    for key in _HELD_IN:
        if isinstance(contents.get(key), Mapping):
            beside = [_describe(name, value) for name, value in contents.items() if name != key and not _is_note(value)]
            if beside:
                raise WeightsError(f"{path} holds more than the weights of {key!r}: {list_first(beside)}. Save those alone.")
            return contents[key]
    return contents


def _unpickle(path: Path) -> object:
    import torch

    _check_archive(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # a damaged pickle raises whatever its instructions run into
        raise WeightsError(
            f"{path} is not read: {_reason(error)}. Only tensors are read from a pickle; a damaged pickle, or one with other "
            "contents, is refused."
        ) from error


def _reason(error: Exception) -> str:
    """Return the one line of torch's long message that has the reason."""
    lines = [line.strip(" .") for line in str(error).splitlines() if line.strip()]
    reasons = [line for line in lines if "GLOBAL" in line or "Unsupported" in line]
    return shorten((reasons or lines or [type(error).__name__])[0], 200)


def _check_archive(path: Path) -> None:
    """Raise WeightsError for a file that ``torch.save`` would not write: it writes a zip archive with uncompressed members."""
    try:
        with open_regular(path) as stream:
            size = stream.seek(0, 2)
            if size > MOST:
                raise WeightsError(f"{path} is larger than {MOST:,} bytes, the most that are read of such a file.")
            members = zipfile.ZipFile(stream).infolist()
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {reason(error)}.") from error
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise WeightsError(f"{path} is no archive as torch.save writes it: {shorten(str(error), 200)}.") from error
    packed = [member.filename for member in members if member.compress_type != zipfile.ZIP_STORED]
    if packed or sum(member.file_size for member in members) > size:
        raise WeightsError(f"{path} is packed, which torch.save never does: {list_first(packed) or 'its members overlap'}.")
    if any(member.filename.endswith("data.pkl") and member.file_size > MOST_NAMES for member in members):
        raise WeightsError(f"{path} has more than {MOST_NAMES:,} bytes of names, the most that are read.")


def _is_plain(value: object) -> bool:
    """Whether a value is an ordinary tensor, whose numbers are those of the file."""
    import torch

    if not (type(value) in (torch.Tensor, torch.nn.Parameter) and isinstance(value, torch.Tensor)):
        return False
    return value.layout == torch.strided and value.device.type == "cpu" and dtype_name(value.dtype) in get_args(Dtype)


def _is_note(value: object) -> bool:
    """Whether a value is a note that a trainer saves beside the weights, such as a step or a loss."""
    return value is None or isinstance(value, bool | int | float | str)


def _describe(name: object, value: object) -> str:
    shape = getattr(value, "shape", None)
    return f"{shorten(name) if isinstance(name, str) else brief(name)} ({type(value).__name__ if shape is None else list(shape)})"
