"""A folder is opened by its headers: every valid checkpoint of transformers, and no damaged one."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaModel

from converters.coverage import WRAPPERS
from converters.errors import ConfigError, CoverageError, WeightsError
from converters.shard import header_bytes, read_shard
from converters.source import INDEX, RESULTS_OF, SINGLE, Source, describe, open_source
from converters.trunk import list_expected_tensors
from tests.checkpoints import LLAMA3_ROPE, edit_config, edit_header, edit_tensors, llama, llama_model
from tests.converters.conftest import refusal

VARIANTS = {
    "gqa": {},
    "mha": {"num_key_value_heads": 4},
    "mqa": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "head_dim": {"head_dim": 12},
    "llama3": {"rope_parameters": LLAMA3_ROPE},
}


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_every_variant_is_covered_and_its_offsets_are_right(tmp_path: Path, variant: dict, sharded: bool, dtype: str):
    source = open_source(llama(tmp_path, sharded=sharded, dtype=dtype, **variant))
    assert source.trunk.dtype == dtype
    assert (len(source.shards) > 1) == sharded
    assert set(source.covered.trunk) == set(list_expected_tensors(source.trunk)) == set(source.tensors)
    assert not source.covered.composed
    assert not source.covered.passed_over
    loaded = {name: tensor for file in source.shards for name, tensor in load_file(tmp_path / file).items()}
    for name, entry in source.tensors.items():
        with entry.file.open("rb") as stream:
            stream.seek(entry.start)
            content = bytearray(stream.read(entry.bytes))
        stored = torch.frombuffer(content, dtype=getattr(torch, entry.dtype)).reshape(entry.shape)
        assert torch.equal(stored, loaded[name]), name


def test_small_files_exclude_weights_and_config(single: Path):
    for name in ("chat_template.jinja", "LICENSE.txt", "tok512.model", "merges.txt", "optimizer.pt", "README.md"):
        (single / name).write_text("x")
    (single / "additional_chat_templates").mkdir()
    (single / "additional_chat_templates" / "rag.jinja").write_text("x")
    assert open_source(single).small_files == (
        "LICENSE.txt",
        "additional_chat_templates/rag.jinja",
        "chat_template.jinja",
        "generation_config.json",
        "merges.txt",
        "tok512.model",
        "tokenizer.json",
        "tokenizer_config.json",
    )


def test_a_single_file_takes_precedence_over_an_index(single: Path):
    (single / INDEX).write_text("{}")
    assert list(open_source(single).shards) == [SINGLE]


def test_a_missing_dtype_is_that_of_the_tensors(tmp_path: Path):
    folder = llama(tmp_path, dtype="float16")
    edit_config(folder, dtype=...)
    assert open_source(folder).trunk.dtype == "float16"


def test_missing_folders_and_invalid_configs_are_refused(single: Path, tmp_path: Path):
    assert "not a folder" in refusal(tmp_path / "nowhere", ConfigError)
    (single / "config.json").write_text("{")
    assert "config.json is not JSON" in refusal(single, ConfigError)
    (single / "config.json").write_text("[]")
    assert "expected a mapping" in refusal(single, ConfigError)
    (single / "config.json").unlink()
    assert "no config.json" in refusal(single, ConfigError)


def test_an_error_in_the_config_names_the_file(single: Path):
    edit_config(single, hidden_act="gelu")
    assert str(single / "config.json") in refusal(single, ConfigError)


def test_missing_and_pickled_weights_are_refused(single: Path):
    (single / SINGLE).unlink()
    assert "Only safetensors are read" in refusal(single, WeightsError)
    (single / "pytorch_model.bin").write_bytes(b"")
    message = refusal(single, WeightsError)
    assert "pytorch_model.bin" in message
    assert "save_pretrained" in message


def test_missing_shards_are_named_with_their_tensors(sharded: Path):
    gone = next(sharded.glob("model-00002-*"))
    count = sum(1 for file in json.loads((sharded / INDEX).read_text())["weight_map"].values() if file == gone.name)
    gone.unlink()
    message = refusal(sharded, WeightsError)
    assert f"{gone} is missing" in message
    assert f"{count} tensors" in message


@pytest.mark.parametrize("keep", [0, 4, 40, 2000, -1])
def test_a_truncated_shard_is_refused(sharded: Path, keep: int):
    file = next(sharded.glob("model-00001-*"))
    file.write_bytes(file.read_bytes()[:keep])
    message = refusal(sharded, WeightsError)
    assert str(file) in message
    assert "truncated" in message


def test_shards_with_trailing_bytes_are_refused(single: Path):
    with (single / SINGLE).open("ab") as stream:
        stream.write(b"0")
    assert "longer than its header states" in refusal(single, WeightsError)


def test_git_lfs_pointers_have_a_separate_message(single: Path):
    (single / SINGLE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    assert "git lfs pull" in refusal(single, WeightsError)


def test_an_index_with_missing_tensors_is_refused(sharded: Path):
    index = json.loads((sharded / INDEX).read_text())
    file = next(iter(index["weight_map"].values()))
    index["weight_map"]["model.layers.9.extra"] = file
    (sharded / INDEX).write_text(json.dumps(index))
    message = refusal(sharded, WeightsError)
    assert "'model.layers.9.extra'" in message
    assert file in message


@pytest.mark.parametrize("content", ["{}", '{"weight_map": {}}', '{"weight_map": {"a": 1}}', '{"weight_map": []}'])
def test_an_index_without_a_map_is_refused(sharded: Path, content: str):
    (sharded / INDEX).write_text(content)
    assert "no 'weight_map'" in refusal(sharded, WeightsError)


def test_a_tensor_in_two_files_is_refused(sharded: Path):
    index = json.loads((sharded / INDEX).read_text())
    first, second = sorted(set(index["weight_map"].values()))[:2]
    name = next(name for name, file in index["weight_map"].items() if file == first)
    tensor = load_file(sharded / first)[name]
    edit_tensors(sharded / second, lambda tensors: tensors.update({name: tensor}))
    message = refusal(sharded, WeightsError)
    assert all(part in message for part in (f"{name!r} is in two files", first, second))


def test_a_type_that_is_not_floating_is_refused(single: Path):
    name = "model.layers.0.mlp.up_proj.weight"
    edit_tensors(single / SINGLE, lambda tensors: tensors.update({name: tensors[name].to(torch.int8)}))
    message = refusal(single, WeightsError)
    assert "I8" in message
    assert name in message


def shift(header: dict) -> None:
    header["model.norm.weight"]["data_offsets"][0] += 4


def shrink(header: dict) -> None:
    header["model.norm.weight"]["shape"] = [1]


def empty(header: dict) -> None:
    header["model.norm.weight"] = {}


@pytest.mark.parametrize("damage", [shift, shrink, empty])
def test_inconsistent_headers_are_refused(single: Path, damage):
    edit_header(single / SINGLE, damage)
    message = refusal(single, WeightsError)
    assert "damaged header" in message
    assert "'model.norm.weight'" in message


def test_duplicate_names_in_a_header_are_refused(single: Path):
    text = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    (single / SINGLE).write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    assert "names 'a' twice" in refusal(single, WeightsError)


@pytest.mark.parametrize("text", [b"{]", b"[]", b"\xff\xff"])
def test_a_header_that_is_no_mapping_is_refused(single: Path, text: bytes):
    (single / SINGLE).write_bytes(struct.pack("<Q", len(text)) + text)
    assert "damaged header" in refusal(single, WeightsError)


def test_shapes_that_contradict_the_config_are_refused_with_both_shapes(single: Path):
    edit_config(single, intermediate_size=52)
    message = refusal(single, CoverageError)
    assert "model.layers.0.mlp.up_proj.weight: expected [52, 32] from config.json, the file has [48, 32]" in message
    assert "6 tensors of another shape" in message


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"num_hidden_layers": 1}, ["model.layers.1.", "config.json has 1 layers"]),
        ({"num_hidden_layers": 3}, ["model.layers.2.input_layernorm.weight", "tensors that the source lacks", "and 3 more"]),
        ({"attention_bias": True}, ["q_proj.bias", "config.json has biases"]),
        ({"tie_word_embeddings": True, "vocab_size": 65}, ["lm_head.weight", "tie_word_embeddings"]),
    ],
)
def test_coverage_errors_have_names_shapes_and_a_cause(single: Path, changes: dict, parts: list[str]):
    edit_config(single, **changes)
    message = refusal(single, CoverageError)
    assert all(part in message for part in parts), message


def test_an_untied_config_of_a_tied_model_is_refused_with_the_cause(tmp_path: Path):
    folder = llama(tmp_path, tie_word_embeddings=True)
    edit_config(folder, tie_word_embeddings=False)
    message = refusal(folder, CoverageError)
    assert "lm_head.weight [64, 32]: config.json has tie_word_embeddings false" in message


def test_biases_that_contradict_the_config_are_refused(tmp_path: Path):
    folder = llama(tmp_path, attention_bias=True)
    edit_config(folder, attention_bias=False)
    assert "a bias, and config.json has none" in refusal(folder, CoverageError)


def test_unknown_tensors_are_refused(single: Path):
    edit_tensors(single / SINGLE, lambda tensors: tensors.update({"model.extra": torch.ones(2, 3)}))
    assert "model.extra [2, 3]: the family's table does not have this name" in refusal(single, CoverageError)


def test_bare_models_are_recognised_by_their_names(single: Path):
    def bare(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)

    edit_tensors(single / SINGLE, bare)
    assert "lacks the prefix 'model.'" in refusal(single, CoverageError)


def test_rotary_buffers_and_copies_of_tied_embeddings_are_ignored(tmp_path: Path):
    folder = llama(tmp_path, tie_word_embeddings=True)
    buffer = "model.layers.1.self_attn.rotary_emb.inv_freq"
    edit_tensors(
        folder / SINGLE,
        lambda tensors: tensors.update({buffer: torch.ones(4), "lm_head.weight": tensors["model.embed_tokens.weight"] + 0}),
    )
    source: Source = open_source(folder)
    assert set(source.covered.passed_over) == {buffer}
    assert source.covered.output_copy == "lm_head.weight"


def test_opening_reads_headers_only(single: Path, tmp_path: Path):
    sparse = tmp_path / "large"
    shutil.copytree(single, sparse)
    edit_config(sparse, vocab_size=2**24)
    tensors = [(name, tensor.dtype, tensor.shape) for name, tensor in read_shard(single / SINGLE).tensors.items()]
    grown = [(name, dtype, (2**24, *shape[1:]) if shape[0] == 64 else shape) for name, dtype, shape in tensors]
    assert grown != tensors
    header = header_bytes(grown)
    elements = sum(torch.Size(shape).numel() for _, _, shape in grown)
    with (sparse / SINGLE).open("wb") as stream:
        stream.write(header)
        stream.truncate(len(header) + 4 * elements)
    assert open_source(sparse).tensors["lm_head.weight"].shape == (2**24, 32)


def test_shards_without_an_index_are_refused_with_the_missing_file(sharded: Path):
    (sharded / INDEX).unlink()
    message = refusal(sharded, WeightsError)
    assert "has model-00001-of-" in message
    assert f"and no {INDEX}, which names the file of each tensor" in message


@pytest.mark.parametrize("prefix", WRAPPERS)
def test_a_wrapped_model_is_refused_in_one_sentence(single: Path, prefix: str):
    edit_tensors(single / SINGLE, lambda tensors: [tensors.__setitem__(prefix + name, tensors.pop(name)) for name in list(tensors)])
    message = refusal(single, WeightsError)
    assert f"begin with {prefix!r}, which {WRAPPERS[prefix][0]} adds. Save the model inside: {WRAPPERS[prefix][1]}." in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    ("tied", "remedy"), [(False, "Its output matrix is missing"), (True, "Save it as one: AutoModelForCausalLM")]
)
def test_a_model_without_its_language_model_is_refused_in_one_sentence(tmp_path: Path, tied: bool, remedy: str):
    LlamaModel(llama_model(tie_word_embeddings=tied).config).save_pretrained(str(tmp_path))
    message = refusal(tmp_path, WeightsError)
    assert f"has the weights of 'LlamaModel', which is no language model. {remedy}" in message
    assert len(message.splitlines()) == 1


def test_a_folder_of_checkpoints_names_the_last(tmp_path: Path):
    for name in ("checkpoint-60", "checkpoint-500", "logs"):
        (tmp_path / name).mkdir()
        if name != "logs":
            (tmp_path / name / "config.json").write_text("{}")
    assert "has models in folders; name one of them: checkpoint-500, checkpoint-60" in refusal(tmp_path, ConfigError)


@pytest.mark.parametrize("name", RESULTS_OF)
def test_a_folder_of_results_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigError, match=f"has results of `compose {RESULTS_OF[name]}`"):
        describe(tmp_path)
