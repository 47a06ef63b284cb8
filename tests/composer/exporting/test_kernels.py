"""An exported file calls fla's operations with the arguments that these accept, and computes with them what the model does.

Operations of fla run on a GPU alone. In their place stand the definitions in float64, behind fla's own signatures.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import composer
from blocks.recurrences.additive.recurrent import naive as additive_naive
from blocks.recurrences.delta.recurrent import naive as delta_naive
from blocks.recurrences.erase.torch_forms import naive as erase_naive
from blocks.recurrences.rank_one.recurrent import naive as rank_one_naive
from composer.exporting.modeling import Exported, write_file
from tests.composer.exporting.models import check_equal, of_file, randomised

TEACHER = Path(__file__).parents[3] / "examples" / "teacher"
SPECS = {
    "lolcats": "simple_gla:chunk_simple_gla",
    "lawcat": "gla:chunk_gla",
    "gated-deltanet": "gated_delta_rule:chunk_gated_delta_rule",
    "delta": "delta_rule:chunk_delta_rule",
    "kda-hybrid": "kda:chunk_kda",
    "rwkv7": "generalized_delta_rule:chunk_dplr_delta_rule",
    "gdn2-hybrid": "gdn2:chunk_gdn2",
    "mamba3": "simple_gla:chunk_simple_gla",
}
"""The operation that the file of each spec calls."""


@cache
def written(spec: str) -> tuple[Any, Exported, Any]:
    """Return a model, its file, and the model that the file builds. No test changes them."""
    model = randomised(composer.build(spec, TEACHER))
    return model, *of_file(model)


def definition(name: str, calls: list[str]) -> Any:
    """The operation of fla by the definition of its recurrence, with checks of what kernels expect."""

    def operation(**inputs: Any) -> tuple[Tensor, Tensor]:
        calls.append(name)
        assert inputs.pop("scale") == 1.0
        assert inputs.pop("output_final_state") is True
        state = inputs.pop("initial_state")
        decay = inputs.pop("gk" if name == "chunk_dplr_delta_rule" else "g", None)
        heads = {tensor.shape[2] for tensor in (*inputs.values(), *([] if decay is None else [decay]))}
        assert heads == {state.shape[1]}, "each query head has its own inputs and its own state"
        assert {tensor.dtype for tensor in inputs.values()} == {inputs["v"].dtype}
        assert state.dtype == torch.float32
        assert decay is None or decay.dtype == torch.float32
        assert all(inputs[each].shape[-1] % 8 == 0 for each in "qkv")
        assert state.shape[2:] == (inputs["k"].shape[-1], inputs["v"].shape[-1])
        output, left = _recurrence(name, {key: tensor.double() for key, tensor in inputs.items()}, decay, state.double())
        return output.to(inputs["v"].dtype), left.float()

    return operation


def _recurrence(name: str, inputs: dict[str, Tensor], decay: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
    pairs = inputs["q"], inputs["k"], inputs["v"]
    decay = None if decay is None else decay.double()
    if name == "chunk_dplr_delta_rule":
        return rank_one_naive(*pairs, -inputs["a"], inputs["b"], decay, None, state)
    if name == "chunk_gdn2":
        assert bool((inputs["w"] == 1).all())
        return erase_naive(*pairs, inputs["b"], decay, None, state)
    if "beta" in inputs:
        return delta_naive(*pairs, inputs["beta"], decay, None, state)
    return additive_naive(*pairs, decay, None, state)


@pytest.mark.parametrize("spec", SPECS)
def test_files_with_operations_of_fla_equal_the_model(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, exported, own = written(spec)
    module, calls = sys.modules[type(own).__module__], list[str]()
    folder, name = SPECS[spec].split(":")
    assert f"from fla.ops.{folder} import {name}\n" in exported.text
    assert getattr(module, name) is None, "this machine has no GPU"
    monkeypatch.setattr(module, name, definition(name, calls))
    own(torch.arange(3, 20)[None])
    assert not calls, "on a CPU, PyTorch computes"
    monkeypatch.setattr(module, "runs_fla", lambda *_: True)
    check_equal(model, own, 507)
    assert set(calls) == {name}


@pytest.mark.skipif(find_spec("fla") is None, reason="flash-linear-attention is not installed")
@pytest.mark.parametrize("spec", SPECS)
def test_fla_accepts_the_arguments_of_the_file(spec: str) -> None:
    """Read from the source of fla, which takes seconds to import."""
    package = find_spec("fla")
    assert package is not None
    assert package.origin is not None
    folder, name = SPECS[spec].split(":")
    sources = (path.read_text() for path in (Path(package.origin).parent / "ops" / folder).rglob("*.py"))
    trees = [ast.parse(text) for text in sources if f"def {name}(" in text]
    (own,) = (node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    accepted = {argument.arg for argument in (*own.args.args, *own.args.kwonlyargs)}
    file = ast.parse(written(spec)[1].text)
    calls = [node for node in ast.walk(file) if isinstance(node, ast.Call) and ast.unparse(node.func) == name]
    assert calls
    assert all(not call.args and {keyword.arg for keyword in call.keywords} <= accepted for call in calls)


@pytest.mark.parametrize("is_installed", [True, False])
def test_files_import_fla_only_with_a_gpu(is_installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write_file(composer.build("lawcat", TEACHER)).text
    end = text.index("class LawcatConfig")
    stand_in = ModuleType("fla.ops.gla")
    stand_in.chunk_gla = lambda **_: None  # type: ignore[attr-defined]
    for name in ("fla", "fla.ops", "fla.ops.gla"):
        monkeypatch.setitem(sys.modules, name, stand_in if is_installed else None)  # type: ignore[arg-type]
    for has_gpu in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        names: dict[str, Any] = {}
        exec(compile(text[:end], "modeling_lawcat.py", "exec"), names)
        assert names["chunk_gla"] is (stand_in.chunk_gla if is_installed and has_gpu else None)
    runs_fla = names["runs_fla"]
    assert runs_fla(torch.bfloat16, torch.device("cuda"))
    assert not runs_fla(torch.float32, torch.device("cuda"))
    assert not runs_fla(torch.bfloat16, torch.device("cpu"))
