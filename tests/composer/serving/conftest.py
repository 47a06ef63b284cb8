"""A small served model, for all tests of the server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoTokenizer

import composer
from composer.commands.serve import Server

TEACHER = Path(__file__).parents[3] / "examples" / "teacher"
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


@pytest.fixture(scope="session")
def served_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoLCATs model whose tokenizer has a chat template."""
    out = tmp_path_factory.mktemp("served") / "lolcats"
    composer.build_folder("lolcats", TEACHER, out)
    tokenizer = AutoTokenizer.from_pretrained(TEACHER)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(out)
    return out


@pytest.fixture(scope="session")
def server(served_folder: Path) -> Iterator[Server]:
    served = composer.serve(served_folder, port=0, dtype="float32")
    yield served
    served.close()
