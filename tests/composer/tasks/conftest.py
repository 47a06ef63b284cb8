"""Tokenizers of several kinds, and texts to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from composer.tasks.stories import templates
from composer.tasks.writer import Writer

ROOT = Path(__file__).parents[3]
TEACHER = ROOT / "examples" / "teacher"
REAL = ROOT.parent / "shared" / "teachers" / "stories260k"

FACTS = {
    1: "1 Mary moved to the bathroom.\n2 John went to the hallway.\n3 Where is Mary? \tbathroom\t1\n"
    "4 Mary went to the office.\n5 Where is Mary? \toffice\t4\n",
    2: "1 Mary went to the kitchen.\n2 Mary got the milk there.\n3 Mary went to the garden.\n4 Where is the milk? \tgarden\t2 3\n",
    5: "1 Fred took the milk there.\n2 Fred gave the milk to Bill.\n3 Who did Fred give the milk to? \tBill\t2\n",
}


def load(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def byte_level(*, bos: bool) -> Any:
    """A byte-level tokenizer with merges from the sentences of the stories."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, special_tokens=["<bos>", "<eos>", "<own>"], show_progress=False
    )
    tokenizer.train_from_iterator(templates(), trainer)
    if not bos:
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", model_max_length=64)


@pytest.fixture(scope="session")
def words() -> Writer:
    """The shipped teacher's tokenizer: a word, a punctuation mark or a digit is a token."""
    return Writer(load(TEACHER))


@pytest.fixture(scope="session")
def letters() -> Writer:
    return Writer(byte_level(bos=True))


@pytest.fixture(scope="session", params=["bytes", "bytes without special tokens", "sentence pieces"])
def any_text(request: pytest.FixtureRequest, letters: Writer) -> Writer:
    """The tokenizers that can write every text."""
    if request.param == "sentence pieces":
        if not REAL.is_dir():
            pytest.skip("no tokenizer of a real model lies beside the repository")
        return Writer(load(REAL))
    return letters if request.param == "bytes" else Writer(byte_level(bos=False))


@pytest.fixture
def babi(tmp_path: Path) -> Path:
    """Files in bAbI's format with this project's stories."""
    folder = tmp_path / "babi"
    folder.mkdir()
    for number, facts in FACTS.items():
        for part in ("train", "test"):
            (folder / f"qa{number}_some-words_{part}.txt").write_text(facts)
    return folder


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """A text of 500 numbered sentences."""
    path = tmp_path / "book.txt"
    path.write_text("\n".join(f"This is the sentence\nof number {number}.  " for number in range(500)))
    return path
