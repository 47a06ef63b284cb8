"""The text decoder of a model that reads images or sound as well, as a checkpoint of its own: ``--text-only``.

Tensors keep their values and get the names of the decoder's language model. The rest of the model is left out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from composer.errors import SourceError
from composer.system.trust import translate_transformers_errors
from composer.weights.output import copy_files, write_json
from composer.weights.stream import inherit_piece, write_shard
from converters.bounded import brief, is_name, list_first, parse_json
from converters.hosts import DECODERS, OTHER_PARTS, decoder_of
from converters.licences import LicenceFields, read_card_licence
from converters.shard import Shard, StoredTensor
from converters.source import (
    BROUGHT_ALONG,
    INDEX,
    PROCESSOR,
    Described,
    describe_config,
    read_config_file,
    small_files,
    weight_files,
)
from converters.trunk import DTYPE_KEYS, Dtype, dtype_name

CONFIG = "config.json"
EMBEDDING, OUTPUT = "embed_tokens.weight", "lm_head.weight"
WITHIN = re.compile(r"(^|[._])(language_model|text_model|llm)\.")
"""The names of the text decoder's module in models."""
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
SECTIONS = ("mrope_section", "mrope_interleaved")
"""Keys of rotary positions of three numbers a token. The three are equal in text, so the rotation is the usual one there."""
MROPE = "mrope"
UNSCALED = {"cohere2": {"logit_scale": 1.0}}
"""Settings of a decoder's language model that the whole model does not apply, with the values at which they do nothing."""
OF_TEXT = tuple(pattern for pattern in BROUGHT_ALONG if pattern != PROCESSOR)
"""Files beside the weights that a text decoder needs."""


@dataclass(frozen=True)
class TextDecoder:
    """The text decoder of the model in a folder. config: the contents of ``config.json``."""

    path: Path
    config: Mapping[str, Any]

    @property
    def quantisation(self) -> str:
        """The part of the model, in words, for messages and records."""
        return f"the text decoder of {self.config['model_type']}"

    def files(self) -> dict[str, Path]:
        """Return the files that decide the decoder, by name. Raises ConverterError."""
        names = (CONFIG, INDEX, *self._shards, *small_files(self.path, OF_TEXT))
        return {name: self.path / name for name in names if (self.path / name).is_file()}

    @property
    def licence(self) -> LicenceFields:
        return read_card_licence(self.path)

    @property
    def dtype(self) -> Dtype:
        """The type of most of the decoder's tensors."""
        [(dtype, _)] = Counter(tensor.dtype for tensor in self._tensors.values()).most_common(1)
        return dtype_name(dtype)

    def describe(self, dtype: Dtype | None) -> Described:
        """Describe the decoder from the config alone. dtype: None keeps the config's. Raises SourceError and ConfigError."""
        config = self._decoder_config | ({} if dtype is None else {"dtype": dtype})
        return describe_config(self.path / CONFIG, config, json.dumps(config).encode())

    def write(self, folder: Path, dtype: Dtype) -> None:
        """Write the decoder, tokenizer included, into an empty folder. Raises SourceError, BuildError and ConverterError."""
        weight_map: dict[str, str] = {}
        shards = [shard for shard in self._shards.values() if any(name in self._names for name in shard.tensors)]
        for index, shard in enumerate(shards):
            file = f"model-{index + 1:05d}-of-{len(shards):05d}.safetensors"
            pieces = [
                inherit_piece(self._names[name], tensor, dtype) for name, tensor in shard.tensors.items() if name in self._names
            ]
            write_shard(folder / file, pieces)
            weight_map |= {piece.name: file for piece in pieces}
        write_json(folder / INDEX, {"metadata": {"format": "pt"}, "weight_map": weight_map})
        write_json(folder / CONFIG, self._decoder_config | {"dtype": dtype})
        copy_files(self.path, small_files(self.path, OF_TEXT), folder)

    @cached_property
    def _shards(self) -> dict[str, Shard]:
        return weight_files(self.path)

    @cached_property
    def _tensors(self) -> dict[str, StoredTensor]:
        """The decoder's tensors by their names in the source."""
        return {name: shard.tensors[name] for shard in self._shards.values() for name in shard.tensors if name in self._names}

    @cached_property
    def _names(self) -> dict[str, str]:
        """The name of each of the decoder's tensors, by the source's. A tied output matrix is left out. Raises SourceError."""
        every = [name for shard in self._shards.values() for name in shard.tensors]
        embeddings = [name for name in every if name.endswith(f".{EMBEDDING}")]
        inner = [name for name in embeddings if WITHIN.search(name)] or embeddings
        if len(inner) != 1:
            raise SourceError(
                f"{self.path} has {len(inner)} tensors that could be the embedding of its text decoder"
                f"{': ' + list_first(inner) if inner else ''}; expected one named *.{EMBEDDING}. Extract the decoder with "
                "transformers, and build from that."
            )
        prefix = inner[0].removesuffix(EMBEDDING)
        names = {name: f"model.{name.removeprefix(prefix)}" for name in every if name.startswith(prefix)}
        outputs = [name for name in every if name == OUTPUT or name.endswith(f".{OUTPUT}")]
        if outputs and not self._decoder_config.get("tie_word_embeddings"):
            names[outputs[0]] = OUTPUT
        return names

    @cached_property
    def _decoder_config(self) -> dict[str, Any]:
        """The config of the decoder's language model. Raises SourceError for a family whose decoder has none in transformers."""
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        family = str(self.config["model_type"])
        with translate_transformers_errors(f"transformers cannot read {self.path / CONFIG}", SourceError):
            full_config = CONFIG_MAPPING[family].from_dict(dict(self.config))
            text = full_config.get_text_config(decoder=True).to_dict()
        kind = DECODERS.get(str(text.get("model_type")), str(text.get("model_type")))
        if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            raise SourceError(
                f"{self.path} has a text decoder of the family {kind}, and transformers has no language model of that family by "
                "itself."
            )
        special = {key: self.config[key] for key in TOKENS if self.config.get(key) is not None}
        fields = {
            key: value for key, value in text.items() if key not in (*DTYPE_KEYS, "quantization_config", "transformers_version")
        }
        rotary = {key: _plain_rotary(fields[key]) for key in ("rope_parameters", "rope_scaling") if fields.get(key) is not None}
        return {
            **fields,
            **{key: value for key, value in special.items() if fields.get(key) is None},
            **rotary,
            **UNSCALED.get(kind, {}),
            "model_type": kind,
            "architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]],
            "tie_word_embeddings": bool(getattr(full_config, "tie_word_embeddings", False)),
            "dtype": dtype_name(full_config.dtype or text.get("dtype") or "float32"),
        }


def _plain_rotary(settings: Any) -> Any:
    """Return the rotary positions of text, without those that only images need."""
    if not isinstance(settings, Mapping):
        return settings
    plain = {key: _plain_rotary(value) for key, value in settings.items() if key not in SECTIONS}
    return {key: "default" if key in ("rope_type", "type") and value == MROPE else value for key, value in plain.items()}


def find_text_decoder(path: Path) -> TextDecoder:
    """Return the text decoder of the model in a folder. Raises SourceError for a model that is nothing else, and ConverterError."""
    config = parse_json(read_config_file(path))
    family = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(family, str) or not is_name(family) or decoder_of(config) is None:
        raise SourceError(
            f"--text-only: {path} is of the family {brief(family)}, and its config has no part beside a text decoder "
            f"({', '.join(OTHER_PARTS)}): leave --text-only out."
        )
    if config.get("quantization_config") is not None:
        raise SourceError(f"--text-only: the weights of {path} are quantised. Use the checkpoint as it was before.")
    return TextDecoder(path, config)
