"""Precise parameters stay in float32 if a model is narrowed: in a file, on loading, by a cast, and in training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModel, AutoModelForCausalLM

import composer
from composer.weights.load import load_model
from composer.weights.verify import verify
from converters.trunk import Dtype
from tests.checkpoints import llama, llama_model

HEAD = {
    "feature_map": "hedgehog",
    "value_position": "vapor",
    "mix_input": {"kind": "rglru", "feeds": "qk"},
    "memory": [
        {"kind": "state", "name": "fine", "gate": "channel"},
        {"kind": "state", "name": "coarse", "gate": "head"},
    ],
    "flow": "parallel",
}
SPEC = {"compose": 1, "name": "precise", "head": HEAD}
TRUNK = {"width": 32, "layers": 2, "heads": 4, "vocabulary": 64}
PRECISE = {
    f"{layer}.self_attn.composed.head.{name}"
    for layer in ("model.layers.0", "model.layers.1")
    for name in ("value_position.frequency", "mix_input.decay", "mix_input.recurrence_bias", "fine_gate.bias", "coarse_gate.bias")
}
NARROW = (torch.bfloat16, torch.float16)


def student() -> Any:
    """A student in float32 with numbers that no narrower type represents."""
    model = composer.build(SPEC, llama_model())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".composed." in name:
                parameter.add_(0.3 * torch.rand(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return model


def assert_precise(parameters: dict[str, Tensor], wide: dict[str, Tensor], narrow: torch.dtype) -> None:
    assert parameters.keys() >= PRECISE
    for name, tensor in parameters.items():
        if name in PRECISE:
            assert tensor.dtype == torch.float32, name
            assert torch.equal(tensor, wide[name]), name
        else:
            assert tensor.dtype == narrow, name


CASTS: dict[str, Callable[[Any, torch.dtype], object]] = {
    "its own name": lambda model, kind: model.bfloat16() if kind == torch.bfloat16 else model.half(),
    "to": lambda model, kind: model.to(kind),
    "to a device": lambda model, kind: model.to("cpu", kind),
    "of a part": lambda model, kind: (model.model.to(kind), model.lm_head.to(kind)),
    "type": lambda model, kind: model.type(kind),
}


@pytest.mark.parametrize("cast", CASTS)
@pytest.mark.parametrize("kind", NARROW, ids=str)
def test_casts_keep_precise_parameters_in_float32(cast: str, kind: torch.dtype) -> None:
    model = student()
    wide = copy.deepcopy(model.state_dict())
    CASTS[cast](model, kind)
    assert_precise(model.state_dict(), wide, kind)
    assert model(torch.arange(20)[None]).logits.isfinite().all()


def test_gradients_keep_the_dtype_of_their_parameters() -> None:
    model = student()
    tokens = torch.arange(20)[None]
    model(tokens, labels=tokens).loss.backward()
    before = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.bfloat16()
    after = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert after.keys() == before.keys() >= PRECISE
    assert all(grad.dtype == (torch.float32 if name in PRECISE else torch.bfloat16) for name, grad in after.items())
    assert all(torch.equal(after[name], before[name]) for name in PRECISE)


def test_casts_to_float32_and_float64_apply_to_every_parameter() -> None:
    model = student().double()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    wide = {name: tensor.float() for name, tensor in model.state_dict().items()}
    assert_precise(model.bfloat16().state_dict(), wide, torch.bfloat16)
    assert {parameter.dtype for parameter in model.float().parameters()} == {torch.float32}


def test_moves_between_devices_keep_dtypes() -> None:
    model = student().to("meta")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.to_empty(device="cpu").model.layers[0].self_attn.composed.head.fine_gate.bias.shape == (4 * 16,)


@pytest.mark.parametrize("kind", NARROW, ids=str)
def test_loading_in_a_narrow_dtype_keeps_precise_parameters_in_float32(kind: torch.dtype, tmp_path: Path) -> None:
    model = student()
    model.save_pretrained(tmp_path)
    wide = model.state_dict()
    assert_precise(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=kind).state_dict(), wide, kind)
    assert_precise(load_model(tmp_path, str(kind).removeprefix("torch."), "cpu").state_dict(), wide, kind)
    bare = AutoModel.from_pretrained(tmp_path, dtype=kind).state_dict()
    assert_precise({f"model.{name}": tensor for name, tensor in bare.items()}, wide, kind)
    model.to(kind).save_pretrained(tmp_path / "narrow")
    assert_precise(AutoModelForCausalLM.from_pretrained(tmp_path / "narrow", dtype="auto").state_dict(), wide, kind)
    double = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert {parameter.dtype for parameter in double.parameters()} == {torch.float64}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("source", ["a source", "nothing"])
def test_builds_in_a_narrow_dtype_keep_precise_parameters_in_float32(source: str, dtype: Dtype, tmp_path: Path) -> None:
    """Initial values are the same for every dtype of the other weights, also in a build from a float32 student."""
    options: dict[str, Any] = {"fresh": True} if source == "nothing" else {"source": llama(tmp_path / "llama")}
    spec = SPEC | ({"trunk": TRUNK} if source == "nothing" else {})
    composer.build_folder(spec, out=tmp_path / "wide", **options)
    wide, kind = composer.load(tmp_path / "wide").state_dict(), getattr(torch, dtype)
    report = composer.build_folder(spec, out=tmp_path / "narrow", dtype=dtype, **options)
    composer.build_folder(SPEC, tmp_path / "wide", tmp_path / "again", dtype=dtype)
    for folder in (tmp_path / "narrow", tmp_path / "again"):
        stored = {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
        assert_precise(stored, wide, kind)
        assert_precise(composer.load(folder).state_dict(), wide, kind)
        assert verify(folder).ok
    assert {name for name, entry in report.plan.parameters.items() if entry.dtype == "float32"} == PRECISE
    assert_precise(composer.build(spec, dtype=dtype, **options).state_dict(), wide, kind)


def test_errors_under_autocast_do_not_grow_with_position() -> None:
    """Autocast would compute projections in bfloat16. Its error is constant, but heads read parameters directly."""
    model = composer.build(SPEC | {"trunk": TRUNK | {"layers": 1}}, fresh=True)
    tokens = torch.randint(64, (1, 4096), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model.model(tokens).last_hidden_state
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model.model(tokens).last_hidden_state
    wrong = (hidden - expected).norm(dim=-1) / expected.norm(dim=-1)
    early, late = (wrong[:, part].median().item() for part in (slice(0, 64), slice(3072, 4096)))
    assert 0 < late <= 2 * early + 0.005
