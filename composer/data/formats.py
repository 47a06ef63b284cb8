"""From a record's columns to a document: the texts that a model reads, and those that it learns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from composer.data.document import Document
from composer.data.reading import DataRecord
from composer.data.references import RecordOptions, RowFormat
from composer.errors import DataError
from composer.spec.places import brief, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

COLUMNS: dict[RowFormat, tuple[str, ...]] = {
    "messages": ("messages",),
    "alpaca": ("instruction", "output"),
    "completion": ("prompt", "completion"),
    "text": ("text",),
}
"""The columns that each form needs, in the order in which they are looked for. Alpaca may have an ``input``, too."""
TASK = "Below is an instruction that describes a task"
REQUEST = "Write a response that appropriately completes the request.\n\n"
INPUT = ", paired with an input that provides further context"
HALF = re.compile("[\ud800-\udfff]")
"""Half of a character of UTF-16: JSON can name one by itself, and no tokenizer reads it."""
DAY = "26 Jul 2024"
"""The date for chat templates that write one, which is the default of Llama's templates."""

MARKS = ("\n", ".")
"""Characters that tokenizers keep apart from what stands behind them."""


class TextPiece(NamedTuple):
    """A piece of a document, and whether it is learned."""

    text: str
    learned: bool


class TextDraft(NamedTuple):
    """A document before it is tokenized. bare: its text has BOS and EOS already, as chat templates write them."""

    pieces: tuple[TextPiece, ...]
    bare: bool = False


class Empty(DataError):
    """A record with nothing in it."""


def draft(record: DataRecord, options: RecordOptions, tokenizer: PreTrainedTokenizerBase) -> TextDraft | None:
    """The record as pieces of text; None where it is empty and such are skipped. Raises DataError, which names the record."""
    form = form_of(record, options)
    try:
        if form == "messages":
            return TextDraft(_chat(record, tokenizer), bare=True)
        return TextDraft(_plain(record, form, options.column or "text"))
    except Empty:
        if options.empty == "skip":
            return None
        raise


def form_of(record: DataRecord, options: RecordOptions) -> RowFormat:
    """The form of a record. Raises DataError where the columns have no known form, or not the one that the options ask for."""
    found = list(record.fields)
    if options.column is not None:
        if options.format not in (None, "text"):
            raise DataError(f"column={options.column}: a column of text is for format=text, not {options.format}; say one of them")
        if options.column not in found:
            raise DataError(_columns(record, (options.column,), f'no column "{options.column}"'))
        return "text"
    if options.format is not None:
        missing = [name for name in COLUMNS[options.format] if name not in found]
        if missing:
            raise DataError(_columns(record, COLUMNS[options.format], f'no column "{missing[0]}" for format={options.format}'))
        return options.format
    filled = [name for name in found if record.fields[name] is not None]  # a file of several forms has all their columns
    for columns in (filled, found):
        for form, names in COLUMNS.items():
            if set(names) <= set(columns):
                return form
    every = dict.fromkeys(name for names in COLUMNS.values() for name in names)
    raise DataError(_columns(record, every, "no columns that are understood"))


def _columns(record: DataRecord, wanted: Iterable[str], what: str) -> str:
    found = ", ".join(record.fields) or "none"
    guess = next((hint for name in record.fields if (hint := nearest(name, wanted))), ".")
    understood = " | ".join("+".join(names) for names in COLUMNS.values())
    return f"{record.place}: {what}; its columns: {found}{guess} Understood: {understood}; or column=NAME of the text"


def _plain(record: DataRecord, form: RowFormat, column: str) -> tuple[TextPiece, ...]:
    if form == "completion":
        return TextPiece(_words(record, "prompt"), False), TextPiece(_words(record, "completion"), True)
    if form == "alpaca":
        given = record.fields.get("input")
        more = _words(record, "input") if given else ""
        prompt = alpaca_prompt(_words(record, "instruction"), more)
        return TextPiece(prompt, False), TextPiece(_words(record, "output"), True)
    return (TextPiece(_words(record, column), True),)


def alpaca_prompt(instruction: str, more: str = "") -> str:
    """Alpaca's template up to the response. more: its ``input``, where there is one."""
    begin, said = (TASK + INPUT, f"### Input:\n{more}\n\n") if more else (TASK, "")
    return f"{begin}. {REQUEST}### Instruction:\n{instruction}\n\n{said}### Response:\n"


def _words(record: DataRecord, column: str) -> str:
    words = record.fields[column]
    if words is None or (isinstance(words, str) and not words.strip()):
        shown = "missing" if words is None else "blank"
        raise Empty(f"{record.place}: {column} is {shown}; mend the record, or leave such records out: empty=skip")
    if not isinstance(words, str):
        raise DataError(f"{record.place}: {column} is {brief(words)}, of type {type(words).__name__}; expected text")
    if HALF.search(words):
        raise DataError(f"{record.place}: {column} is {brief(words)}, with half of a character; expected text")
    return words


def _chat(record: DataRecord, tokenizer: PreTrainedTokenizerBase) -> tuple[TextPiece, ...]:
    """A conversation in the tokenizer's chat template; what follows the prompt for a turn of the assistant is learned."""
    if not tokenizer.chat_template:
        raise DataError(
            f"{record.place}: messages need a chat template, and the tokenizer ({tokenizer.name_or_path}) has none: take a "
            "tokenizer with one, or give columns prompt+completion"
        )
    turns = _turns(record)
    whole = _rendered(record, turns, tokenizer, asking=False)
    pieces, done = [], 0
    for number, turn in enumerate(turns):
        if turn["role"] == "assistant":
            asked = _rendered(record, turns[:number], tokenizer, asking=True) if number else ""
            said = _rendered(record, turns[: number + 1], tokenizer, asking=False)
            if not said.startswith(asked) or not whole.startswith(said) or len(asked) < done:
                raise DataError(
                    f"{record.place}: the chat template writes the turn {number + 1} otherwise once more is said, so where the "
                    "assistant speaks cannot be told; give columns prompt+completion"
                )
            pieces += [TextPiece(whole[done : len(asked)], False), TextPiece(whole[len(asked) : len(said)], True)]
            done = len(said)
    return (*pieces, TextPiece(whole[done:], False))


def _turns(record: DataRecord) -> list[dict[str, str]]:
    messages = record.fields["messages"]
    if not messages:
        raise Empty(f"{record.place}: messages is empty; mend the record, or leave such records out: empty=skip")
    turns = []
    for number, message in enumerate(messages if isinstance(messages, list) else [messages], 1):
        if not isinstance(message, Mapping) or "role" not in message:
            raise DataError(f"{record.place}: message {number} is {brief(message)}; expected a mapping with role and content")
        here = DataRecord(f"{record.place}, message {number}", {"content": None, **message})
        turns.append({"role": _words(here, "role"), "content": _words(here, "content")})
    if all(turn["role"] != "assistant" for turn in turns):
        roles = ", ".join(dict.fromkeys(turn["role"] for turn in turns))
        raise Empty(f"{record.place}: no turn of the assistant, so nothing to learn (roles: {roles}); empty=skip leaves it out")
    return turns


def _rendered(record: DataRecord, turns: list[dict[str, str]], tokenizer: PreTrainedTokenizerBase, *, asking: bool) -> str:
    """The turns in the chat template. asking: with the prompt for the assistant's next turn."""
    try:
        # Some templates write today's date, and the same data must be the same tokens tomorrow.
        text: Any = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=asking, date_string=DAY)
    except Exception as error:  # templates are programs, which raise errors of any class
        raise DataError(f"{record.place}: the chat template refuses these messages: {error}") from error
    return text


def encode(said: TextDraft, tokenizer: PreTrainedTokenizerBase) -> Document:
    """The draft in tokens, with BOS where the tokenizer adds it by itself, and EOS, which is learned, where it has one.

    Each piece is tokenized as the continuation of those before it, whose tokens it does not change: a prompt has the tokens that
    it has in generation.
    """
    ids, learned, text, before = [], [], "", np.empty(0, np.int32)
    for piece in said.pieces:
        text += piece.text
        together = _tokens(text, tokenizer)
        follows = np.array_equal(together[: len(before)], before)
        ids.append(together[len(before) :] if follows else _continued(piece.text, tokenizer))
        learned.append(np.full(len(ids[-1]), piece.learned))
        before = together
    if not said.bare:
        begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
        if begin is not None and begin in tokenizer("").input_ids:
            ids.insert(0, np.array([begin], np.int32))
            learned.insert(0, np.array([False]))
        if end is not None:
            ids.append(np.array([end], np.int32))
            learned.append(np.array([True]))
    return Document(np.concatenate(ids), np.concatenate(learned))


def _continued(text: str, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """The tokens of a text that goes on within a word or behind a space, where many tokenizers begin a text with a space of theirs.

    Where a tokenizer has no such tokens, as one of whole words, they are those of the text alone.
    """
    for mark in MARKS:
        alone, together = _tokens(mark, tokenizer), _tokens(mark + text, tokenizer)
        rest = together[len(alone) :]
        if len(alone) and np.array_equal(together[: len(alone)], alone) and tokenizer.unk_token_id not in rest:
            return rest
    return _tokens(text, tokenizer)


def _tokens(text: str, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    # Not verbose: a text may well be longer than the source; it is cut into rows.
    return np.asarray(tokenizer(text, add_special_tokens=False, verbose=False).input_ids, dtype=np.int32)
