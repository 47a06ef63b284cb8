"""The shipped teacher, students of it in folders, and texts in its vocabulary."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import transformers

import composer
from composer.tasks.stories import story

ROOT = Path(__file__).parents[3]
TEACHER = ROOT / "examples" / "teacher"


@pytest.fixture(autouse=True, scope="session")
def _quiet() -> None:
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(TEACHER)


@pytest.fixture(scope="session")
def plain() -> Any:
    """The teacher as a transformers model."""
    return transformers.AutoModelForCausalLM.from_pretrained(TEACHER).eval()


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Untrained students by their specs."""
    made = {name: tmp_path_factory.mktemp("students") / name for name in ("softmax", "lola", "lawcat")}
    for name, folder in made.items():
        composer.build_folder(name, TEACHER, folder)
    return made


@pytest.fixture(scope="session")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 3,000 tokens of stories."""
    path = tmp_path_factory.mktemp("texts") / "book.txt"
    rng = random.Random(0)
    path.write_text("\n".join(story(rng) for _ in range(30)))
    return path
