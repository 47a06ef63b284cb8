"""The teacher's tokenizer, and a task in place of the catalogue's."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from blocks.part import Closed
from composer.tasks.base import Learn, Sample, Split
from composer.tasks.writer import Writer

TEACHER = Path(__file__).parents[3] / "examples" / "teacher"
CHAT = (
    "{% for m in messages %}[{{ m['role'] }}]: {{ m['content'] | trim }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]:{% endif %}"
)
Write = Callable[[str, Any], str]


class Echo(Closed):
    """Sample i is BOS, a random token, and the same token as the answer. Evaluation uses the upper half of the vocabulary."""

    samples: int = 4
    length: int | None = None
    seed: int = 0
    learn: Learn = "answer"

    def draw(self, writer: Writer, length: int, split: Split) -> Iterator[Sample]:
        random = np.random.default_rng([self.seed, split == "evaluation"])
        for _ in range(self.samples):
            token = int(random.integers(4, 200)) + 200 * (split == "evaluation")
            ids = (writer.tokenizer.bos_token_id, *[token] * (length - 1))
            yield Sample(ids, (*[False] * (length - 1), True), text="")


class Quote(Echo):
    """A task that needs a file."""

    book: Path


@pytest.fixture(autouse=True)
def _tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "composer.tasks.catalogue", SimpleNamespace(TASKS={"echo": Echo, "quote": Quote}))


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(TEACHER)


@pytest.fixture
def chatty() -> PreTrainedTokenizerBase:
    """The same tokenizer with a chat template."""
    tokenizer = AutoTokenizer.from_pretrained(TEACHER)
    tokenizer.chat_template = CHAT
    return tokenizer


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write text, or records as JSON lines, and return the path."""

    def written(name: str, content: str | bytes | list[dict[str, Any]]) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else "".join(json.dumps(record) + "\n" for record in content))
        return str(path)

    return written
