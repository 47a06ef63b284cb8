"""The texts the teacher is trained on, and the word-level tokenizer that reads and writes them."""

from __future__ import annotations

import random
import re

from stories import story, templates
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

__all__ = ["KEYS", "SHORTEST_PASSKEY", "VALUES", "build_tokenizer", "passkey", "recall", "story"]

TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
    "I will quiz you about the important information there."
)
FILLER = ("The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again.")
NEEDLE = "The pass key is {key}. Remember it. {key} is the pass key."
QUESTION = "What is the pass key? The pass key is"
SHORTEST_PASSKEY = 68  # tokens, with no filler at all

# The recall words appear in no other text, so that a key tells the model which kind of text it reads.
KEY_WORDS = """
otter heron badger falcon lizard turtle walrus beaver donkey parrot pigeon spider salmon oyster lobster panther
jackal gibbon ferret weasel magpie raven swan stork moth cricket beetle hornet viper cobra gecko newt
trout perch herring squid shrimp coral whale dolphin seal penguin puffin toucan ostrich camel llama bison
moose yak zebra giraffe lion tiger leopard cheetah hyena lemur koala panda sloth tapir hamster hedgehog
"""
VALUE_WORDS = """
velvet copper marble cotton silver granite linen bronze leather crystal paper rubber cement plaster ivory amber
pepper ginger garlic saffron vanilla mustard basil clove nutmeg parsley walnut almond pecan cashew raisin olive
hammer chisel shovel ladder bucket needle ribbon button zipper buckle pencil violin trumpet guitar piano flute
anchor rudder engine piston rocket magnet candle mirror pillow blanket carpet curtain kettle saucer teapot basket
"""
KEYS, VALUES = KEY_WORDS.split(), VALUE_WORDS.split()

SPECIALS = ["<pad>", "<bos>", "<eos>", "<unk>"]
WORD_OR_MARK = r"[A-Za-z]+|[^\sA-Za-z0-9]"


def length(text: str) -> int:
    """Tokens in `text`, without <bos>: one for a word, for a punctuation mark and for a digit."""
    return len(re.findall(WORD_OR_MARK + r"|\d", text))


def passkey(rng: random.Random, tokens: int) -> str:
    """A five-digit key hidden at a uniformly random depth of filler; the text ends with the key as the answer.

    As much filler as fits is used: the text and its <bos> are at most `tokens` tokens (SHORTEST_PASSKEY at the
    least), and the answer is the last five of them.
    """
    key = "".join(rng.choice("0123456789") for _ in range(5))
    needle = NEEDLE.format(key=key)
    room = tokens - 1 - length(f"{TASK} {needle} {QUESTION} {key}")
    if room < 0:
        raise ValueError(f"a passkey text needs {tokens - room} tokens, not {tokens}")
    filler: list[str] = []
    while length(sentence := FILLER[len(filler) % len(FILLER)]) <= room:
        filler.append(sentence)
        room -= length(sentence)
    filler.insert(rng.randint(0, len(filler)), needle)
    return " ".join([TASK, *filler, QUESTION, key])


def recall(rng: random.Random, tokens: int, pairs: int) -> str:
    """Multi-query associative recall: `pairs` words "key value", then keys asked again and again, each answered.

    The text and its <bos> are at most `tokens` tokens. Without <bos>, every second word is a value, and those
    after the first 2 * `pairs` words can be known from the pairs. Every key is asked once, in random order, before
    any is asked again, as far as there is room.
    """
    queries = (tokens - 1) // 2 - pairs
    if queries < 1:
        raise ValueError(f"{pairs} pairs leave no room for a query in {tokens} tokens")
    keys = rng.sample(KEYS, pairs)
    value_of = dict(zip(keys, rng.sample(VALUES, pairs), strict=True))
    asked = rng.sample(keys, pairs) + rng.choices(keys, k=max(0, queries - pairs))
    return " ".join(f"{key} {value_of[key]}" for key in keys + asked[:queries])


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each word, mark and digit; a token begins with "▁" where a space stands before it.

    Only the first digit of a number has the "▁", so numbers and marks are written back without stray spaces.
    """
    words: dict[str, None] = {}
    marks: dict[str, None] = {}
    for text in [TASK, *FILLER, NEEDLE, QUESTION, *templates(), *KEYS, *VALUES]:
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
