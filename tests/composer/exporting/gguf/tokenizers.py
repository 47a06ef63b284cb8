"""Tiny tokenizers of the kinds that GGUF files hold, for folders of models."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

WORDS = ("once upon a time there was a little girl named lily who liked to play in the park with her dog.", "12 boys' hats: 3!")
NAMED = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
TEMPLATE = "{% for message in messages %}<bos>{{ message['content'] }}<eos>{% endfor %}"


def bytes_tokenizer(size: int, change: Callable[[Tokenizer], Any] = lambda own: None) -> Tokenizer:
    """Return a BPE of bytes, divided as GPT-2 does. change: changes it before its merges are learned."""
    own = Tokenizer(models.BPE())
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    own.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    change(own)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = list(reversed(NAMED.values()))
    own.train_from_iterator(
        WORDS,
        trainers.BpeTrainer(vocab_size=size, special_tokens=[special[0], NAMED["bos_token"], NAMED["eos_token"]],
                            initial_alphabet=alphabet, show_progress=False),
    )  # fmt: skip
    return own


def characters_tokenizer(pairs: Sequence[tuple[str, str]] = (("▁", "lit"),)) -> Tokenizer:
    """Return a BPE of characters with bytes for unknown ones, as Llama 2 has it: all pairs that make a token are merges."""
    merges = [("l", "i"), ("▁", "t"), ("▁t", "h"), ("li", "t"), ("▁th", "e"), ("▁", "li"), ("▁li", "t"), *pairs]
    letters = sorted({letter for merge in merges for part in merge for letter in part} | set("abcdefghijklmnopqrstuvwxyz▁"))
    tokens = ["<unk>", "<bos>", "<eos>", "<pad>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *map("".join, merges)]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    own = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    own.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    own.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    own.add_special_tokens(["<unk>", "<bos>", "<eos>", "<pad>"])
    own.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    return own


def write_tokenizer(own: Tokenizer, folder: Path) -> Path:
    """Write the files of a tokenizer in place of those in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"tokenizer_class": "TokenizersBackend", **NAMED}
    (folder / "tokenizer.json").write_text(own.to_str(), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder
