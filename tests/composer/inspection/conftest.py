"""The shipped teacher, and untrained students of it in folders, with parameters away from their start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

import composer

TEACHER = Path(__file__).parents[3] / "examples" / "teacher"


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(TEACHER)


@pytest.fixture(scope="session")
def lola(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LoLA with a window and a cache that overflow in a short text."""
    folder = tmp_path_factory.mktemp("students") / "lola"
    composer.build_folder("lola", TEACHER, folder, overrides=["head.memory.0.size=16", "head.memory.1.size=8"])
    return folder


def student(spec: str, *overrides: str) -> Any:
    """Return a student in memory."""
    model = composer.build(spec, TEACHER, overrides=overrides, dtype="float32")
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".composed." in name:
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model
