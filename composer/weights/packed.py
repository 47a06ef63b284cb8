"""Quantised weights: a GGUF file, or a folder whose config names a quantisation. Here transformers reads and unpacks them."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.errors import SourceError
from composer.reporting.progress import silent_transformers
from composer.system.devices import check_memory
from composer.system.files import system_errors
from composer.system.trust import problem_of_template, refuse_code, translate_transformers_errors
from composer.weights.output import copy_files, write_text
from converters.bounded import list_first, parse_json, shorten
from converters.errors import ConfigError
from converters.gguf import GGUF, GgufHeader, read_gguf
from converters.licences import GGUF_KEYS, LICENCE_FILES, LicenceFields, check_fields, read_card_licence
from converters.model_types import is_composed_type
from converters.quantised import KEY, check_unpackable, quantisation_of, without_quantisation
from converters.shard import BYTES, Shard, check_scales, read_packed_shard
from converters.source import (
    GENERATION_CONFIG,
    INDEX,
    Described,
    check_layers,
    check_sizes,
    describe_config,
    read_config_file,
    small_files,
    weight_files,
)
from converters.trunk import Dtype, dtype_name

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIG = "config.json"
SHARD_SIZE = "5GB"
UNPACKED_IN_MEMORY = "bitsandbytes"
"""The kind of quantisation that transformers unpacks in a loaded model, and not as it loads one."""
LAYERS = "block_count"
"""The key of a GGUF file, after its architecture, for the number of layers."""
FURTHER = "nextn_predict_layers"
"""The key of a GGUF file, after its architecture, for the number of layers that predict tokens after the next one."""
NO_CONFIG = ("_model_name_or_path", "unk_token_id")
"""The keys that transformers' reader of GGUF files adds to a config, and that no model uses."""
LAYER = re.compile(r"blk\.(\d{1,9})\.")
SCALED = "rope.scaling."
"""The keys of a GGUF file, after its architecture, that scale its rotary positions."""
SCALES = ("rope_freqs.", "rope_factors_")
"""How the names of tensors begin that scale rotary positions."""


@dataclass(frozen=True)
class PackedFile:
    """A GGUF file, of which the header has been read."""

    header: GgufHeader

    @property
    def path(self) -> Path:
        return self.header.file

    @property
    def quantisation(self) -> str:
        return self.header.quantisation

    def files(self) -> dict[str, Path]:
        """Return the files that decide the unpacked model, by name, and those with its licence."""
        return {name: self.path.parent / name for name in (self.path.name, *self._licence_files)}

    is_composed = False
    dtype = None

    @property
    def licence(self) -> LicenceFields:
        """The fields for a licence in the metadata, or in the card beside the file."""
        return check_fields({key: self.header.metadata.get(gguf_key) for key, gguf_key in GGUF_KEYS.items()}) or self._card

    @property
    def _card(self) -> LicenceFields:
        return read_card_licence(self.path.parent)

    @property
    def _licence_files(self) -> tuple[str, ...]:
        """The files with terms beside the file. Where no card there states a licence, they may be those of something else."""
        return small_files(self.path.parent, LICENCE_FILES) if self._card else ()

    def describe(self, dtype: Dtype) -> Described:
        """Describe the unpacked model, with weights of ``dtype``, from its metadata alone. Raises SourceError and ConfigError."""
        self._check()
        with silent_transformers("error"):
            return self._describe(self._config(dtype))

    def write(self, folder: Path, dtype: Dtype) -> None:
        """Write the unpacked model, tokenizer included, into an empty folder. Raises SourceError and BuildError."""
        self._check()
        with _without_bars(), translate_transformers_errors(self._problem, SourceError):
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer

            config = self._config(dtype)
            self._check_fits(config, self._describe(config).trunk.layers, dtype)
            with _link_only(self.path) as load_options:
                tokenizer = AutoTokenizer.from_pretrained(**load_options)
                if problem := problem_of_template(tokenizer.chat_template):
                    raise SourceError(f"The tokenizer of {self.path} cannot be used: {problem}.")
                loading = AutoModelForCausalLM.from_pretrained(
                    **load_options, **_unpacking_arguments(), config=config, dtype=getattr(torch, dtype), output_loading_info=True
                )
            model = _check_complete(self.path, loading)
        with _without_bars(), system_errors(folder):
            model.save_pretrained(folder, max_shard_size=SHARD_SIZE)
            tokenizer.save_pretrained(folder)
        copy_files(self.path.parent, self._licence_files, folder)

    @property
    def _problem(self) -> str:
        return (
            f"transformers cannot unpack {self.path} (architecture {shorten(self.header.architecture)}). Build from a checkpoint "
            "of the same model in safetensors. The reason"
        )

    def _config(self, dtype: Dtype) -> Any:
        """Return the config of the unpacked model.

        Raises ConfigError if the file has fewer tensors than layers, before transformers makes a list of all layers.
        """
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        layers = self.header.metadata.get(f"{self.header.architecture}.{LAYERS}")
        if isinstance(layers, int):
            check_layers(f"{self.path}: its metadata", layers, len(self.header.tensors))
        stat = self.path.stat()
        with translate_transformers_errors(self._problem, SourceError):
            config = deepcopy(_config_of(self.path, stat.st_size, stat.st_mtime_ns))
        config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)]
        config.dtype = dtype
        return config

    def _describe(self, config: Any) -> Described:
        text = config.to_json_string()
        described = describe_config(self.path, json.loads(text), text.encode())
        largest = max(math.prod(tensor.shape) for tensor in self.header.tensors)
        check_sizes(f"{self.path}: its metadata", described.config, largest)
        return described

    def _check(self) -> None:
        """Raise SourceError if the file has no tokenizer, or scales its rotary positions, which transformers does not read."""
        if not self.header.has_tokenizer:
            raise SourceError(
                f"{self.path} has no tokenizer (tokenizer.ggml.model and tokenizer.ggml.tokens), so its tokens cannot be decoded. "
                "Use a GGUF file with its tokenizer."
            )
        header, prefix = self.header, f"{self.header.architecture}.{SCALED}"
        scaling = header.metadata.get(f"{prefix}type", "none") != "none" and header.metadata.get(f"{prefix}factor", 1) != 1
        tensors = [tensor.name for tensor in header.tensors if tensor.name.startswith(SCALES)]
        if scaling or tensors:
            named = list_first(tensors or [f"{prefix}type"])
            raise SourceError(
                f"{self.path} scales its rotary positions ({named}), and transformers leaves that out where it reads GGUF: the "
                "model would compute something else. Build from a checkpoint of the same model in safetensors."
            )

    def _check_fits(self, config: Any, layers: int, dtype: Dtype) -> None:
        """Raise SourceError, before any weight is read, unless the model has as many weights as the file, and BuildError if memory
        does not suffice. Layers after the model's last one that predict further tokens are left out."""
        further = self.header.metadata.get(f"{self.header.architecture}.{FURTHER}", 0)
        tensors = [tensor for tensor in self.header.tensors if not further or _layer(tensor.name) < layers]
        stored = sum(math.prod(tensor.shape) for tensor in tensors)
        wanted = _number_of_weights(config)
        if wanted != stored:
            raise SourceError(
                f"{self.path} has {stored:,} weights, and transformers' model for its metadata has {wanted:,}: its reader leaves "
                "tensors of the file out, or the file lacks some. Build from a checkpoint of the same model in safetensors."
            )
        check_memory(wanted * BYTES[dtype], f"unpacking {self.path}")


@dataclass(frozen=True)
class PackedFolder:
    """A folder whose ``config.json`` names a quantisation. config: the contents of that file."""

    path: Path
    config: Mapping[str, Any]
    quantisation: str

    def files(self) -> dict[str, Path]:
        """Return the files that decide the unpacked model, by name. Raises ConverterError."""
        names = (CONFIG, INDEX, *self._shards, *small_files(self.path))
        return {name: self.path / name for name in names if (self.path / name).is_file()}

    @property
    def is_composed(self) -> bool:
        """Whether the model was built by this project."""
        return is_composed_type(self.config.get("model_type"))

    @property
    def dtype(self) -> Dtype | None:
        """The type that a composed model had before; None for any other model."""
        return dtype_name(self.config["dtype"]) if self.is_composed and self.config.get("dtype") in BYTES else None

    @property
    def licence(self) -> LicenceFields:
        return read_card_licence(self.path)

    def describe(self, dtype: Dtype) -> Described:
        """Describe the unpacked model, with weights of ``dtype``, from its config alone. Raises ConfigError."""
        config = without_quantisation(self.config, dtype)
        return describe_config(self.path / CONFIG, config, json.dumps(config).encode())

    def write(self, folder: Path, dtype: Dtype) -> None:
        """Write the unpacked model, tokenizer included, into an empty folder. Raises SourceError, BuildError, ConverterError."""
        refuse_code(self.path, SourceError)
        self._check_sizes(dtype)
        check_scales(self.path, [shard.file for shard in self._shards.values()])
        with _without_bars(), translate_transformers_errors(self._problem, SourceError):
            import torch
            from transformers import AutoConfig, AutoModelForCausalLM

            load_options = {"pretrained_model_name_or_path": self.path, "local_files_only": True, "trust_remote_code": False}
            config = AutoConfig.from_pretrained(**load_options)
            self._check_fits(config, dtype)
            if self.quantisation != UNPACKED_IN_MEMORY:
                owner = config if getattr(config, KEY, None) is not None else config.get_text_config()
                setattr(owner, KEY, {**getattr(owner, KEY), "dequantize": True})
            loading = AutoModelForCausalLM.from_pretrained(
                **load_options, config=config, dtype=getattr(torch, dtype), output_loading_info=True
            )
            model = _check_complete(self.path, loading)
            if self.quantisation == UNPACKED_IN_MEMORY:
                model.dequantize(dtype=getattr(torch, dtype))
            _save_plain(model, AutoConfig.for_model(**without_quantisation(config.to_dict(), dtype)), folder)
        for name in (CONFIG, GENERATION_CONFIG):
            (folder / name).unlink(missing_ok=True)
        write_text(folder / CONFIG, json.dumps(without_quantisation(self.config, dtype), indent=2) + "\n")
        copy_files(self.path, small_files(self.path), folder)
        if self.is_composed:
            from composer.weights.save import write_unpacked_record

            write_unpacked_record(self.path, folder)

    @property
    def _problem(self) -> str:
        return f"transformers cannot unpack {self.path} ({self.quantisation})"

    @cached_property
    def _shards(self) -> dict[str, Shard]:
        return weight_files(self.path, read_packed_shard)

    @property
    def _bytes(self) -> int:
        return sum(shard.bytes for shard in self._shards.values())

    def _check_sizes(self, dtype: Dtype) -> None:
        """Raise ConfigError, before modules are made, if the config has more layers or larger sizes than the weights."""
        described, config_path = self.describe(dtype), f"{self.path}: config.json"
        tensors = sum(len(shard.masks) for shard in self._shards.values())
        check_layers(config_path, described.trunk.layers, tensors)
        check_sizes(config_path, described.config, 8 * self._bytes)

    def _check_fits(self, config: Any, dtype: Dtype) -> None:
        """Raise SourceError, before any weight is read, if the model has more weights than the files have bits, and BuildError
        where memory does not suffice."""
        wanted, max_weights = _number_of_weights(config), 8 * self._bytes
        if wanted > max_weights:
            raise SourceError(
                f"{self.path} has {self._bytes:,} bytes of weights, and the model of its config.json has {wanted:,} weights. Fetch "
                "it again."
            )
        check_memory(wanted * BYTES[dtype], f"unpacking {self.path}")


Packed = PackedFile | PackedFolder


def find_packed(path: Path) -> Packed | None:
    """Return the quantised weights in a file or a folder; None for a folder that is not quantised, and for one without a config.

    path: of a GGUF file, or of a folder. Raises ConverterError, also for a quantisation that cannot be unpacked.
    """
    if not path.is_dir():
        return PackedFile(read_gguf(path))
    try:
        config = parse_json(read_config_file(path))
    except (ConfigError, ValueError):  # reported where the folder is opened
        return None
    if not isinstance(config, dict):
        return None
    kind = quantisation_of(config)
    if kind is None:
        return None
    check_unpackable(kind, path)
    return PackedFolder(path, config, kind)


@lru_cache(maxsize=4)
def _config_of(file: Path, size: int, modified_ns: int) -> Any:
    """Return the config that transformers reads from a GGUF file.

    The result is cached, as reading it needs seconds: transformers makes an object of every token. size, modified_ns: of the file,
    so that a changed one is read again.
    """
    from transformers import AutoConfig

    with _link_only(file) as load_options:
        config: Any = AutoConfig.from_pretrained(**load_options)
    for key in NO_CONFIG:
        if hasattr(config, key):
            delattr(config, key)
    return config


@contextmanager
def _link_only(file: Path) -> Iterator[dict[str, Any]]:
    """A folder with a link to a GGUF file and nothing else, so that transformers reads no other file beside it; as arguments."""
    with tempfile.TemporaryDirectory(prefix="composer-") as folder:
        link = Path(folder, f"model{GGUF}")
        link.symlink_to(file.resolve())
        yield {
            "pretrained_model_name_or_path": folder,
            "gguf_file": link.name,
            "local_files_only": True,
            "trust_remote_code": False,
        }


@contextmanager
def _without_bars() -> Iterator[None]:
    """For the block, nothing of transformers reaches stderr. It has no setting for the bars of its reader of GGUF files."""
    with silent_transformers("error"), redirect_stderr(StringIO()):
        yield


def _unpacking_arguments() -> dict[str, Any]:
    """Arguments of ``from_pretrained`` that unpack a GGUF file. Versions of transformers without this config always unpack."""
    import transformers

    kind = getattr(transformers, "GgufConfig", None)
    return {} if kind is None else {"quantization_config": kind(dequantize=True)}


def _number_of_weights(config: Any) -> int:
    """Return the number of weights of the model of a config, tied ones counted once. Nothing is allocated."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


def _layer(name: str) -> int:
    """Return the layer of a tensor of a GGUF file; -1 for one of no layer."""
    layer = LAYER.match(name)
    return -1 if layer is None else int(layer[1])


def _check_complete(path: Path, loading: Any) -> PreTrainedModel:
    """Return the loaded model. Raises SourceError if some of its weights are not in the files, or the other way round."""
    model, report = loading
    problems = {
        "lacks": report["missing_keys"],
        "has unknown": report["unexpected_keys"],
        "has misshapen": report["mismatched_keys"],
    }
    for problem, keys in problems.items():
        if keys:
            raise SourceError(f"{path} {problem} tensors of {type(model).__name__}: {list_first(sorted(map(str, keys)))}")
    return model


def _save_plain(model: PreTrainedModel, config: Any, folder: Path) -> None:
    """Save the weights of a model that was unpacked as it was loaded.

    transformers would pack such a model again, so another one, with the same weights and a config without quantisation, is saved.
    Its settings for generation are left out: transformers refuses to save some that it reads.
    """
    import torch
    from transformers import GenerationConfig

    with torch.device("meta"):
        plain = type(model)(config)
    plain.load_state_dict(model.state_dict(), strict=True, assign=True)
    plain.tie_weights()
    plain.generation_config = GenerationConfig()
    with system_errors(folder):
        plain.save_pretrained(folder, max_shard_size=SHARD_SIZE)
