"""What a model's folder may do to this process: none of its code is run, and no value of its config ends in a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.errors import ComposerError
from converters.bounded import brief, is_name, read_object, shorten
from converters.composed import ADAPTER_CONFIG
from converters.errors import ConverterError
from converters.source import check_opened_by_libraries

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LONGEST = 400
"""Characters of a reason."""
CONFIG, TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
# Kernels are fetched from the Hub, and run, where one of these names a repository.
_IMPLEMENTATIONS = ("attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation")
_LIBRARIES = re.compile(r"(composer|peft|transformers)(\.[A-Za-z0-9_]+)+")
"""Modules of packages that are installed here."""
_NEVER = "Nothing in a folder is ever run here."


def refuse_code(folder: Path, refusal: type[ComposerError]) -> None:
    """Raise ``refusal`` if a model's or a tokenizer's files can only be read by running code that they contain or name, or if one
    of them is no file that a library could open, such as a pipe.

    The ``auto_map`` of a config is allowed: this project, or transformers, has the class that it names, and uses its own.
    """
    try:
        check_opened_by_libraries(folder)
    except ConverterError as error:
        raise refusal(str(error)) from error
    config = read_object(folder / CONFIG)
    for key in _IMPLEMENTATIONS:
        if "/" in str(config.get(key) or ""):
            raise refusal(f"{folder / CONFIG} needs its own code ({key}: {config[key]}). {_NEVER} Remove that key.")
    auto_map = read_object(folder / TOKENIZER_CONFIG).get("auto_map")
    wanted = auto_map.get("AutoTokenizer") if isinstance(auto_map, Mapping) else auto_map
    if wanted:
        raise refusal(
            f"{folder / TOKENIZER_CONFIG} needs its own code (auto_map: {brief(wanted)}), so its tokenizer cannot be read. "
            f"{_NEVER} Use a tokenizer of a class in transformers. If tokenizer.json is complete, remove `auto_map` and set "
            '"tokenizer_class": "PreTrainedTokenizerFast".'
        )
    if problem := code_in_adapter(read_object(folder / ADAPTER_CONFIG)):
        raise refusal(f"{folder / ADAPTER_CONFIG} {problem}. {_NEVER}")


@contextmanager
def translate_transformers_errors(problem: str, refusal: type[ComposerError]) -> Iterator[None]:
    """For the block, raise ``refusal`` for errors of transformers about a model's files, with ``problem`` and the reason."""
    try:
        yield
    except (ComposerError, ConverterError):
        raise
    except Exception as error:  # values of a config that they do not check, of another type or size, end in any error
        reason = " ".join(str(error).split()) or "without a reason"
        raise refusal(f"{problem}: {shorten(reason, _LONGEST)} ({type(error).__name__})") from error


def code_in_adapter(config: Mapping[str, Any]) -> str | None:
    """Return why a config of PEFT would have code imported, or looked up by name; None where it would not."""
    if not config:
        return None
    if config.get("peft_type") != "LORA":
        return f"has adapters of the type {brief(config.get('peft_type'))}; expected LORA, the one that is read"
    for key in ("megatron_config", "auto_mapping", "tokenizer_kwargs"):
        if config.get(key) and not (key == "auto_mapping" and _names_known_class(config[key])):
            return f"needs its own code ({key}: {brief(config[key])})"
    return None


def _names_known_class(auto_mapping: object) -> bool:
    """Whether the class that adapters were made for, which PEFT notes where they have no task, is one of these libraries."""
    library = auto_mapping.get("parent_library") if isinstance(auto_mapping, Mapping) else None
    return isinstance(library, str) and _LIBRARIES.fullmatch(library) is not None


def check_named_files(folder: Path, refusal: type[ComposerError]) -> None:
    """Raise ``refusal`` if a tokenizer's config names a file outside of its folder, which transformers would open."""
    config = read_object(folder / TOKENIZER_CONFIG)
    listed = config.get("fast_tokenizer_files")
    outside = [name for name in listed if not is_name(str(name))] if isinstance(listed, list) else []
    if not (folder / "tokenizer.json").exists():  # else transformers ignores the others
        outside += [name for key, name in config.items() if key.endswith("_file") and name is not None and not is_name(str(name))]
    if outside:
        raise refusal(f"{folder / TOKENIZER_CONFIG} names {brief(outside[0])}; expected files of its folder only")


def load_tokenizer(folder: Path, refusal: type[ComposerError], problem: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a folder. Raises ``refusal``, with ``problem`` and the reason, where transformers can read none, or
    where one of whole words would fail at the first unknown word."""
    from tokenizers.models import WordLevel, WordPiece
    from transformers import AutoTokenizer

    refuse_code(folder, refusal)
    check_named_files(folder, refusal)
    if wrong := problem_of_template(read_object(folder / TOKENIZER_CONFIG).get("chat_template")):
        raise refusal(f"{problem} ({TOKENIZER_CONFIG}: {wrong})")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever the libraries of its kind raise
        raise refusal(f"{problem} ({shorten(str(error), 1000)})") from error
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    if isinstance(model, WordLevel | WordPiece) and model.token_to_id(model.unk_token) is None:
        raise refusal(f"{problem} (its token for unknown words, {brief(model.unk_token)}, is not in its vocabulary)")
    return tokenizer


def problem_of_template(template: Any) -> str | None:
    """Return what is wrong with the type of a tokenizer's chat template, which transformers does not check; None if it is right."""
    match template:
        case None | str():
            return None
        case dict():
            if all(isinstance(part, str) for entry in template.items() for part in entry):
                return None
        case [*entries]:
            parts = [entry.get(key) for entry in entries if isinstance(entry, dict) for key in ("name", "template")]
            if len(parts) == 2 * len(entries) and all(isinstance(part, str) for part in parts):
                return None
    return f"chat_template is {brief(template)}; expected text, or a list of objects with a name and a template"
