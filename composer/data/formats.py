"""From a record's columns to a document: the texts that a model reads, and those that it learns."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from composer.data.chat import render_answers
from composer.data.chat_templates import Rendered
from composer.data.conversation import Empty, check_characters, conversation_of, is_messages, text_of
from composer.data.packing import Document
from composer.data.reading import DataRecord
from composer.data.references import RecordOptions, RowFormat
from composer.errors import DataError
from composer.spec.places import nearest
from composer.system.notices import inform
from converters.bounded import list_first

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

COLUMNS: tuple[tuple[RowFormat, tuple[str, ...]], ...] = (
    ("messages", ("messages",)),
    ("messages", ("conversations",)),
    ("alpaca", ("instruction", "output")),
    ("completion", ("prompt", "completion")),
    ("text", ("text",)),
)
"""The columns that each form needs, in the order in which they are looked for. Alpaca may have an ``input``, too."""
MOST_NAMED = 100
"""The largest number of columns, and of characters of one, that are compared with the known columns, if none is known."""
TASK = "Below is an instruction that describes a task"
REQUEST = "Write a response that appropriately completes the request.\n\n"
INPUT = ", paired with an input that provides further context"
DAY = "26 Jul 2024"
"""The date for chat templates that write one, which is the default of Llama's templates."""

MARKS = ("\n", ".")
"""Characters that tokenizers separate from the following text."""


class TextPiece(NamedTuple):
    """A piece of a document, and whether it is learned."""

    text: str
    learned: bool


class TextDraft(NamedTuple):
    """A document before it is tokenized. bare: its text has BOS and EOS already, as chat templates write them."""

    pieces: tuple[TextPiece, ...]
    bare: bool = False


def drafts(record: DataRecord, options: RecordOptions, tokenizer: PreTrainedTokenizerBase) -> list[TextDraft]:
    """Return the documents of a record as pieces of text: one, or, for some conversations, one for each turn of the assistant. The
    list is empty if the record is empty and empty records are skipped. Raises DataError, which names the record.
    """
    form = form_of(record, options)
    try:
        if form == "messages":
            fields = record.fields
            named = options.column or next((name for name in ("messages", "conversations") if fields.get(name)), None)
            return _chat(record, named or ("messages" if "messages" in fields else "conversations"), tokenizer)
        if form == "completion" and any(is_messages(record.fields[name]) for name in ("prompt", "completion")):
            return _chat(record, None, tokenizer)
        return [TextDraft(_plain(record, form, options.column or "text"))]
    except Empty:
        if options.empty == "skip":
            return []
        raise


def form_of(record: DataRecord, options: RecordOptions) -> RowFormat:
    """Return the form of a record. Raise DataError if the columns have no known form, or not the form in the options."""
    fields = list(record.fields)
    if options.column is not None:
        if options.format not in (None, "text", "messages"):
            raise DataError(
                f"column={options.column}: a column of text or of messages is for format=text or format=messages, not "
                f"{options.format}; leave one of them out"
            )
        if options.column not in fields:
            raise DataError(_columns(record, (options.column,), f'no column "{options.column}"'))
        return options.format or "text"
    if options.format is not None:
        ways = [names for form, names in COLUMNS if form == options.format]
        missing = [next((name for name in names if name not in fields), None) for names in ways]
        if None not in missing:
            wanted = [name for names in ways for name in names]
            raise DataError(_columns(record, wanted, f'no column "{missing[0]}" for format={options.format}'))
        return options.format
    filled = [name for name in fields if record.fields[name] is not None]  # a file of several forms has all their columns
    for columns in (filled, fields):
        fitting: list[RowFormat] = [form for form, names in COLUMNS if set(names) <= set(columns)]
        if fitting:
            chosen, *others = dict.fromkeys(fitting)
            if others and columns is filled:
                _announce(chosen, tuple(others))
            return chosen
    every = dict.fromkeys(name for _, names in COLUMNS for name in names)
    raise DataError(_columns(record, every, "no columns that are understood"))


@cache
def _announce(chosen: RowFormat, others: tuple[RowFormat, ...]) -> None:
    """Log the form that records of several forms are read in, once in this process."""
    ways = " or ".join(f"format={form}" for form in others)
    inform(f"Records have columns of {list_first((chosen, *others))}; they are read as {chosen}. To choose another: {ways}")


def _columns(record: DataRecord, wanted: Iterable[str], problem: str) -> str:
    columns = list_first(record.fields) or "none"
    names = (name for name in islice(record.fields, MOST_NAMED) if len(name) < MOST_NAMED)
    guess = next((hint for name in names if (hint := nearest(name, wanted))), ".")
    understood = " | ".join("+".join(names) for _, names in COLUMNS)
    return f"{record.place}: {problem}; its columns: {columns}{guess} Understood: {understood}; or column=NAME of the text"


def _plain(record: DataRecord, form: RowFormat, column: str) -> tuple[TextPiece, ...]:
    if form == "completion":
        return TextPiece(_text(record, "prompt"), False), TextPiece(_text(record, "completion"), True)
    if form == "alpaca":
        input_text = record.fields.get("input")
        more = _text(record, "input") if input_text else ""
        prompt = alpaca_prompt(_text(record, "instruction"), more)
        return TextPiece(prompt, False), TextPiece(_text(record, "output"), True)
    return (TextPiece(_text(record, column), True),)


def alpaca_prompt(instruction: str, more: str = "") -> str:
    """Alpaca's template up to the response. more: its ``input``, where there is one."""
    begin, section = (TASK + INPUT, f"### Input:\n{more}\n\n") if more else (TASK, "")
    return f"{begin}. {REQUEST}### Instruction:\n{instruction}\n\n{section}### Response:\n"


def _text(record: DataRecord, column: str) -> str:
    return text_of(record.place, record.fields, column)


def _chat(record: DataRecord, column: str | None, tokenizer: PreTrainedTokenizerBase) -> list[TextDraft]:
    """Return a conversation in the tokenizer's chat template. The assistant's turns are learned. column: see
    ``conversation_of``."""
    if not tokenizer.chat_template:
        raise DataError(
            f"{record.place}: messages need a chat template, and the tokenizer ({tokenizer.name_or_path}) has none. Use a "
            f"tokenizer with one, or {'format=text' if record.fields.get('text') else 'text columns prompt and completion'}"
        )
    conversation = conversation_of(record, column)
    try:
        # Some templates write today's date, and the same data must be the same tokens tomorrow.
        texts = render_answers(conversation, tokenizer, {"date_string": DAY})
    except DataError as error:
        raise DataError(f"{record.place}: {error}") from error
    for text in texts:
        check_characters(record.place, "the conversation", text.text)
    return [TextDraft(_pieces(text), bare=True) for text in texts]


def _pieces(rendered: Rendered) -> tuple[TextPiece, ...]:
    """Return a text in pieces, at the bounds of its spans."""
    text, pieces, end = rendered.text, [], 0
    for start, stop in rendered.answers:
        pieces += [TextPiece(text[end:start], False), TextPiece(text[start:stop], True)]
        end = stop
    return (*pieces, TextPiece(text[end:], False))


def encode(written: TextDraft, tokenizer: PreTrainedTokenizerBase) -> Document:
    """Return the draft in tokens, with BOS where the tokenizer adds it by itself, and EOS, which is learned, where it has one.

    A bare text has the tokens of the text as a whole, as ``apply_chat_template`` returns them, and a token is learned as soon as
    one of its characters is. Of other drafts each piece is tokenized as the continuation of those before it, whose tokens it does
    not change: a prompt has the tokens that it has in generation.
    """
    if written.bare and tokenizer.is_fast:
        return _encode_whole(written.pieces, tokenizer)
    ids, learned, text, before = [], [], "", np.empty(0, np.int32)
    for piece in written.pieces:
        text += piece.text
        encoded = _tokens(text, tokenizer)
        follows = np.array_equal(encoded[: len(before)], before)
        ids.append(encoded[len(before) :] if follows else _tokenize_continuation(piece.text, tokenizer))
        learned.append(np.full(len(ids[-1]), piece.learned))
        before = encoded
    if not written.bare:
        begin, end = tokenizer.bos_token_id, tokenizer.eos_token_id
        if begin is not None and begin in tokenizer("").input_ids:
            ids.insert(0, np.array([begin], np.int32))
            learned.insert(0, np.array([False]))
        if end is not None:
            ids.append(np.array([end], np.int32))
            learned.append(np.array([True]))
    return Document(np.concatenate(ids), np.concatenate(learned))


def _encode_whole(pieces: tuple[TextPiece, ...], tokenizer: PreTrainedTokenizerBase) -> Document:
    """Return the tokens of all pieces as one text, which is never empty."""
    text = "".join(piece.text for piece in pieces)
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    learned_before = np.zeros(len(text) + 1, np.int64)  # characters that are learned, by the characters before them
    np.cumsum(np.repeat([piece.learned for piece in pieces], [len(piece.text) for piece in pieces]), out=learned_before[1:])
    # A token reaches from the end of the one before it: some tokenizers leave the space in front of a word out of its offsets.
    ends = np.maximum.accumulate(np.array([end for _, end in encoding["offset_mapping"]], np.int64))
    starts = np.concatenate(([0], ends))[:-1]
    learned = learned_before[ends] > learned_before[starts]
    # Several tokens of one character, such as its bytes, all have the end of that character. They are learned like the first one.
    first = np.maximum.accumulate(np.where(ends > starts, np.arange(len(ends)), 0))
    return Document(np.array(encoding["input_ids"], np.int32), learned[first])


def _tokenize_continuation(text: str, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """Return the tokens of a text that continues a word or follows a space, without the space that many tokenizers add at the start
    of a text. If a tokenizer has no such tokens, such as one of whole words, return those of the text alone.
    """
    for mark in MARKS:
        mark_tokens, with_mark = _tokens(mark, tokenizer), _tokens(mark + text, tokenizer)
        text_tokens = with_mark[len(mark_tokens) :]
        if (
            len(mark_tokens)
            and np.array_equal(with_mark[: len(mark_tokens)], mark_tokens)
            and tokenizer.unk_token_id not in text_tokens
        ):
            return text_tokens
    return _tokens(text, tokenizer)


def _tokens(text: str, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    # Not verbose: a text may well be longer than the source; it is cut into rows.
    return np.asarray(tokenizer(text, add_special_tokens=False, verbose=False).input_ids, dtype=np.int32)
