"""The samples of a task as documents to train on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from composer.data.document import Document
from composer.tasks.base import Split, Task
from composer.tasks.writer import Writer


def sample_documents(task: Task, tokenizer: Any, length: int | None, split: Split) -> Iterator[Document]:
    """Yield all samples that the task draws: the ids, and which of them are learned. length: tokens of a sample if the task does
    not set its own.
    """
    writer = Writer(tokenizer)
    begins = [token for token in writer.begin if token not in writer.end]
    for sample in task.draw(writer, length, split):
        ids = np.array(sample.ids, dtype=np.int32)
        learned = np.array(sample.answer) if task.learn == "answer" else ~np.isin(ids, begins)
        learned[0] = False  # nothing precedes it, so it cannot be predicted
        yield Document(ids=ids, learned=learned)
