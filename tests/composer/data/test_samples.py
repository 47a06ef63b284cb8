"""A task's samples become documents of which the answers, or all tokens, are learned."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from composer.data.loading import sample_documents
from composer.tasks.mqar import Mqar
from composer.tasks.passkey import Passkey
from composer.tasks.recall import Recall
from composer.tasks.stories import Stories
from composer.tasks.writer import Writer
from tests.composer.tasks.conftest import byte_level

TASKS = [Passkey(samples=3), Recall(samples=3, pairs=4), Mqar(samples=3, pairs=4), Stories(samples=3)]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_samples_become_documents_that_learn_the_answer_or_all_tokens(
    task: Passkey | Recall | Mqar | Stories, tokenizer: PreTrainedTokenizerBase
) -> None:
    samples = list(task.draw(Writer(tokenizer), 200, "train"))
    for learn in ("answer", "all"):
        if task.name == "stories" and learn == "answer":
            continue
        documents = list(sample_documents(task.model_copy(update={"learn": learn}), tokenizer, 200, "train"))
        for document, sample in zip(documents, samples, strict=True):
            assert document.ids.dtype == np.int32
            assert document.learned.dtype == bool
            assert document.ids.tolist() == list(sample.ids)
            wanted = sample.answer if learn == "answer" else [token != 1 for token in sample.ids]
            assert document.learned.tolist() == list(wanted)


def test_the_first_token_is_never_learned() -> None:
    (document,) = sample_documents(Passkey(samples=1, learn="all"), byte_level(bos=False), 400, "train")
    assert document.learned.tolist() == [False] + [True] * (len(document) - 1)
