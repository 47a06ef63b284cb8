"""A folder to build from: its config, its trunk, the place of each tensor, and the small files beside the weights."""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from converters.bounded import (
    MOST_BESIDE,
    MOST_CONFIG,
    MOST_NAMES,
    brief,
    check_file,
    files_matching,
    is_name,
    is_text,
    list_first,
    parse_json,
    read_bytes,
    reason,
    within,
)
from converters.composed import ADAPTER_CONFIG, ADAPTER_WEIGHTS, EXPORT, family_of
from converters.config import are_tokens
from converters.coverage import Covered, check_names, cover_folder
from converters.errors import ConfigError, WeightsError
from converters.family import Family
from converters.gguf import is_gguf
from converters.hosts import Host
from converters.licences import LICENCE_FILES, LicenceFields, is_of_text
from converters.model_types import is_composed_type
from converters.shard import Shard, StoredTensor, read_shard
from converters.trunk import Sizes

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
TOKENIZER = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "chat_template*",
    "additional_chat_templates/*",
)
"""Files of a tokenizer."""
PROCESSOR = "*processor_config.json"
"""Files of a processor, which prepares images and texts for a model."""
GENERATION_CONFIG = "generation_config.json"
TOKEN_KEYS = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
)
"""Keys for tokens in the settings for generation."""
BROUGHT_ALONG = (*TOKENIZER, PROCESSOR, GENERATION_CONFIG, *LICENCE_FILES)
"""Files that are copied with the weights: tokenizer, processor, generation settings, chat templates, terms of use."""
FREE_SIZE = 2**20
"""The largest size in a config that is not compared with the weights."""
SIZES = ("size", "dim", "width", "heads", "experts", "rank", "n_embd", "n_inner", "n_head", "labels")
"""Words in the keys of sizes that modules are made of."""
OPENED_BY_LIBRARIES = (*BROUGHT_ALONG, "config.json", "*_config.json", INDEX, ADAPTER_CONFIG)
"""Files that transformers and PEFT open by their names, beside the weights."""
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


@dataclass(frozen=True)
class UnpackedFrom:
    """The quantised weights that a folder was unpacked from, or the model whose text decoder it has. path: of the GGUF file, or of
    the folder.

    quantisation: such as ``GGUF Q4_1, F32`` or ``fp8``, or the words for a text decoder. files: SHA-256 of each file that was read,
    by name. weights: SHA-256 of each file with unpacked weights, by name. licence: the fields for one in the card beside the
    weights, or in the metadata of a GGUF file. text_only: the folder has a text decoder.
    """

    path: Path
    quantisation: str
    files: Mapping[str, str]
    weights: Mapping[str, str]
    licence: LicenceFields
    text_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Described:
    """The contents of ``config.json``. config_sha256: of the file's bytes. notes: on keys that are not used."""

    folder: Path
    config: Mapping[str, Any]
    config_sha256: str
    family: Family
    trunk: Sizes
    notes: tuple[str, ...]

    @property
    def is_composed(self) -> bool:
        """Whether the model was built by this project."""
        return is_composed_type(self.family.model_type)


@dataclass(frozen=True, kw_only=True)
class Source(Described):
    """A described folder with its weights, whose headers have been checked and which fit the config.

    shards: by file name, in order. tensors: by the family's name. covered: the tensors by their use. small_files: paths relative to
    the folder. repo_id, revision, commit: its origin, if it is from the Hub. unpacked: for a folder that this project unpacked from
    quantised weights.
    """

    shards: Mapping[str, Shard]
    tensors: Mapping[str, StoredTensor]
    covered: Covered
    small_files: tuple[str, ...]
    repo_id: str | None = None
    revision: str | None = None
    commit: str | None = None
    unpacked: UnpackedFrom | None = None

    @property
    def named(self) -> Path:
        """The path in users' terms: its name on the Hub, its GGUF file without the suffix, or its folder."""
        if self.unpacked is not None and is_gguf(self.unpacked.path.name):
            return self.unpacked.path.with_suffix("")
        if self.repo_id is not None:
            return Path(self.repo_id)
        return self.folder if self.unpacked is None else self.unpacked.path


def describe(folder: Path) -> Described:
    """Read ``config.json`` and nothing else."""
    content = read_config_file(folder)
    path = folder / "config.json"
    config = _json(path, content, ConfigError)
    # An export without code of its own is a model of transformers like any other.
    if "auto_map" in config and os.path.isfile(folder / EXPORT):  # False where the folder may not be searched
        raise ConfigError(
            f"{folder} is an exported model ({EXPORT}), whose Python file only transformers runs. Use the model that it was made "
            f"from: {EXPORT} names its folder."
        )
    return describe_config(path, config, content)


RESULTS_OF = {"inspection.json": "inspect", "bench.json": "bench", "results.json": "eval"}
"""The files of result folders, and the commands that write them."""


def read_config_file(folder: Path) -> bytes:
    """Return the contents of a folder's ``config.json``. Raises ConfigError."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; expected one with config.json and safetensors weights.")
    try:
        return read_bytes(within(folder, "config.json"), MOST_CONFIG)
    except FileNotFoundError as error:
        if result := next((name for name in RESULTS_OF if (folder / name).is_file()), None):
            raise ConfigError(
                f"{folder} has results of `compose {RESULTS_OF[result]}` ({result}), and no model. Name the folder of a model."
            ) from error
        inside = _gguf_files(folder) or models_inside(folder)
        raise ConfigError(f"{folder} has no config.json, so the family of its weights is unknown.{inside}") from error
    except OSError as error:
        raise ConfigError(f"{folder / 'config.json'} cannot be read: {reason(error)}.") from error


def describe_config(path: Path, config: Mapping[str, Any], content: bytes) -> Described:
    """Describe a model by its config. path: of the config's file in the model's folder, for messages. content: the bytes of the
    config. Raises ConfigError."""
    family = family_of(config)
    notes: list[str] = []
    try:
        trunk = family.read_config(config, notes)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return Described(
        folder=path.parent,
        config=config,
        config_sha256=hashlib.sha256(content).hexdigest(),
        family=family,
        trunk=trunk,
        notes=tuple(notes),
    )


def open_source(folder: Path) -> Source:
    """Reads the config and every header, and checks that they fit; weights themselves are not read."""
    source = describe(folder)
    shards = weight_files(folder)
    tensors = _tensors(shards)
    trunk = source.trunk
    if not (source.config.get("dtype") or source.config.get("torch_dtype")):
        [(dtype, _)] = Counter(tensor.dtype for tensor in tensors.values()).most_common(1)
        trunk = replace(trunk, dtype=dtype)
    config_path = f"{folder}: config.json"
    check_names(folder, tensors)
    if isinstance(trunk, Host):
        check_layers(config_path, trunk.layers, len(tensors))
    check_sizes(config_path, source.config, max(math.prod(tensor.shape) for tensor in tensors.values()))
    _check_generation(folder, trunk)
    return Source(
        folder=folder,
        config=source.config,
        config_sha256=source.config_sha256,
        family=source.family,
        trunk=trunk,
        notes=source.notes,
        shards=shards,
        tensors=tensors,
        covered=cover_folder(folder, source.config, source.family, trunk, tensors),
        small_files=small_files(folder),
    )


def small_files(folder: Path, patterns: tuple[str, ...] = BROUGHT_ALONG) -> tuple[str, ...]:
    """Return the paths, relative to the folder, of the files that belong to the weights. Raises WeightsError for one that cannot be
    read."""
    try:
        terms = set(files_matching(folder, LICENCE_FILES)) - set(files_matching(folder, (*TOKENIZER, PROCESSOR)))
        names = tuple(name for name in files_matching(folder, patterns) if name not in terms or is_of_text(name))
    except OSError as error:
        raise WeightsError(f"{folder} cannot be read: {reason(error)}.") from error
    for name in names:
        if not is_text(name) or "\\" in name:
            raise WeightsError(f"{folder} has a file called {brief(name)}; rename it: expected UTF-8 without a backslash.")
        _check_readable(folder, name, MOST_BESIDE)
    return names


def check_opened_by_libraries(folder: Path) -> None:
    """Raise WeightsError where a file that transformers or PEFT open by its name in a folder is no regular file, cannot be read, is
    too large, or is a link out of the folder. Call it before such a library opens the folder."""
    small_files(folder, OPENED_BY_LIBRARIES)
    for name in files_matching(folder, ("*.safetensors",)):
        _check_readable(folder, name)


def _check_readable(folder: Path, name: str, max_bytes: int | None = None) -> None:
    path = _own_file(folder, name)
    try:
        check_file(path, max_bytes)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {reason(error)}.") from error


def weight_files(folder: Path, read: Callable[[Path], Shard] = read_shard) -> dict[str, Shard]:
    """Return the weight files that transformers would load: a single file has precedence over an index. read: reads the header of
    one."""
    if os.path.lexists(folder / SINGLE):
        return {SINGLE: read(_own_file(folder, SINGLE))}
    path = folder / INDEX
    if not os.path.lexists(path):
        raise WeightsError(_no_weights(folder))
    try:
        content = read_bytes(_own_file(folder, INDEX), MOST_NAMES)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {reason(error)}.") from error
    weight_map = _json(path, content, WeightsError).get("weight_map")
    if not (isinstance(weight_map, dict) and weight_map and all(isinstance(file, str) for file in weight_map.values())):
        raise WeightsError(f"{path} has no 'weight_map' of tensor names to files.")
    shards: dict[str, Shard] = {}
    for file in sorted(set(weight_map.values())):
        if not is_name(file):
            raise WeightsError(f"{path} names {brief(file)}; expected a file of its own folder.")
        if not os.path.lexists(folder / file):
            count = sum(1 for value in weight_map.values() if value == file)
            raise WeightsError(f"{folder / file} is missing: {path.name} places {count} tensors in it. Fetch it again.")
        shards[file] = read(_own_file(folder, file))
    for name, file in weight_map.items():
        if name not in shards[file].tensors and name not in shards[file].masks:
            raise WeightsError(f"{path} places {brief(name)} in {file}, which does not hold it. Fetch both again.")
    return shards


def check_layers(subject: str, layers: int, tensors: int) -> None:
    """Raise ConfigError if a config has more layers than its weights have tensors. subject: the config, for messages.

    transformers makes modules before it compares them with the weights, which needs time and memory.
    """
    if layers > tensors:
        raise ConfigError(f"{subject} has {layers:,} layers, and only {tensors} tensors.")


def check_sizes(subject: str, config: Mapping[str, Any], tensor_size: int) -> None:
    """Raise ConfigError if a config has a larger size than its weights can have. tensor_size: the most numbers of any tensor."""
    limit = max(FREE_SIZE, tensor_size)
    for key, value in config.items():
        if isinstance(value, int) and value > limit and any(word in key for word in SIZES):
            raise ConfigError(f"{subject} has {key}: {brief(value)}; no tensor has as many numbers.")


def _check_generation(folder: Path, trunk: Sizes) -> None:
    """Raise ConfigError if the settings for generation name a token without an embedding."""
    path = folder / GENERATION_CONFIG
    if not os.path.lexists(path):
        return
    try:
        content = read_bytes(_own_file(folder, GENERATION_CONFIG), MOST_CONFIG)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {reason(error)}.") from error
    for key, value in _json(path, content, ConfigError).items():
        if key in TOKEN_KEYS and not are_tokens(value, trunk.vocabulary_size):
            has = f"0 to {trunk.vocabulary_size - 1:,} have an embedding"
            raise ConfigError(f"{path} has {key}: {brief(value)}; expected a token's number, a list of them or null: {has}.")


def _tensors(shards: Mapping[str, Shard]) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for file, shard in shards.items():
        for name, tensor in shard.tensors.items():
            if name in tensors:
                raise WeightsError(f"{brief(name)} is in two files, {tensors[name].file.name} and {file}: which one counts?")
            tensors[name] = tensor
    if not tensors:
        raise WeightsError(f"No tensors in {', '.join(shards)}.")
    return tensors


def _no_weights(folder: Path) -> str:
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    pickled = f", only pickled weights ({', '.join(pickles[:3])})" if pickles else ""
    if packed := _gguf_files(folder):
        return f"{folder} has no {SINGLE} and no {INDEX}{pickled}.{packed}"
    if shards := [name for name in files_matching(folder, ("*.safetensors",)) if name != ADAPTER_WEIGHTS]:
        return (
            f"{folder} has {list_first(shards)}, and no {INDEX}, which names the file of each tensor. Fetch that file, too, or "
            f"rename a single file to {SINGLE}."
        )
    return (
        f"{folder} has no {SINGLE} and no {INDEX}{pickled}. Only safetensors are read. To convert weights that you trust: "
        "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)."
    )


def _gguf_files(folder: Path) -> str:
    """Return a sentence on the GGUF files in a folder; empty where there are none."""
    try:
        names = [name for name in files_matching(folder, ("*",)) if is_gguf(name)]
    except OSError:
        return ""
    return f" It has GGUF files; name one of them in place of the folder: {list_first(names)}" if names else ""


def models_inside(folder: Path) -> str:
    """Return a sentence on the models in subfolders, such as ``checkpoint-500``, the last one first; empty where there are none."""
    try:
        names = [path.name for path in folder.iterdir() if (path / "config.json").is_file()]
    except OSError:
        return ""
    numbered = sorted(names, key=lambda name: (int(name.rpartition("-")[2]) if name.rpartition("-")[2].isdecimal() else -1, name))
    return f" It has models in folders; name one of them: {list_first(map(str, reversed(numbered)))}" if names else ""


def _own_file(folder: Path, name: str) -> Path:
    """Return a file of the folder that is not a link out of it."""
    try:
        return within(folder, name)
    except OSError as error:
        raise WeightsError(f"{folder / name} cannot be read: {reason(error)}.") from error


def _json(path: Path, content: bytes, refusal: type[ConfigError] | type[WeightsError]) -> dict[str, Any]:
    try:
        value = parse_json(content)
    except ValueError as error:
        raise refusal(f"{path} is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise refusal(f"{path} holds a {type(value).__name__}; expected a mapping.")
    return value
