"""Functions are specialised to the arguments that all their calls share, and compute the same."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from composer.exporting.folding import Known, NotNone
from composer.exporting.functions import Functions
from composer.exporting.writing import annotation, function_texts

SOURCE = '''
import torch
from blocks.tensors import as_dtype

def assigned(states, factor=None, offset=None):
    """Scaled states."""
    factor = 2.0 if factor is None else factor
    return states * factor if offset is None else states * factor + offset

def by_rank(states, decay=None):
    """Decayed states."""
    if decay is None:
        return states
    if decay.dim() == 1:
        return states * decay
    return states * decay.sum(-1)

def divided(states, masses, dtype):
    """States in another dtype."""
    return as_dtype(states / masses, dtype)
'''


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    path = tmp_path / "functions_to_fold.py"
    path.write_text(SOURCE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("functions_to_fold", path)
    assert spec is not None
    assert spec.loader is not None
    result = sys.modules["functions_to_fold"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(result)
    yield result
    del sys.modules["functions_to_fold"]


def _write(name: str, **facts: Any) -> tuple[str, Any]:
    functions = Functions([(f"functions_to_fold:{name}", facts)], ())
    (text,) = function_texts(functions)
    place: dict[str, Any] = {"torch": torch}
    exec("from __future__ import annotations\n" + text, place)
    return text, place[name]


def test_reassigned_parameters_are_kept(module: ModuleType) -> None:
    text, function = _write("assigned", states=NotNone(1), factor=Known(None), offset=Known(None))
    assert "factor" in text
    assert "offset" not in text
    assert torch.equal(function(torch.ones(2)), module.assigned(torch.ones(2)))


def test_unreachable_branches_are_removed(module: ModuleType) -> None:
    text, function = _write("by_rank", states=NotNone(1), decay=NotNone(2))
    assert "if" not in text
    decay = torch.rand(2, 3)
    assert torch.equal(function(torch.ones(2), decay), module.by_rank(torch.ones(2), decay))


def test_the_dtype_is_converted_after_the_division(module: ModuleType) -> None:
    _, function = _write("divided", states=NotNone(1), masses=NotNone(1), dtype=NotNone())
    inputs = torch.rand(9), torch.rand(9), torch.bfloat16
    result = function(*inputs)
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, module.divided(*inputs))


@pytest.mark.parametrize(
    ("written", "rank", "shapes"),
    [
        ("Float[Tensor, 'B T N'] | Float[Tensor, 'B T N F'] | None", None, "B T N or B T N F"),
        ("Float[Tensor, 'B T N'] | Float[Tensor, 'B T N F'] | None", 3, "B T N"),
        ("tuple[Float[Tensor, 'B T H V'], Float[Tensor, 'B N F V']]", None, "B T H V, B N F V"),
    ],
)
def test_annotated_shapes_have_the_rank_of_the_calls(written: str, rank: int | None, shapes: str) -> None:
    assert annotation(ast.parse(written, mode="eval").body, rank)[1] == shapes
