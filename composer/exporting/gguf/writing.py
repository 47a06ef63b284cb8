"""GGUF files: metadata, tokenizer and tensors of a student in one file, which llama.cpp and Ollama run.

A student is written as the class of transformers that ``--native`` chooses, in the way in which llama.cpp has that class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blocks.positions import Llama3Scaling, Rope
from composer.errors import ExportError
from composer.exporting.gguf.tokenizer import tokenizer_fields
from composer.exporting.native import Native
from composer.exporting.targets.target import GgufClass, WeightTable
from composer.spec.dimensions import Dimensions

IN_FLOAT32 = ("norm", "ssm_conv1d", "ssm_a", "ssm_d", "attn_sinks", "rope_freqs")
"""Parts of the names of tensors that llama.cpp reads in float32 alone."""


@dataclass(frozen=True)
class Gguf:
    """A student as a class of llama.cpp.

    title: its class in transformers. metadata: by key, in the order of the file. tensors: functions that compute them, by
    llama.cpp's names. file: its name. share: the largest difference of logits from the model's, as a share of the
    largest one; None where llama.cpp did not run the file.
    """

    title: str
    architecture: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Callable[[], Tensor]]
    file: str = "model.gguf"
    share: float | None = None


def gguf_of(native: Native, model: Any, folder: Path, general: Mapping[str, str]) -> Gguf:
    """Return the file of a model. folder: that of its tokenizer. general: what the file states of itself, by key.

    Raises ExportError if llama.cpp has no class that computes the model, or a GGUF file cannot hold its tokenizer.
    """
    config, size = native.config, model.config.read_spec().dimensions
    gguf_class = native.target.gguf(config)
    if isinstance(gguf_class, str):
        raise ExportError(f"llama.cpp does not compute {native.architecture}: {gguf_class}")
    if config.get("hidden_act", "silu") != "silu":
        raise ExportError(f"llama.cpp computes silu alone in the MLP; hidden_act is {config['hidden_act']}")
    rotation, factors = _rotation(config, size, gguf_class)
    fields = {
        "vocab_size": config["vocab_size"],
        "context_length": config["max_position_embeddings"],
        "block_count": size.layers,
        "embedding_length": size.hidden_size,
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": size.heads,
        "attention.head_count_kv": size.key_heads,
        "attention.key_length": size.head_dim,
        "attention.value_length": size.head_dim,
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.dimension_count": size.head_dim,
        **rotation,
        **gguf_class.fields,
    }
    metadata = {
        "general.type": "model",
        **{f"general.{key}": value for key, value in general.items()},
        **{f"{gguf_class.architecture}.{key}": value for key, value in fields.items()},
        **tokenizer_fields(folder, config["vocab_size"]),
    }
    weights = native.weights or {name: parameter.detach() for name, parameter in model.named_parameters()}
    tensors = {**dict(_tensors(weights, size, gguf_class)), **({} if factors is None else {"rope_freqs.weight": lambda: factors})}
    return Gguf(native.architecture, gguf_class.architecture, metadata, tensors)


def _rotation(config: Mapping[str, Any], size: Dimensions, gguf_class: GgufClass) -> tuple[dict[str, Any], Tensor | None]:
    """Return the metadata of the rotation, and the factor by which each frequency is slower, if they differ."""
    rope = config["rope_parameters"]
    fields: dict[str, Any] = {"rope.freq_base": float(rope["rope_theta"])}
    kind = rope.get("rope_type", "default")
    if kind == "default":
        return fields, None
    if kind == "linear":
        return {**fields, "rope.scaling.type": "linear", "rope.scaling.factor": float(rope["factor"])}, None
    if kind == "llama3" and gguf_class.stretches:
        scaling = Llama3Scaling(
            factor=rope["factor"],
            low_frequency_factor=rope["low_freq_factor"],
            high_frequency_factor=rope["high_freq_factor"],
            original_length=rope["original_max_position_embeddings"],
        )
        plain = Rope(theta=rope["rope_theta"])
        stretched = plain.model_copy(update={"scaling": scaling})
        return fields, plain.frequencies(size.head_dim) / stretched.frequencies(size.head_dim)
    raise ExportError(
        f"llama.cpp's {gguf_class.architecture} is not written with a rotation of the type {kind}; expected default"
        f"{', linear or llama3' if gguf_class.stretches else ' or linear'}. Choose another source"
    )


def _tensors(weights: Mapping[str, Tensor], size: Dimensions, gguf_class: GgufClass) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Yield all tensors by llama.cpp's names. Every tensor of the class has its place, or ExportError is raised."""
    from gguf import MODEL_ARCH, get_tensor_name_map

    remaining = dict(weights)
    yield from _converted(remaining, "", "", gguf_class.ends, size)
    for layer in range(size.layers):
        yield from _converted(remaining, f"model.layers.{layer}.", f"blk.{layer}.", gguf_class.layer, size)
    names = get_tensor_name_map(MODEL_ARCH[gguf_class.names], size.layers)
    for name, tensor in remaining.items():
        if (gguf_name := names.get_name(name, try_suffixes=(".weight", ".bias"))) is None:
            raise ExportError(f"llama.cpp's {gguf_class.architecture} has no place for the tensor {name}")
        yield gguf_name, partial(_unchanged, tensor)


def _converted(
    remaining: dict[str, Tensor], prefix: str, own_prefix: str, table: WeightTable, size: Dimensions
) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Yield the tensors of a table, as far as the layer has what they are made of, and remove that."""
    rows = {name: (function, [f"{prefix}{name}" for name in names]) for name, (function, *names) in table.items()}
    rows = {name: row for name, row in rows.items() if all(source in remaining for source in row[1])}
    for name, (function, names) in rows.items():
        yield f"{own_prefix}{name}", partial(function, size, *(remaining[source] for source in names))
    for _, names in rows.values():
        for source in names:
            remaining.pop(source, None)


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def write_gguf(model: Gguf, file: Path, kind: str) -> None:
    """Write the file, one tensor after the other. kind: the type of matrices, one of ``TYPES``. Vectors are in float32."""
    from gguf import GGUFWriter, LlamaFileType, quant_shape_to_byte_shape, quants

    writer = GGUFWriter(file, model.architecture)
    writer.add_file_type(LlamaFileType["ALL_F32" if kind == "f32" else f"MOSTLY_{kind.upper()}"])
    writer.add_quantization_version(2)
    for key, value in model.metadata.items():
        _add(writer, key, value)
    types = {}
    for name, compute in model.tensors.items():
        shape = tuple(compute().shape)
        types[name] = tensor_type = _type_of(name, shape, kind)
        writer.add_tensor_info(
            name, shape, np.dtype(np.float32), math.prod(quant_shape_to_byte_shape(shape, tensor_type)), tensor_type
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, compute in model.tensors.items():
        array = compute().to(torch.float32).contiguous().numpy()
        writer.write_tensor_data(quants.quantize(array, types[name]))
    writer.close()


def _type_of(name: str, shape: tuple[int, ...], kind: str) -> Any:
    """Return the type of a tensor. Rows that cannot be divided into blocks of a quantised type are in float16."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    if len(shape) != 2 or any(part in name for part in IN_FLOAT32):
        return GGMLQuantizationType.F32
    block, _ = GGML_QUANT_SIZES[GGMLQuantizationType[kind.upper()]]
    return GGMLQuantizationType.F16 if shape[-1] % block else GGMLQuantizationType[kind.upper()]


def _add(writer: Any, key: str, value: Any) -> None:
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    adders.get(type(value), writer.add_array)(key, value)
