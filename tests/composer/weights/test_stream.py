"""Written tensors are cast as torch casts, in blocks of any size, and fresh values depend on seed and name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from composer.errors import BuildError
from composer.weights import stream
from composer.weights.plan import FRESH_FILE
from composer.weights.stream import all_finite, count_not_finite
from tests.checkpoints import edit_tensors
from tests.composer.weights.students import LAWCAT, LOLCATS, build, loaded, weights


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_dtypes_are_cast_as_in_torch(sharded: Path, tmp_path: Path, dtype: str):
    report = build(sharded, tmp_path / "out", LOLCATS, dtype=dtype)
    kind = getattr(torch, dtype)
    assert {file.how for file in report.files.values()} == {"rewritten", "written"}
    stored = weights(tmp_path / "out")
    for name, tensor in LlamaForCausalLM.from_pretrained(sharded).state_dict().items():
        assert torch.equal(stored[name], tensor.to(kind)), name
    assert {tensor.dtype for tensor in stored.values()} == {kind}
    assert loaded(tmp_path / "out").dtype == kind
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == dtype


def test_streaming_in_many_blocks_equals_streaming_in_one(sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    build(sharded, tmp_path / "one", dtype="float64")
    monkeypatch.setattr(stream, "BLOCK", 64)
    build(sharded, tmp_path / "many", dtype="float64")
    for file in sorted(path.name for path in (tmp_path / "one").glob("source-*")):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "many" / file).read_bytes()


def test_a_value_too_large_for_the_dtype_is_refused_and_nothing_written(source: Path, tmp_path: Path):
    edit_tensors(source / "model.safetensors", lambda t: t.update({"model.norm.weight": t["model.norm.weight"] * 1e6}))
    with pytest.raises(BuildError, match=r"model\.norm\.weight holds values up to .*, too large for float16"):
        build(source, tmp_path / "out", dtype="float16")
    assert os.listdir(tmp_path) == ["source"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 500, 1000])
def test_a_single_value_that_is_not_finite_is_detected(dtype: torch.dtype, value: float, place: int):
    tensor = torch.linspace(-3, 3, 1001).to(dtype)
    assert all_finite(tensor)
    assert all_finite(tensor[:0])
    tensor[place] = value
    assert not all_finite(tensor)
    assert count_not_finite(tensor) == 1


def fresh(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / FRESH_FILE)


def test_fresh_values_depend_only_on_seed_and_name(source: Path, tmp_path: Path):
    build(source, tmp_path / "a", LOLCATS, seed=1)
    build(source, tmp_path / "b", LOLCATS, seed=1)
    assert (tmp_path / "a" / FRESH_FILE).read_bytes() == (tmp_path / "b" / FRESH_FILE).read_bytes()

    build(source, tmp_path / "c", LAWCAT, seed=1)
    without_conv = {**LAWCAT, "head": {key: part for key, part in LAWCAT["head"].items() if key != "conv"}}
    build(source, tmp_path / "d", without_conv, seed=1)
    build(source, tmp_path / "e", LAWCAT, seed=2)
    together, apart, other = (fresh(tmp_path / name) for name in "cde")
    assert set(apart) < set(together)
    assert all(torch.equal(together[name], tensor) for name, tensor in apart.items())
    assert any(not torch.equal(together[name], other[name]) for name in together)
