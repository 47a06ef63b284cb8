"""From references to rows: documents are read or drawn, split, tokenized, checked, shuffled and packed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from composer.data.formats import TextDraft, drafts, encode
from composer.data.packing import OF_DOCUMENTS, DataReport, Document, PackedRows, Packing, ReferenceReport, pack, permutation
from composer.data.reading import files_of, read_records
from composer.data.references import SHARE, DataReference, FileData, TaskData, parse_reference
from composer.errors import DataError
from composer.tasks.base import Split, Task
from composer.tasks.writer import Writer, without_embedding

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LARGEST_SHARE = 0.5
OnDocument = Callable[[str, int], None]
"""Called with a reference, and how many of its documents have been read."""


@dataclass
class _Count:
    """Counts and documents of one reference."""

    records: int = 0
    empty: int = 0
    documents: list[Document] = field(default_factory=list)


def check_references(references: Sequence[str]) -> None:
    """Raise DataError for a reference that is no existing file, no name of a data set, and no task with options. Reads nothing."""
    for name in references:
        reference = parse_reference(name)
        if isinstance(reference, FileData):
            files_of(reference)


def load_rows(
    references: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    sequence: int,
    *,
    split: Split,
    vocabulary: int,
    how: Packing = "packed",
    longest: int | None = None,
    share: float = SHARE,
    seed: int = 0,
    progress: OnDocument | None = None,
) -> PackedRows:
    """Rows of ``sequence`` tokens from all references, whose documents are shuffled together first. Raises DataError.

    - split: training, or evaluation on what is held out of it.
    - vocabulary: how many embeddings the model has; a larger token id is refused.
    - how: as ``pack`` has it.
    - longest: the largest number of tokens of the source model; longer rows are refused. None: any length.
    - share: of the documents of each file and each data set of the Hub, held out for evaluation; training never sees them, and
      evaluation sees nothing else. With 0 all documents are in either split, for data of one split only. A task makes separate
      samples for evaluation: this share of the number for training.
    - seed: of the shuffle.
    - progress: called as documents are read.

    ``PackedRows.report`` counts the documents and tokens.
    """
    _check(sequence, longest, share)
    if not references:
        raise DataError("no data: name at least one file, data set of the Hub or task")
    parsed = [(name, parse_reference(name)) for name in references]
    for _, reference in parsed:
        if isinstance(reference, FileData):
            files_of(reference)
    counts = []
    for name, reference in parsed:
        count = _Count()
        for document in _documents(name, reference, tokenizer, sequence, split, share, count):
            if problem := without_embedding(name, document.ids, vocabulary, tokenizer):
                raise DataError(problem)
            count.documents.append(document)
            if progress is not None:
                progress(name, len(count.documents))
        if not count.documents:
            left_out = "" if reference.skip == 0 else f" after `skip={reference.skip}`"
            raise DataError(
                f"{name}: nothing is left of its {count.records:,} records{left_out} for {split}; expected at least one text"
            )
        counts.append(count)
    documents = [document for count in counts for document in count.documents]
    order = permutation(len(documents), seed, OF_DOCUMENTS)
    rows = pack((documents[index] for index in order), sequence, how=how)
    if not len(rows):
        raise DataError(
            f"{', '.join(references)}: {len(documents):,} texts for {split}, and in rows of {sequence} tokens none of them has a "
            "token to predict; expected texts of at least 2 tokens"
        )
    report = DataReport(
        split=split,
        references=tuple(_reference_report(name, count) for (name, _), count in zip(parsed, counts, strict=True)),
        how=how,
        sequence=sequence,
        rows=len(rows),
        tokens=rows.tokens,
        targets=rows.targets,
        dropped=rows.dropped,
        hash=rows.hash,
    )
    return replace(rows, report=report)


def held_out(index: int, share: float) -> bool:
    """Whether document ``index`` (from 0) of a reference is held out for evaluation.

    One document of each block of ``1 / share`` is held out (of 3 and of 4 alternately for 3.5): the first document of the first
    block, so that there always is one, and one chosen by a hash in each other block. The choice does not depend on later documents,
    so more data, or a larger ``limit``, move no document from one split to the other.
    """
    if not share:
        return False
    some, parts = _ratio(share)
    block = -(-(index + 1) * some // parts) - 1
    first, after = block * parts // some, (block + 1) * parts // some
    digest = hashlib.blake2b(block.to_bytes(8, "little"), digest_size=8).digest()
    return index - first == (int.from_bytes(digest, "little") % (after - first) if block else 0)


@cache
def _ratio(share: float) -> tuple[int, int]:
    """Return a share as two whole numbers, 3 and 10 for 0.3, to compute without rounding."""
    return Fraction(share).limit_denominator(max(10_000, math.ceil(1 / share))).as_integer_ratio()


def _check(sequence: int, longest: int | None, share: float) -> None:
    if sequence < 2:
        raise DataError(f"rows of {sequence} tokens: expected at least 2, as a token is predicted from the tokens before it")
    if longest is not None and sequence > longest:
        raise DataError(
            f"rows of {sequence:,} tokens: the source supports at most {longest:,} tokens. Set rows of at most {longest:,} (--set "
            f"recipe.sequence={longest}), or use a source with a longer context"
        )
    if not 0 <= share <= LARGEST_SHARE:
        raise DataError(
            f"a share of {share:g} held out for evaluation: expected 0 (nothing) to {LARGEST_SHARE:g}, such as {SHARE:g}"
        )


def _documents(
    name: str,
    reference: DataReference,
    tokenizer: PreTrainedTokenizerBase,
    sequence: int,
    split: Split,
    share: float,
    count: _Count,
) -> Iterator[Document]:
    if isinstance(reference, TaskData):
        sample_count = len(range(reference.samples)[reference.skip :][: reference.limit])
        document_count = math.ceil(sample_count * share) if split == "evaluation" and share else sample_count
        return islice(_task_documents(name, reference, tokenizer, sequence, split, count), document_count)
    records = _drafts(reference, tokenizer, count)
    first = list(islice(records, 2))
    if len(first) == 1 and share:
        return _cut([encode(text, tokenizer) for text in first[0]], split, share, name)
    sides = ((documents, held_out(index, share)) for index, documents in enumerate(chain(first, records)))
    wanted = split == "evaluation"
    return (encode(text, tokenizer) for documents, is_held_out in sides if is_held_out == wanted or not share for text in documents)


def _drafts(reference: DataReference, tokenizer: PreTrainedTokenizerBase, count: _Count) -> Iterator[list[TextDraft]]:
    """Yield the documents of each record that has any. Those of one record are on the same side of the split."""
    assert not isinstance(reference, TaskData)
    for record in read_records(reference):
        count.records += 1
        documents = drafts(record, reference, tokenizer)
        if documents:
            yield documents
        else:
            count.empty += 1


def _cut(documents: list[Document], split: Split, share: float, name: str) -> Iterator[Document]:
    """Split a single record: the last ``share`` of its tokens, at least 2, is for evaluation, and the rest for training.

    Of a conversation of several documents, each of which repeats the turns before, the last document is for evaluation.
    """
    if len(documents) > 1:
        return iter(documents[:-1] if split == "train" else documents[-1:])
    (document,) = documents
    at = len(document) - max(2, round(share * len(document)))
    if at < 2:
        raise DataError(
            f"{name}: one text of {len(document)} tokens, too few to hold out a share for evaluation. Add data, or set the share "
            "to 0"
        )
    side = slice(at) if split == "train" else slice(at, None)
    return iter([Document(document.ids[side], document.learned[side])])


def _task_documents(
    name: str, reference: TaskData, tokenizer: PreTrainedTokenizerBase, sequence: int, split: Split, count: _Count
) -> Iterator[Document]:
    length = reference.length or sequence
    if length > sequence:
        raise DataError(
            f"{name}: samples of {length:,} tokens do not fit into rows of {sequence:,}: make the rows longer, or length less"
        )
    every = sample_documents(reference.task(), tokenizer, length, split)
    for document in islice(every, reference.skip, None if reference.limit is None else reference.skip + reference.limit):
        count.records += 1
        if len(document) > sequence:
            raise DataError(
                f"{name}: a sample of {len(document):,} tokens does not fit into rows of {sequence:,}: make them longer"
            )
        yield document


def _reference_report(name: str, count: _Count) -> ReferenceReport:
    return ReferenceReport(
        reference=name,
        records=count.records,
        empty=count.empty,
        documents=len(count.documents),
        tokens=sum(map(len, count.documents)),
        targets=sum(document.targets for document in count.documents),
    )


def sample_documents(task: Task, tokenizer: Any, length: int | None, split: Split) -> Iterator[Document]:
    """Yield all samples that the task draws: the ids, and which of them are learned. length: tokens of a sample if the task does
    not set its own.
    """
    writer = Writer(tokenizer)
    begins = [token for token in writer.begin if token not in writer.end]
    for sample in task.draw(writer, length, split):
        ids = np.array(sample.ids, dtype=np.int32)
        learned = np.array(sample.answer) if task.learn == "answer" else ~np.isin(ids, begins)
        learned[0] = False  # nothing precedes it, so it cannot be predicted
        yield Document(ids=ids, learned=learned)
