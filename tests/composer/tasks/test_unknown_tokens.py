"""All functions that read a text report unknown tokens in the same words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import composer
from composer.tasks.writer import hardly_written
from tests.composer.cli.conftest import student, teacher

__all__ = ["student", "teacher"]
SAID = "are the tokenizer's token for unknown text, so most of their content is lost. Use texts that"


def test_a_large_share_of_unknown_tokens_is_reported() -> None:
    ids = np.arange(100)
    ids[:25] = 499
    assert (hardly_written("the data", ids, 499) or "").startswith(f"25% of the tokens of the data {SAID}")
    assert hardly_written("the data", ids, None) is None
    assert hardly_written("the data", ids, 99_999) is None
    assert hardly_written("the data", [1] * 98 + [0, 0], 0) is None
    assert hardly_written("the data", [1] * 97 + [0] * 3, 0)
    assert hardly_written("the data", [], 0) is None


def test_every_command_that_reads_texts_reports_unknown_tokens(
    student: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The tokenizer has eleven words, and every second word of this text is unknown."""
    strange = " ".join(["once", "whale"] * 40)
    text = tmp_path / "strange.txt"
    text.write_text(strange)

    def read_messages() -> list[str]:
        messages = [messages.message for messages in caplog.records if messages.name == "composer" and SAID in messages.message]
        caplog.clear()
        return messages

    composer.generate(student, strange, max_new_tokens=1)
    assert [message.partition(" are the tokenizer")[0] for message in read_messages()] == ["50% of the tokens of the prompt"]
    composer.evaluate(student, "perplexity", 16, text=text, samples=2)
    assert [message.partition(" are the tokenizer")[0] for message in read_messages()] == [
        f"{student.name}: 50% of the tokens of the texts of perplexity"
    ]
    composer.inspect(student, text=strange, length=16, alone=True, queries=2)
    assert [message.partition(" are the tokenizer")[0] for message in read_messages()] == ["50% of the tokens of the text"]
    few = ["recipe.sequence=16", "recipe.transfer.epochs=null", "recipe.transfer.steps=1"]
    composer.distill(student, str(text), tmp_path / "out", share=0, stage="transfer", overrides=few)
    assert [message.partition(" are the tokenizer")[0] for message in read_messages()] == ["50% of the tokens of the data"]


def test_known_texts_give_no_warning(student: Path, caplog: pytest.LogCaptureFixture) -> None:
    composer.generate(student, "once upon a time there was", max_new_tokens=1)
    composer.evaluate(student, "mqar,pairs=2", 16, samples=2)
    assert not [record for record in caplog.records if record.name == "composer"]
