"""The metadata of a tokenizer names llama.cpp's own kind of it, and other kinds are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from composer.errors import ExportError
from composer.exporting.gguf.tokenizer import LLAMA_3, QWEN_2, QWEN_3_5, TEKKEN, tokenizer_fields
from tests.composer.exporting.gguf.tokenizers import TEMPLATE, bytes_tokenizer, characters_tokenizer, write_tokenizer

SIZE = 320
TEACHER = Path(__file__).parents[4] / "examples" / "teacher"


def divided(*steps: Any) -> Callable[[Tokenizer], None]:
    def change(own: Tokenizer) -> None:
        own.pre_tokenizer = pre_tokenizers.Sequence([*steps])

    return change


def by(pattern: str) -> list[Any]:
    return [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


def whole_tokens(own: Tokenizer) -> None:
    own.model = models.BPE(ignore_merges=True)


def fields_of(own: Tokenizer, folder: Path, size: int = SIZE) -> dict[str, Any]:
    return tokenizer_fields(write_tokenizer(own, folder), size)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ([], "gpt-2"),
        ([divided(pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False))], "smollm"),
        ([divided(*by(LLAMA_3)), whole_tokens], "llama-bpe"),
        ([divided(*by(LLAMA_3))], "smaug-bpe"),
        ([divided(*by(QWEN_2)), lambda own: setattr(own, "normalizer", normalizers.NFC())], "qwen2"),
        ([divided(*by(QWEN_3_5))], "qwen35"),
        ([divided(*by(TEKKEN)), whole_tokens], "tekken"),
    ],
)
def test_a_bpe_of_bytes_has_the_name_of_its_division(changes: list[Callable[[Tokenizer], None]], name: str, tmp_path: Path) -> None:
    own = bytes_tokenizer(300, lambda own: [change(own) for change in changes])
    fields = fields_of(own, tmp_path)
    assert fields["tokenizer.ggml.model"] == "gpt2"
    assert fields["tokenizer.ggml.pre"] == name
    tokens = fields["tokenizer.ggml.tokens"]
    assert len(tokens) == len(fields["tokenizer.ggml.token_type"]) == SIZE
    assert [own.id_to_token(number) for number in range(own.get_vocab_size())] == tokens[: own.get_vocab_size()]
    assert tokens[-1] == f"[PAD{SIZE - 1}]"
    assert fields["tokenizer.ggml.token_type"][:4] == [3, 3, 3, 1]
    assert fields["tokenizer.ggml.token_type"][-1] == 5
    assert fields["tokenizer.ggml.merges"] == [" ".join(merge) for merge in json.loads(own.to_str())["model"]["merges"]]
    assert fields["tokenizer.ggml.add_bos_token"] is True
    assert fields["tokenizer.ggml.add_eos_token"] is False
    assert fields["tokenizer.chat_template"] == TEMPLATE


def test_a_bpe_of_characters_has_scores_in_the_order_of_its_merges(tmp_path: Path) -> None:
    fields = fields_of(characters_tokenizer(), tmp_path)
    assert fields["tokenizer.ggml.model"] == "llama"
    assert fields["tokenizer.ggml.add_space_prefix"] is True
    scores = dict(zip(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.scores"], strict=True))
    assert scores["li"] > scores["▁t"] > scores["▁the"] > scores["▁lit"] > scores["q"]
    types = dict(zip(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"], strict=True))
    assert [types[token] for token in ("<unk>", "<bos>", "<0x0A>", "li")] == [2, 3, 6, 1]


def test_merges_that_llama_cpp_would_make_in_another_order_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="its merges to ▁lit are not together or leave out a pair"):
        fields_of(characters_tokenizer(()), tmp_path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda own: setattr(own, "normalizer", normalizers.Lowercase()), "it changes texts first, by Lowercase"),
        (divided(pre_tokenizers.Whitespace()), "it divides texts by Whitespace"),
        (divided(*by("[a-z]+")), r"llama.cpp has no name for its division of texts, \[a-z\]\+"),
        (lambda own: setattr(own, "post_processor", processors.TemplateProcessing(
            single="<eos> $A", special_tokens=[("<eos>", 2)])), "expected only its first or last token beside them"),
    ],
)  # fmt: skip
def test_other_tokenizers_are_refused(change: Callable[[Tokenizer], None], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=f"a GGUF file cannot hold the tokenizer: .*{problem}"):
        fields_of(bytes_tokenizer(300, change), tmp_path)


def test_whole_words_and_missing_embeddings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="its model is WordLevel, and expected is BPE.*llama-bpe, smaug-bpe, qwen2"):
        tokenizer_fields(TEACHER, 507)
    with pytest.raises(ExportError, match="it has the token 299, and the model has 200 embeddings"):
        fields_of(bytes_tokenizer(300), tmp_path, 200)
    (tmp_path / "none").mkdir()
    with pytest.raises(ExportError, match="has no tokenizer that transformers can read, and a GGUF file needs it"):
        tokenizer_fields(tmp_path / "none", 300)
