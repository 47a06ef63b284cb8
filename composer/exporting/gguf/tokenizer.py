"""A tokenizer as the metadata of a GGUF file. llama.cpp has its own code for each kind, which the metadata names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from composer.errors import ExportError
from composer.system.trust import load_tokenizer

NORMAL, UNKNOWN, CONTROL, ADDED, UNUSED, BYTE = range(1, 7)
"""llama.cpp's types of tokens."""
DIGITS, WORDS = "each digit", "GPT-2's words"
END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LLAMA_3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{END}"
QWEN_2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{END}"
QWEN_3_5 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{END}"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{END}"
)
NAMES: Mapping[tuple[tuple[str, ...], bool], str] = {
    ((WORDS,), False): "gpt-2",
    ((DIGITS, WORDS), False): "smollm",
    ((LLAMA_3,), True): "llama-bpe",
    ((LLAMA_3,), False): "smaug-bpe",
    ((QWEN_2,), False): "qwen2",
    ((QWEN_3_5,), False): "qwen35",
    ((TEKKEN,), True): "tekken",
}
"""llama.cpp's name for ways to divide texts before merges, and whether whole tokens are found without merges."""


def tokenizer_fields(folder: Path, vocabulary: int) -> dict[str, Any]:
    """Return the metadata of a folder's tokenizer. vocabulary: rows of the embedding. Raises ExportError if it does not fit."""
    tokenizer: Any = load_tokenizer(
        folder, ExportError, f"{folder} has no tokenizer that transformers can read, and a GGUF file needs it"
    )
    document = json.loads(tokenizer.backend_tokenizer.to_str())
    model, kind = document["model"], document["model"].get("type")
    if kind != "BPE":
        raise _refusal(f"its model is {kind}, and expected is BPE")
    added = {token["id"]: token for token in document["added_tokens"]}
    tokens = {number: token for token, number in model["vocab"].items()} | {
        number: model_fields["content"] for number, model_fields in added.items()
    }
    if max(tokens) >= vocabulary:
        raise _refusal(f"it has the token {max(tokens)}, and the model has {vocabulary} embeddings")
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in model["merges"]]
    words = [tokens.get(number, f"[PAD{number}]") for number in range(vocabulary)]
    if model.get("byte_fallback"):
        type_fields = {
            "model": "llama",
            "pre": "default",
            "scores": _scores(words, merges),
            "add_space_prefix": _has_space_prefix(document),
        }
    else:
        type_fields = {"model": "gpt2", "pre": _name_of_division(document), "merges": merges}
    types = [_type_of(number, tokens, added, model) for number in range(vocabulary)]
    ids = {name: getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "unk", "pad")}
    fields = {
        **type_fields,
        "tokens": words,
        "token_type": types,
        **{f"{name}_token_id": number for name, number in ids.items() if number is not None},
        **_ends(tokenizer, ids),
    }
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items()} | _templates(tokenizer.chat_template)


def _refusal(problem: str) -> ExportError:
    return ExportError(
        f"a GGUF file cannot hold the tokenizer: {problem}. llama.cpp has BPE of bytes, divided as in "
        f"{', '.join(dict.fromkeys(NAMES.values()))}, and BPE of characters with bytes for unknown ones. Build the student with "
        "another tokenizer, or export with --native"
    )


def _name_of_division(document: Mapping[str, Any]) -> str:
    """Return llama.cpp's name for the way in which a tokenizer of bytes divides texts."""
    normalizer = document.get("normalizer")
    if normalizer is not None and normalizer != {"type": "NFC"}:  # texts are hardly ever in another form
        raise _refusal(f"it changes texts first, by {_kind(normalizer)}")
    pre_tokenizer = document.get("pre_tokenizer") or {}
    pieces: list[str] = []
    for step in pre_tokenizer.get("pretokenizers", [pre_tokenizer]):
        match step:
            case {"type": "Digits", "individual_digits": True}:
                pieces.append(DIGITS)
            case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}:
                pieces.append(pattern)
            case {"type": "ByteLevel", "add_prefix_space": False}:
                pieces += [WORDS] if step.get("use_regex", True) else []
            case _:
                raise _refusal(f"it divides texts by {_kind(step)}")
    if (name := NAMES.get((tuple(pieces), bool(document["model"].get("ignore_merges"))))) is None:
        raise _refusal(f"llama.cpp has no name for its division of texts, {' and '.join(pieces) or 'none'}")
    return name


def _kind(step: Mapping[str, Any]) -> str:
    return str(step.get("type", "nothing"))


def _has_space_prefix(document: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer of characters puts a space before texts."""
    match document.get("normalizer"), document.get("pre_tokenizer"):
        case None, {"type": "Metaspace", "prepend_scheme": "first" | "always" | "never" as scheme, "split": False}:
            return scheme != "never"
        case {"type": "Sequence", "normalizers": [{"type": "Prepend"}, {"type": "Replace"}]}, None:
            return True
        case {"type": "Replace"}, None:
            return False
        case normalizer, division:
            raise _refusal(f"it changes texts by {_kind(normalizer or {})} and divides them by {_kind(division or {})}")


def _scores(tokens: list[str], merges: list[str]) -> list[float]:
    """Return the score of each token: the earlier its first merge, the higher. llama.cpp merges the highest score first."""
    ranks: dict[str, int] = {}
    texts, last = {*merges, *tokens}, ""
    for rank, merge in enumerate(merges):
        token = merge.replace(" ", "")
        splits = ((token[:at], token[at:]) for at in range(1, len(token)))
        unlisted = [
            f"{left} {right}" for left, right in splits if left in texts and right in texts and f"{left} {right}" not in texts
        ]
        if unlisted or (token in ranks and token != last):
            raise _refusal(f"llama.cpp merges by tokens, and its merges to {token} are not together or leave out a pair")
        ranks.setdefault(token, rank)
        last = token
    return [-float(ranks.get(token, len(merges))) for token in tokens]


def _type_of(number: int, tokens: Mapping[int, str], added: Mapping[int, Any], model: Mapping[str, Any]) -> int:
    if number not in tokens:
        return UNUSED
    if model.get("byte_fallback") and tokens[number] == model.get("unk_token"):
        return UNKNOWN
    if number in added:
        return CONTROL if added[number]["special"] else ADDED
    is_byte = model.get("byte_fallback") and tokens[number].startswith("<0x") and tokens[number].endswith(">")
    return BYTE if is_byte else NORMAL


def _ends(tokenizer: Any, ids: Mapping[str, int | None]) -> dict[str, bool]:
    """Return whether texts get a token at their start and at their end."""
    plain, with_special = (tokenizer("a", add_special_tokens=special).input_ids for special in (False, True))
    for start, end in product((False, True), repeat=2):
        if [ids["bos"]] * start + plain + [ids["eos"]] * end == with_special:
            return {"add_bos_token": start, "add_eos_token": end}
    raise _refusal(f"of the tokens {plain} it makes {with_special}; expected only its first or last token beside them")


def _templates(template: str | Mapping[str, str] | None) -> dict[str, Any]:
    """Return the metadata of chat templates. Of several, the one named ``default`` is llama.cpp's."""
    named = {"default": template} if isinstance(template, str) else dict(template or {})
    default = {"tokenizer.chat_template": named.pop("default")} if "default" in named else {}
    more = {f"tokenizer.chat_template.{name}": text for name, text in named.items()}
    return {**default, **({"tokenizer.chat_templates": list(named)} if named else {}), **more}
