"""A model in memory becomes a student that computes the same, with copied weights unless sharing is chosen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

import composer
from composer.building.in_memory import build_from_model, trunk_of
from composer.errors import BuildError, SourceError
from composer.model.modeling import ComposedForCausalLM
from composer.spec.loading import load_spec
from composer.spec.resolve import Resolved, resolve
from composer.weights.config import dimensions
from composer.weights.plan import FRESH_FILE
from tests.checkpoints import LLAMA3_ROPE, llama_model, logits
from tests.composer.weights.students import LAWCAT, LOLCATS, SOFTMAX, build


def resolved_for(model, spec: dict) -> Resolved:
    return resolve(load_spec(spec), dimensions(trunk_of(model)))


def student_of(model, spec: dict = SOFTMAX, **options: object) -> ComposedForCausalLM:
    return build_from_model(resolved_for(model, spec), model, **options)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(
    "variant",
    [{}, {"tie_word_embeddings": True}, {"attention_bias": True, "mlp_bias": True}, {"rope_parameters": LLAMA3_ROPE}],
    ids=["plain", "tied", "biased", "llama3"],
)
def test_a_softmax_student_equals_its_teacher(variant: dict, share: bool):
    model = llama_model(dtype="float64", **variant)
    student = student_of(model, share=share)
    assert (logits(student) - logits(model)).abs().max() < 1e-9
    assert not student.training


@pytest.mark.parametrize("tied", [False, True])
def test_training_a_student_does_not_change_its_teacher(tied: bool):
    model = llama_model(tie_word_embeddings=tied)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    student = student_of(model, LAWCAT)
    assert (student.lm_head.weight is student.model.embed_tokens.weight) == tied
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_shared_parameters_use_no_additional_memory():
    model = llama_model()
    student = student_of(model, LAWCAT, share=True)
    places = {tensor.data_ptr() for tensor in model.state_dict().values()}
    for name, tensor in student.state_dict().items():
        assert (tensor.data_ptr() in places) == (".composed." not in name), name


@pytest.mark.parametrize("spec", [LOLCATS, LAWCAT], ids=lambda spec: spec["name"])
def test_models_in_memory_equal_models_in_a_folder(spec: dict, tmp_path):
    model = llama_model(seed=4)
    model.save_pretrained(tmp_path / "source")
    build(tmp_path / "source", tmp_path / "out", spec, seed=7)
    student = student_of(model, spec, seed=7)
    stored = load_file(tmp_path / "out" / FRESH_FILE)
    fresh = {name: tensor for name, tensor in student.state_dict().items() if ".composed." in name}
    assert set(fresh) == set(stored)
    assert all(torch.equal(stored[name], tensor) for name, tensor in fresh.items())
    loaded = ComposedForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert torch.equal(logits(loaded), logits(student))


def test_every_parameter_can_train():
    student = student_of(llama_model(), LOLCATS)
    student(torch.arange(40)[None] % 64, labels=torch.arange(40)[None] % 64).loss.backward()
    assert all(parameter.requires_grad and parameter.grad is not None for parameter in student.parameters())


def test_a_student_is_a_source_and_keeps_its_heads():
    first = student_of(llama_model(), LOLCATS)
    with torch.no_grad():
        for name, parameter in first.named_parameters():
            if ".composed." in name:
                parameter.add_(1.0)
    again = student_of(first, LOLCATS)
    assert all(torch.equal(first.state_dict()[name], tensor) for name, tensor in again.state_dict().items())


def test_other_dtypes_equal_a_folder_of_that_dtype(tmp_path: Path):
    """Only weights are cast: the angles of positions stay in float32, and the source is unchanged."""
    model = llama_model()
    model.save_pretrained(tmp_path / "source")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    narrow = composer.build(LOLCATS, tmp_path / "source", dtype="bfloat16")
    here = composer.build(LOLCATS, model, dtype="bfloat16")
    for (name, expected), (_, buffer) in zip(narrow.named_buffers(), here.named_buffers(), strict=True):
        assert (buffer.dtype, buffer.tolist()) == (expected.dtype, expected.tolist()), name
    expected = narrow.state_dict()
    for name, tensor in here.state_dict().items():
        assert tensor.dtype == expected[name].dtype, name
        assert torch.equal(tensor, expected[name]), name
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    with pytest.raises(BuildError, match="cannot be shared with a model of float32 and be bfloat16"):
        composer.build(LOLCATS, model, dtype="bfloat16", share=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_the_dtype_in_memory_is_used(dtype: str):
    student = student_of(llama_model().to(getattr(torch, dtype)), LOLCATS)
    assert {parameter.dtype for parameter in student.parameters()} == {getattr(torch, dtype)}
    assert student.config.dtype == getattr(torch, dtype)


def test_generation_settings_are_copied():
    model = llama_model()
    model.generation_config.top_k = 7
    model.generation_config.cache_implementation = "static"
    student = student_of(model)
    assert student.generation_config.top_k == 7
    assert student.generation_config.cache_implementation is None
    assert model.generation_config.cache_implementation == "static"
    assert student.generation_config is not model.generation_config


def test_sizes_of_another_family_are_read():
    trunk = trunk_of(GPT2LMHeadModel(GPT2Config(n_layer=3, n_embd=8, n_head=2, vocab_size=16)))
    sizes = (trunk.layers, trunk.hidden_size, trunk.heads, trunk.key_heads, trunk.head_dim, trunk.vocabulary_size)
    assert sizes == (3, 8, 2, 2, 4, 16)
    assert trunk.learns_positions


def test_models_with_parameters_on_meta_are_refused():
    model = llama_model()
    resolved = resolved_for(model, SOFTMAX)
    model.model.norm.to("meta")
    with pytest.raises(SourceError, match=r"model\.norm\.weight is not in memory"):
        build_from_model(resolved, model)


def test_unknown_tensors_are_refused():
    model = llama_model()
    model.model.norm.register_buffer("extra", torch.ones(3))
    with pytest.raises(SourceError, match=r"model\.norm\.extra"):
        student_of(model)


def test_a_spec_for_another_model_is_refused():
    with pytest.raises(BuildError, match="resolved against another model"):
        build_from_model(resolved_for(llama_model(num_key_value_heads=4), SOFTMAX), llama_model())
