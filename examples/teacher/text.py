"""The texts the teacher is trained on, and the word-level tokenizer that reads and writes them."""

from __future__ import annotations

import random
import re

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from composer.tasks.base import Split
from composer.tasks.needles import NEEDLE as NAMED
from composer.tasks.needles import Multikey, Multivalue, Needles, TwoNeedles, keys_of, names_of
from composer.tasks.passkey import FILLER, NEEDLE, QUESTION, TASK, five_digits, write_prompt
from composer.tasks.recall import KEYS, VALUES, draw_pairs, draw_queries, text_of
from composer.tasks.stories import story, templates

__all__ = [
    "HARDER",
    "KEYS",
    "SHORTEST",
    "SHORTEST_PASSKEY",
    "VALUES",
    "build_tokenizer",
    "draw_harder",
    "needles",
    "passkey",
    "recall",
    "statements",
    "story",
]

SHORTEST_PASSKEY = 68  # tokens, with no filler at all
HARDER: dict[str, Needles] = {"multikey": Multikey(), "multivalue": Multivalue(), "two-needles": TwoNeedles()}
SHORTEST = {"multikey": 97, "multivalue": 117, "two-needles": 84}  # tokens of HARDER, likewise

STATEMENTS = ("{name} {key}", "{name} is {key}", NAMED)
STATEMENT = 12  # tokens of the last

SPECIALS = ["<pad>", "<bos>", "<eos>", "<unk>"]
WORD_OR_MARK = r"[A-Za-z]+|[^\sA-Za-z0-9]"


def length(text: str) -> int:
    """Count the tokens of `text`, with <bos>: one for a word, for a punctuation mark and for a digit."""
    return 1 + len(re.findall(WORD_OR_MARK + r"|\d", text))


def passkey(rng: random.Random, tokens: int) -> str:
    """Write a text with a five-digit key hidden at a uniformly random depth of filler; the text ends with the key as the answer.

    As much filler as fits is used: the text and its <bos> are at most `tokens` tokens (SHORTEST_PASSKEY at the
    least), and the answer is the last five of them.
    """
    key = five_digits(rng)
    prompt, _ = write_prompt(rng, key, "plain", tokens, length)
    return f"{prompt} {key}"


def recall(rng: random.Random, tokens: int, pairs: int) -> str:
    """Write a text of multi-query associative recall: `pairs` words "key value", then keys asked again and again, each answered.

    The text and its <bos> are at most `tokens` tokens. Without <bos>, every second word is a value, and those
    after the first 2 * `pairs` words can be known from the pairs. Every key is asked once, in random order, before
    any is asked again, as far as there is room.
    """
    queries = (tokens - 1) // 2 - pairs
    if queries < 1:
        raise ValueError(f"{pairs} pairs leave no room for a query in {tokens} tokens")
    known = draw_pairs(rng, pairs)
    return text_of(known + draw_queries(rng, known, queries))


def needles(rng: random.Random, task: Needles, tokens: int, split: Split) -> tuple[str, int]:
    """Write a text of a harder task, of at most `tokens` tokens with its <bos>. Return it with the digits of its answer."""
    filled = task.fill(rng, task.hide(rng, split), tokens, length)
    return f"{filled.prompt} {' '.join(filled.answers)}", sum(map(len, filled.answers))


def draw_harder(rng: random.Random, kind: str) -> Needles:
    """Return a harder task with 2 to 4 keys or values."""
    count = rng.randint(2, 4)
    return {"multikey": Multikey(keys=count), "multivalue": Multivalue(values=count), "two-needles": TwoNeedles()}[kind]


def statements(rng: random.Random, tokens: int, forms: tuple[str, ...] = STATEMENTS) -> tuple[str, int]:
    """Write the keys of two to four names, and repeat them in random order: a dense text in which a name decides what comes next.
    Each is written in one of the forms, so that the shorter ones help to learn the sentence.

    The text and its <bos> are at most `tokens` tokens. Also returns the number of names.
    """
    count = rng.randint(2, min(4, (tokens - 1) // STATEMENT - 1))
    keys = list(zip(names_of(rng, count), keys_of(rng, count), strict=True))
    sentences: list[str] = []
    for name, key in keys + draw_queries(rng, keys, tokens):
        sentences.append(rng.choice(forms).format(name=name, key=key))
        if length(" ".join(sentences)) > tokens:
            return " ".join(sentences[:-1]), count
    raise AssertionError("a statement has more than one token")


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each word, mark and digit; a token begins with "▁" where a space stands before it.

    Only the first digit of a number has the "▁", so numbers and marks are written back without stray spaces.
    """
    words: dict[str, None] = {}
    marks: dict[str, None] = {}
    for text in [TASK.format(it="it"), *FILLER, NEEDLE, QUESTION, *templates(), *KEYS, *VALUES]:
        for piece in re.findall(WORD_OR_MARK, re.sub(r"\{\w+\}", "", text)):
            (words if piece.isalpha() else marks)[piece] = None
    digits = [space + digit for space in ("▁", "") for digit in "0123456789"]
    entries = [*SPECIALS, *digits, *sorted(marks), *(f"▁{word}" for word in sorted(words))]
    vocabulary = {entry: index for index, entry in enumerate(entries)}

    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(prepend_scheme="always"),
            pre_tokenizers.Split(Regex(r"▁?[0-9]|▁?[^▁A-Za-z0-9]"), "isolated"),
        ]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos> $B", special_tokens=[("<bos>", vocabulary["<bos>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_max_length=256,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )
